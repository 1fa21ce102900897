"""ProCap stage 2: train encoder and text decoder to caption pairs.

    python jobs/finetune_procap.py --config jobs/configs/procap/finetune_demo.yaml
    ray job submit --working-dir . -- python jobs/finetune_procap.py --config jobs/configs/procap/finetune_paper.yaml

The procedures are built first if they do not exist.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.procap.config import FinetuneJob


def main() -> None:
    build = ("procedures", "idc.systems.procap.procedures.build:build")
    train_command(FinetuneJob, __doc__, build)


if __name__ == "__main__":
    main()
