"""Train ADPO: a vision-language model that was tuned by captions, by preferences over retrieved negatives.

    python jobs/train_adpo.py pairs=data/mine/pairs base.source=merged tune.lora.dropout=0 \\
        retriever.encoder=runs/pair-encoder/artifact
    ray job submit --working-dir . -- python jobs/train_adpo.py --config jobs/configs/adpo/paper.yaml

base.source is the folder into which jobs/merge_vlm.py has merged an artifact of jobs/finetune_sft.py.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.systems.adpo.config import AdpoJob


def main() -> None:
    train_command(AdpoJob, __doc__)


if __name__ == "__main__":
    main()
