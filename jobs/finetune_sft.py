"""Tune a vision-language model on folders of pairs or of instructions: adapters, or all of it.

    python jobs/finetune_sft.py pairs=data/mine/pairs base.source=Qwen/Qwen2.5-VL-3B-Instruct
    python jobs/finetune_sft.py --config jobs/configs/sft/finetune_small.yaml
    ray job submit --working-dir . -- python jobs/finetune_sft.py --config jobs/configs/sft/finetune_small.yaml

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the input of evaluation,
captioning and serving; jobs/merge_vlm.py makes a plain hub folder of it.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.sft.config import SftJob


class Job(SftJob):
    """Tuning, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.systems.sft.task:train", args)


if __name__ == "__main__":
    main()
