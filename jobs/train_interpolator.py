"""Train VFIformer, the interpolator, on frame triplets.

    python jobs/train_interpolator.py --config jobs/configs/vision/interpolator_demo.yaml
    ray job submit --working-dir . -- python jobs/train_interpolator.py \\
        --config jobs/configs/vision/interpolator_paper.yaml triplets=/data/vimeo_triplet runs=/shared/runs

Triplets with a `build` section (videos, rendered scenes) are built first if they do not exist. The same command resumes
a killed run from its last checkpoint. Writes <runs>/<name>/artifact, an input of jobs/build_procedures.py
(build.interpolation_weights) and jobs/compare_interpolators.py.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vision.interpolation.config import TrainInterpolatorJob


class Job(TrainInterpolatorJob):
    """An interpolator, and the cluster to train it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    build = ("triplets", "idc.vision.interpolation.triplets:build")
    train_job("idc.vision.interpolation.task:train", args, build)


if __name__ == "__main__":
    main()
