"""Fine-tune NAMC on captions of changes, from its pre-training or from scratch.

    python jobs/finetune_namc.py --config jobs/configs/namc/finetune_small.yaml
    ray job submit --working-dir . -- python jobs/finetune_namc.py --config jobs/configs/namc/finetune_small.yaml

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the input of evaluation,
captioning and serving.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.namc.config import FinetuneJob


class Job(FinetuneJob):
    """Fine-tuning, and the cluster to train it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.systems.namc.task:finetune", args)


if __name__ == "__main__":
    main()
