"""Build ChangeIMTI, ChangeVG's instructions, of LEVIR-MCI.

    python jobs/build_changeimti.py pairs=data/levir/pairs out=data/levir/changeimti
    python jobs/build_changeimti.py --local --config jobs/configs/changevg/changeimti_clean.yaml \\
        pairs=data/levir/pairs out=data/levir/changeimti-clean
    python jobs/build_changeimti.py pairs=data/levir_cc/pairs out=data/levir_cc/questions tasks=[caption,binary]

Writes a folder of instructions, with counts next to the paper's in changeimti.json. By default all is as in the
authors' notebook; changeimti_clean.yaml has none of its bugs. The same command continues a killed job.
"""

from __future__ import annotations

from cluster.config import OnCluster
from idc.changeimti.config import BuildChangeImtiJob
from idc.config import cli, command
from idc.next_command import after_changeimti


class Job(OnCluster, BuildChangeImtiJob):
    """Build ChangeIMTI, and the cluster to do it on."""


@command
def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.changeimti.changeimti_counts import COUNTS_FILE, count_changeimti, counts_table
    from idc.changeimti.changeimti_job import open_changeimti
    from idc.report.page import write_texts

    job = args.config
    folder, source, stages = open_changeimti(job, args.overwrite)
    run_chunks(
        args.local, job.cluster, folder, source, stages,
        processes=job.workers, max_reject_share=job.max_reject_share, job=job, name="changeimti",
    )  # fmt: skip
    counts = count_changeimti(job.out)
    write_texts(job.out, {COUNTS_FILE: counts.model_dump_json(indent=1) + "\n"})
    print(f"{job.out}: {counts_table(counts)}")
    print(f"next: {after_changeimti(job.out)}")


if __name__ == "__main__":
    main()
