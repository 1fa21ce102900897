"""Make a folder of frame triplets for jobs/train_interpolator.py: cut from videos, or rendered scenes in motion.

    python jobs/build_triplets.py triplets=data/triplets/street build.videos=[street.mp4] build.min_motion=1
    python jobs/build_triplets.py triplets=data/triplets/rendered build.scenes.num_scenes=2000

Triplets that are image files already (Vimeo-90k, one folder per triplet, *_frame0/1/2) need no building. The same
command continues a killed build; a complete one is not changed.
"""

from __future__ import annotations

from functools import partial

from cluster.config import ClusterConfig
from idc.config import cli
from idc.next_command import after_triplets
from idc.vision.interpolation.config import BuildTripletsJob


class Job(BuildTripletsJob):
    """Frame triplets, and the cluster to make them on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.vision.interpolation.triplets import build

    job = args.config
    try:
        manifest = build(
            job.build, job.triplets, partial(run_chunks, args.local, job.cluster, job=job), overwrite=args.overwrite
        )
    except ValueError as error:
        raise SystemExit(f"build_triplets: {error}") from None
    print(f"{job.triplets}: {manifest.num_rows} triplets {manifest.rows_by_split}, rejected: {manifest.num_rejected}")
    print(f"next: {after_triplets(job.triplets)}")


if __name__ == "__main__":
    main()
