"""Train DifferenceNet on captioned pairs.

python jobs/train_difference_net.py pairs=data/demo/pairs
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.difference_net.config import DifferenceNetJob


def main() -> None:
    train_command(DifferenceNetJob, __doc__)


if __name__ == "__main__":
    main()
