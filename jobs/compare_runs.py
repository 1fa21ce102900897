"""Draw what several training runs have logged in one chart for each value: one self-contained HTML page, or a picture.

    python jobs/compare_runs.py "runs.uniform=runs/dpo" "runs.adversarial=runs/adpo" \\
        "fields=[true_negatives,drawn_rank]" out=runs/negatives.html
    python jobs/compare_runs.py runs.a=runs/sft-0 runs.b=runs/sft-1 fields=[validation/CIDEr] out=runs/seeds.html
    python jobs/compare_runs.py "runs.equal chances=runs/dpo" runs.adversarial=runs/adpo fields=[true_negatives] \\
        smooth=8 out=runs/negatives.svg

smooth=4 draws the mean of four lines of the log as one point, in the picture with its standard error. Reads nothing but
the runs' log.jsonl.
"""

from __future__ import annotations

from idc.config import cli
from idc.report.config import CompareRunsJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False, overwrite=False)
    from idc.atomic import write_text
    from idc.report.run_curves import run_curves_page, run_curves_picture

    job = args.config
    try:
        if job.out.endswith(".svg"):
            print(f"picture: {write_text(job.out, run_curves_picture(job))}")
        else:
            print(f"page: {write_text(job.out, run_curves_page(job))}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"compare_runs: {error}") from None


if __name__ == "__main__":
    main()
