"""Draw what several training runs have logged in one chart for each value: one self-contained HTML page.

    python jobs/compare_runs.py "runs.uniform=runs/dpo" "runs.adversarial=runs/adpo" \\
        "fields=[true_negatives,drawn_rank]" out=runs/negatives.html
    python jobs/compare_runs.py runs.a=runs/sft-0 runs.b=runs/sft-1 fields=[validation/CIDEr] out=runs/seeds.html

smooth=4 draws the mean of four lines of the log as one point. Reads nothing but the runs' log.jsonl.
"""

from __future__ import annotations

from idc.config import cli
from idc.report.config import CompareRunsJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False, overwrite=False)
    from idc.atomic import write_text
    from idc.report.run_curves import run_curves_page

    try:
        print(f"page: {write_text(args.config.out, run_curves_page(args.config))}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"compare_runs: {error}") from None


if __name__ == "__main__":
    main()
