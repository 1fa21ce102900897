"""Make a robustness set: a folder of pairs, images corrupted or shifted, words replaced, or before and after swapped.

    python jobs/corrupt.py pairs=data/pairs out=data/fog kind=fog severity=5 "splits=[test]"
    python jobs/corrupt.py pairs=data/pairs out=data/shifted kind=shift severity=2 which=after "splits=[test]"
    python jobs/corrupt.py pairs=data/pairs out=data/words-40 kind=replace_words share=0.4
    python jobs/corrupt.py pairs=data/pairs out=data/swapped kind=swap_order --local

All draws depend on the seed and the pair's id alone. The same command continues a killed job. The result can be used
wherever a folder of pairs can.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.data.config import CorruptJob
from idc.next_command import after_corruption


class Job(CorruptJob):
    """Make a robustness set, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.data.robustness.build import open_corruption, sentence

    job = args.config
    try:
        folder, source, stages = open_corruption(job, args.overwrite)
        manifest = run_chunks(
            args.local, job.cluster, folder, source, stages, max_reject_share=job.max_reject_share, job=job, name="rows"
        )
    except ValueError as error:
        raise SystemExit(f"corrupt: {error}") from None
    print(f"{sentence(job)}\n{job.out}: {manifest.num_rows} rows {manifest.rows_by_split}, "
          f"rejected: {manifest.num_rejected} {manifest.reject_reasons}")  # fmt: skip
    print(f"next: {after_corruption(job.out)}")


if __name__ == "__main__":
    main()
