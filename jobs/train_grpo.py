"""Train GRPO: a vision-language model, by rewards of the captions that it draws.

    python jobs/train_grpo.py pairs=data/mine/pairs base.source=merged tune.lora.dropout=0
    python jobs/train_grpo.py --config jobs/configs/grpo/small.yaml
    python jobs/train_grpo.py pairs=data/mine/pairs base.source=merged tune.lora.dropout=0 "rewards={cider: 1.0}"
    ray job submit --working-dir . -- python jobs/train_grpo.py --config jobs/configs/grpo/small.yaml

Captioners with a text decoder of their own: jobs/finetune_rewards.py.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.config import command
from idc.systems.grpo.config import GrpoJob


@command
def main() -> None:
    train_command(GrpoJob, __doc__)


if __name__ == "__main__":
    main()
