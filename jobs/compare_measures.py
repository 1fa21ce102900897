"""Compare measures of captions with the truth of rendered pairs: how well BLEU-4, METEOR, ROUGE-L, CIDEr-D and judges
agree with the true differences, over captions of several systems and over captions with planted errors.

    python jobs/compare_measures.py pairs=data/demo/pairs evaluations.TwinCap=runs/demo/twincap-0/evaluation \\
        evaluations.ProCap=runs/demo/finetune-0/evaluation out=runs/measures
    python jobs/compare_measures.py pairs=data/demo/pairs evaluations.TwinCap=runs/demo/twincap-0/evaluation \\
        evaluations.ProCap=runs/demo/finetune-0/evaluation "judged=[runs/judged/twincap, runs/judged/procap]" \\
        out=runs/measures

Runs in this process. Writes `measures.json`, the page `measures.html`, and the captions with planted errors
(`planted/ERROR.wrong.jsonl`, the same without error `ERROR.true.jsonl`, and their `ERROR.references.jsonl`).
"""

from __future__ import annotations

from idc.config import cli
from idc.evaluation.config import CompareMeasuresJob


def main() -> None:
    args = cli(CompareMeasuresJob, __doc__, local=False, overwrite=False)
    from idc.evaluation.measures import compare_measures
    from idc.metrics.java import JavaError
    from idc.report.measures_page import measures_table, write_measures

    try:
        result = compare_measures(args.config)
    except (ValueError, JavaError) as error:
        raise SystemExit(f"compare_measures: {error}") from None
    print(measures_table(result))
    print(write_measures(args.config.out, result))


if __name__ == "__main__":
    main()
