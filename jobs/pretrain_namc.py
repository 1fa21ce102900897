"""Pre-train NAMC on described pairs.

python jobs/pretrain_namc.py --config jobs/configs/namc/pretrain_small.yaml
ray job submit --working-dir . -- python jobs/pretrain_namc.py --config jobs/configs/namc/pretrain_paper.yaml
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.namc.config import PretrainJob


def main() -> None:
    train_command(PretrainJob, __doc__)


if __name__ == "__main__":
    main()
