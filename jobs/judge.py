"""Let a language model judge an evaluation's captions and baselines: how much of the reference they cover, by the
criteria of OmniDiff's prompt, or which true differences they state, after DiffCap-Bench.

    python jobs/judge.py evaluation=runs/captioner/evaluation out=runs/captioner/judge \\
        url=https://api.openai.com/v1 judge=gpt-4o
    python jobs/judge.py evaluation=runs/captioner/evaluation out=runs/captioner/judge \\
        url=http://localhost:8000/v1 judge=Qwen/Qwen3-8B concurrency=16
    python jobs/judge.py criteria=differences evaluation=runs/captioner/evaluation pairs=data/mine/pairs \\
        out=runs/captioner/judged_differences url=http://localhost:8000/v1 judge=Qwen/Qwen3-8B

Any endpoint with OpenAI's chat completions. The key is read from $OPENAI_API_KEY (api_key_variable=OTHER). Answers are
written as they arrive; the same command continues after an interruption and sends no answered request again.
`jobs/compare.py` compares the results of criteria=differences for two evaluations.
"""

from __future__ import annotations

import sys

from idc.config import cli, refuse
from idc.evaluation.judge import JudgeJob


def main() -> None:
    args = cli(JudgeJob, __doc__, local=False, overwrite=False)
    from idc.chat_endpoint import EndpointError
    from idc.evaluation import difference_judge, judge, judged_differences

    try:
        if args.config.criteria == "coverage":
            scored = judge.run_judge(args.config)
            shown, unusable, what = judge.judgement_table(scored), scored.unreadable, "score"
        else:
            matched = difference_judge.run_difference_judge(args.config)
            shown, unusable, what = (
                judged_differences.judged_differences_table(matched),
                matched.unusable,
                "usable list of differences",
            )
    except ValueError as error:
        refuse([str(error)])
    except EndpointError as error:
        print(
            f"{error}\nAnswers so far are in {args.config.answers_file.parent}; the same command continues.",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    print(shown)
    for pair, reply in list(unusable.items())[:10]:
        print(f"no {what} in the answer for {pair}: {reply[:200]!r}", file=sys.stderr)
    if unusable:
        raise SystemExit(f"{len(unusable)} answers without a {what}; the same command requests them again")


if __name__ == "__main__":
    main()
