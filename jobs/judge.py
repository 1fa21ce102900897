"""Let a language model judge an evaluation's captions and baselines: how much of the reference they cover, by the
criteria of OmniDiff's prompt.

    python jobs/judge.py evaluation=runs/captioner/evaluation out=runs/captioner/judge \\
        url=https://api.openai.com/v1 judge=gpt-4o
    python jobs/judge.py evaluation=runs/captioner/evaluation out=runs/captioner/judge \\
        url=http://localhost:8000/v1 judge=Qwen/Qwen3-8B concurrency=16

Any endpoint with OpenAI's chat completions. The key is read from $OPENAI_API_KEY (api_key_variable=OTHER). Answers are
written as they arrive; the same command continues after an interruption and sends no answered request again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from idc.config import cli, refuse
from idc.evaluation.judge import JudgeJob


def main() -> None:
    args = cli(JudgeJob, __doc__, local=False, overwrite=False)
    from idc.chat_endpoint import EndpointError
    from idc.evaluation.judge import ANSWERS, judgement_table, run_judge

    try:
        result = run_judge(args.config)
    except ValueError as error:
        refuse([str(error)])
    except EndpointError as error:
        answers = Path(args.config.out) / ANSWERS
        print(f"{error}\nAnswers so far are in {answers.parent}; the same command continues.", file=sys.stderr)
        raise SystemExit(1) from None
    print(judgement_table(result))
    for pair, reply in list(result.unreadable.items())[:10]:
        print(f"no score in the answer for {pair}: {reply[:200]!r}", file=sys.stderr)
    if result.unreadable:
        raise SystemExit(f"{len(result.unreadable)} answers without a score; the same command requests them again")


if __name__ == "__main__":
    main()
