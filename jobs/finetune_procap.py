"""ProCap stage 2, implicit procedure captioning: train encoder and text decoder to caption pairs.

    python jobs/finetune_procap.py --config jobs/configs/procap/finetune_demo.yaml
    ray job submit --working-dir . -- python jobs/finetune_procap.py --config jobs/configs/procap/finetune_demo.yaml

The procedures are built first if they do not exist. The same command resumes a killed run from its last checkpoint.
Writes <runs>/<name>/artifact, the input of evaluation, captioning and serving.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.procap.config import FinetuneJob


class Job(FinetuneJob):
    """Stage 2, and the cluster to run it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    build = ("procedures", "idc.systems.procap.procedures.build:build")
    train_job("idc.systems.procap.task:finetune", args, build)


if __name__ == "__main__":
    main()
