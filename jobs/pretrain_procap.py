"""ProCap stage 1, explicit procedure modeling: train the procedure encoder by masked reconstruction.

    python jobs/pretrain_procap.py --config jobs/configs/procap/pretrain_demo.yaml
    ray job submit --working-dir . -- python jobs/pretrain_procap.py --config jobs/configs/procap/pretrain_demo.yaml

The procedures are built first if they do not exist. The same command resumes a killed run from its last checkpoint.
Writes <runs>/<name>/artifact.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.procap.config import PretrainJob


class Job(PretrainJob):
    """Stage 1, and the cluster to run it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    build = ("procedures", "idc.systems.procap.procedures.build:build")
    train_job("idc.systems.procap.task:pretrain", args, build)


if __name__ == "__main__":
    main()
