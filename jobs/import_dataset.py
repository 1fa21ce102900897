"""Import a data set, or your own pairs, into a folder of pairs.

    python jobs/import_dataset.py source=my_pairs out=data/mine/pairs
    python jobs/import_dataset.py format=spot_the_diff source=SPOT_FOLDER out=data/spot
    python jobs/import_dataset.py source=pairs.csv out=s3://bucket/pairs --local

Unusable rows are left out and listed with their reasons in rejects-*.parquet. If the images of a data set are missing,
its annotations are imported alone. The same command continues a killed import.
"""

from __future__ import annotations

from cluster.config import OnCluster
from idc.config import cli, command
from idc.data.config import ImportJob


class Job(OnCluster, ImportJob):
    """Import pairs, and the cluster to do it on."""


@command
def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.data.importing import open_import
    from idc.data.manifest import uncaptioned
    from idc.metrics.change_types import says_no_change
    from idc.next_command import after_import, after_uncaptioned
    from idc.util.redaction import for_terminal

    job = args.config
    folder, source, stages = open_import(job, args.overwrite, progress=True, says_no_change=says_no_change)
    for note in folder.manifest.extra["notes"]:
        print(for_terminal(f"note: {note}"), flush=True)
    share = job.max_reject_share
    manifest = run_chunks(
        args.local, job.cluster, folder, source, stages, max_reject_share=share, job=job, name="pairs"
    )
    print(f"{job.out}: {manifest.num_rows} pairs {manifest.rows_by_split}, without captions: "
          f"{manifest.num_without_captions}, rejected: {manifest.num_rejected} {manifest.reject_reasons}")  # fmt: skip
    if 0 < manifest.num_rows == manifest.num_without_captions:
        print(f"warning: {uncaptioned(job.out)}")
        after_import = after_uncaptioned if manifest.has_images else after_import
    print(f"next: {after_import(job.out)}")


if __name__ == "__main__":
    main()
