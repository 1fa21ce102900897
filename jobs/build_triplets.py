"""Make a folder of frame triplets for jobs/train_interpolator.py: cut from videos, or rendered scenes in motion.

    python jobs/build_triplets.py triplets=data/triplets/street build.videos=[street.mp4] build.min_motion=1
    python jobs/build_triplets.py triplets=data/triplets/rendered build.scenes.num_scenes=2000

Triplets that are image files already (Vimeo-90k, one folder a triplet, *_frame0/1/2) need no building. A killed build
goes on where it was when the same command is given again; a complete one is left as it is.
"""

from __future__ import annotations

from functools import partial

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vision.interpolation.config import BuildTripletsJob


class Job(BuildTripletsJob):
    """Frame triplets, and where to make them."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.vision.interpolation.triplets import build

    job = args.config
    try:
        manifest = build(
            job.build, job.triplets, partial(run_chunks, args.local, job.cluster), overwrite=args.overwrite
        )
    except ValueError as error:
        raise SystemExit(f"build_triplets: {error}") from None
    print(f"{job.triplets}: {manifest.num_rows} triplets {manifest.rows_by_split}, rejected: {manifest.num_rejected}")


if __name__ == "__main__":
    main()
