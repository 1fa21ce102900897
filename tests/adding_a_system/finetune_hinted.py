"""Tune a vision-language model with hints on captioned pairs.

python jobs/finetune_hinted.py --config jobs/configs/hinted/finetune_small.yaml
"""

from __future__ import annotations

from cluster.training_command import train_command, with_cluster
from idc.systems.hinted.config import HintedJob

Job = with_cluster(HintedJob)


def main() -> None:
    train_command(Job, "idc.systems.hinted.task:train", __doc__)


if __name__ == "__main__":
    main()
