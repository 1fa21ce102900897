"""Put evaluations of several settings on the same pairs into a table, each with its seeds, and compare them with one.

    python jobs/tabulate_evaluations.py "rows.SFT=runs/sft-{seed}/evaluation" \\
        "rows.ADPO=runs/adpo-{seed}/evaluation" against=SFT
    python jobs/tabulate_evaluations.py rows.ProCap=runs/demo/finetune-0/evaluation \\
        rows.TwinCap=runs/demo/twincap-0/evaluation metrics=[right_object,CIDEr] out=runs/table.md

Prints Markdown: means over the seeds with their deviation, with one seed the 95 % interval over the pairs, and the
baselines; then the differences from the row `against`, and how many pairs would show one of 2 % (percent=2). Reads
nothing but the folders of the evaluations and, for the right object, their pairs.
"""

from __future__ import annotations

from idc.config import cli
from idc.report.config import TabulateJob as Job


def main() -> None:
    job = cli(Job, __doc__, local=False, overwrite=False).config
    from idc.atomic import write_text
    from idc.report.evaluations_table import evaluations_table

    try:
        table = evaluations_table(job)
        if job.out is not None:
            write_text(job.out, table)
    except (OSError, ValueError) as error:
        raise SystemExit(f"tabulate_evaluations: {error}") from None
    print(table, end="")


if __name__ == "__main__":
    main()
