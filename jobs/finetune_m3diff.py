"""Train M3Diff: a vision-language model with a module that compares the two images.

    python jobs/finetune_m3diff.py pairs=data/mine/pairs base.source=Qwen/Qwen2.5-VL-3B-Instruct
    python jobs/finetune_m3diff.py --config jobs/configs/m3diff/finetune_small.yaml
    ray job submit --working-dir . -- python jobs/finetune_m3diff.py --config jobs/configs/m3diff/paper.yaml

With its module the artifact cannot be merged for transformers or vLLM (with `mdp=null` it can).
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.m3diff.config import M3DiffJob


def main() -> None:
    train_command(M3DiffJob, __doc__)


if __name__ == "__main__":
    main()
