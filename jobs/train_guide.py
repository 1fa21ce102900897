"""Train ChangeVG's guide, which maps and captions changes of roads and buildings, on pairs with masks.

python jobs/train_guide.py --config jobs/configs/changevg/guide_small.yaml
ray job submit --working-dir . -- python jobs/train_guide.py --config jobs/configs/changevg/guide_paper.yaml
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.changevg.config import GuideJob


def main() -> None:
    train_command(GuideJob, __doc__)


if __name__ == "__main__":
    main()
