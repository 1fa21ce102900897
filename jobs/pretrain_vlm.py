"""Make a small base model for the vision-language systems: it learns to see on rendered scenes, from random weights.

    python jobs/pretrain_vlm.py --config jobs/configs/vlm/pretrain_small.yaml pairs=data/demo/pairs
    python jobs/pretrain_vlm.py --local --config jobs/configs/vlm/pretrain_small.yaml pairs=data/demo/pairs

The pairs are those of jobs/render.py. The same command resumes a killed run from its last checkpoint. Writes
<runs>/<name>/artifact, an ordinary folder of a transformers model for `base.source` of the vision-language systems,
and <runs>/<name>/report.html with the curves.
"""

from __future__ import annotations

from cluster.training_command import train_command, with_cluster
from idc.vlm.pretrain_config import PretrainVlmJob

Job = with_cluster(PretrainVlmJob)


def main() -> None:
    train_command(Job, "idc.vlm.pretrain:train", __doc__)


if __name__ == "__main__":
    main()
