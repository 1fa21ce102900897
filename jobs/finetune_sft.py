"""Tune a vision-language model on pairs or instructions: adapters, or all of it.

    python jobs/finetune_sft.py pairs=data/mine/pairs base.source=Qwen/Qwen2.5-VL-3B-Instruct
    python jobs/finetune_sft.py --config jobs/configs/sft/finetune_small.yaml

jobs/merge_vlm.py makes a plain hub folder of the artifact.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.sft.config import SftJob


def main() -> None:
    train_command(SftJob, __doc__)


if __name__ == "__main__":
    main()
