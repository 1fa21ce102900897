"""Train TwinCap, the small difference captioner of this project, on folders of pairs.

    python jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml
    ray job submit --working-dir . -- python jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the input of evaluation,
captioning and serving.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.twincap.config import TwinCapJob


class Job(TwinCapJob):
    """TwinCap, and the cluster to train it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.systems.twincap.task:train", args)


if __name__ == "__main__":
    main()
