"""Train DifferenceNet on captioned pairs.

python jobs/train_difference_net.py pairs=data/demo/pairs
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.systems.difference_net.config import DifferenceNetJob


class Job(DifferenceNetJob):
    """DifferenceNet, and where to train it."""

    cluster: ClusterConfig = ClusterConfig()


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.systems.difference_net.task:train", args)


if __name__ == "__main__":
    main()
