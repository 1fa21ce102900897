"""Tune a captioner with a text decoder of its own (TwinCap, ProCap, NAMC) by rewards.

    python jobs/finetune_rewards.py artifact=runs/demo/twincap-0/artifact pairs=data/demo/pairs
    python jobs/finetune_rewards.py artifact=runs/mine/artifact pairs=data/mine/pairs "rewards={cider: 1.0}"

Captions are drawn and earn what they claim rightly (pairs with scenes), CIDEr-D, or what a function of yours returns.
The artifact is of the same system. Vision-language models: jobs/train_grpo.py.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.config import command
from idc.systems.grpo.config import WordsJob


@command
def main() -> None:
    train_command(WordsJob, __doc__)


if __name__ == "__main__":
    main()
