"""Train TwinCap, the small difference captioner of this project.

python jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml
python jobs/train_twincap.py --config jobs/configs/twincap/several_small.yaml
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.twincap.config import TwinCapJob


def main() -> None:
    train_command(TwinCapJob, __doc__)


if __name__ == "__main__":
    main()
