"""Train TwinCap, the small difference captioner of this project.

python jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml
python jobs/train_twincap.py --config jobs/configs/twincap/several_small.yaml
"""

from __future__ import annotations

from cluster.training_command import train_command, with_cluster
from idc.systems.twincap.config import TwinCapJob

Job = with_cluster(TwinCapJob)


def main() -> None:
    train_command(Job, __doc__)


if __name__ == "__main__":
    main()
