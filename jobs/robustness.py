"""Evaluate a captioner on corrupted images and swapped order; with `kind` make one set, also of replaced words.

    python jobs/robustness.py artifact=runs/captioner/artifact pairs=data/pairs sets=data/robust out=runs/robust --local
    python jobs/robustness.py pairs=data/pairs out=data/fog kind=fog severity=5 "splits=[test]"
    python jobs/robustness.py pairs=data/pairs out=data/words-40 kind=replace_words share=0.4
    python jobs/robustness.py pairs=data/pairs out=data/swapped kind=swap_order --local
    python jobs/robustness.py kind= --help         the settings of the last three

The sets are made first and captioned in this process. Writes <out>/table.md and robustness.json. The draws of a set
depend on the seed and the pair's id alone. The same command continues a killed job.
"""

from __future__ import annotations

from functools import partial

from cluster.config import OnCluster
from idc.config import Cli, command, run_form
from idc.data.config import CorruptJob
from idc.next_command import after_corruption
from idc.report.config import RobustnessJob
from idc.util.command_forms import Form


class Job(OnCluster, RobustnessJob):
    """The robustness table, and the cluster to compute it on."""


class SetJob(OnCluster, CorruptJob):
    """A robustness set, and the cluster to make it on."""


def make_set(args: Cli[SetJob]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.robustness.build import open_corruption, sentence

    folder, source, stages = open_corruption(job, args.overwrite)
    manifest = run_chunks(
        args.local, job.cluster, folder, source, stages, max_reject_share=job.max_reject_share, job=job, name="rows"
    )
    print(f"{sentence(job)}\n{job.out}: {manifest.num_rows} rows {manifest.rows_by_split}, "
          f"rejected: {manifest.num_rejected} {manifest.reject_reasons}")  # fmt: skip
    print(f"next: {after_corruption(job.out)}")


def make_table(args: Cli[Job]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.report.robustness import run_robustness

    table = run_robustness(job, partial(run_chunks, args.local, job.cluster, job=job), args.overwrite)
    print(f"{table.read_text(encoding='utf-8')}\n{table}")


@command
def main() -> None:
    run_form(__doc__, {make_table: Form(Job), make_set: Form(SetJob, "kind")})


if __name__ == "__main__":
    main()
