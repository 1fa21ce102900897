"""Compare two evaluations of the same pairs: differences with their intervals, for every metric.

    python jobs/compare.py a=runs/one/evaluation b=runs/two/evaluation
    python jobs/compare.py a=runs/one/evaluation b=runs/two/evaluation out=runs/comparison.json

Evaluations of different pairs, references or protocols are refused with status 1.
"""

from __future__ import annotations

from pathlib import Path

from idc.config import cli, command
from idc.evaluation.config import CompareJob


@command
def main() -> None:
    job = cli(CompareJob, __doc__, local=False, overwrite=False).config
    from idc.evaluation.significance import compare_evaluations, comparison_table

    comparison = compare_evaluations(job)
    if job.out is not None:
        Path(job.out).parent.mkdir(parents=True, exist_ok=True)
        Path(job.out).write_text(comparison.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(comparison_table(comparison))


if __name__ == "__main__":
    main()
