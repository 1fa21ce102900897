"""Fine-tune NAMC on captions of changes.

python jobs/finetune_namc.py --config jobs/configs/namc/finetune_small.yaml
python jobs/finetune_namc.py --config jobs/configs/namc/finetune_scratch_small.yaml
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.namc.config import FinetuneJob


def main() -> None:
    train_command(FinetuneJob, __doc__)


if __name__ == "__main__":
    main()
