"""Tune ChangeVG: a vision-language model on ChangeIMTI's questions, each with the notes of a guide that runs first.

    python jobs/finetune_changevg.py pairs=data/changeimti guide=runs/guide/artifact \\
        base.source=Qwen/Qwen2.5-VL-7B-Instruct
    python jobs/finetune_changevg.py --config jobs/configs/changevg/small.yaml notes=data/satellite/guided
    ray job submit --working-dir . -- python jobs/finetune_changevg.py --config jobs/configs/changevg/paper.yaml

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact with the guide in it, the
input of evaluation, captioning and serving.
"""

from __future__ import annotations

from cluster.training_command import train_command, with_cluster
from idc.systems.changevg.config import ChangeVgJob

Job = with_cluster(ChangeVgJob)


def main() -> None:
    train_command(Job, "idc.systems.changevg.tuning:train", __doc__)


if __name__ == "__main__":
    main()
