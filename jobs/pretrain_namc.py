"""Pre-train NAMC on described pairs: noise identification, masked image reconstruction, description generation.

    python jobs/pretrain_namc.py --config jobs/configs/namc/pretrain_small.yaml
    ray job submit --working-dir . -- python jobs/pretrain_namc.py --config jobs/configs/namc/pretrain_small.yaml

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the input of fine-tuning.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.namc.config import PretrainJob


class Job(PretrainJob):
    """Pre-training, and the cluster to train it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.systems.namc.task:pretrain", args)


if __name__ == "__main__":
    main()
