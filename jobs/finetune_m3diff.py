"""Train M3Diff: a vision-language model tuned with a module that perceives differences of two images.

    python jobs/finetune_m3diff.py pairs=data/mine/pairs base.source=Qwen/Qwen2.5-VL-3B-Instruct
    python jobs/finetune_m3diff.py --config jobs/configs/m3diff/finetune_small.yaml
    ray job submit --working-dir . -- python jobs/finetune_m3diff.py --config jobs/configs/m3diff/paper.yaml

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the input of evaluation,
captioning and serving.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.m3diff.config import M3DiffJob


class Job(M3DiffJob):
    """Tuning with the module, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.systems.m3diff.task:train", args)


if __name__ == "__main__":
    main()
