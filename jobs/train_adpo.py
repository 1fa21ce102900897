"""Train ADPO: a vision-language model tuned by captions, then by preferences over retrieved negatives.

    python jobs/train_adpo.py objective=sft pairs=data/mine/pairs base.source=Qwen/Qwen2.5-VL-3B-Instruct
    python jobs/train_adpo.py pairs=data/mine/pairs base.source=merged retriever.encoder=runs/pair-encoder/artifact
    ray job submit --working-dir . -- python jobs/train_adpo.py --config jobs/configs/adpo/paper.yaml

objective=dpo and objective=adpo start from a tuned model: jobs/merge_vlm.py merges the artifact of objective=sft into a
folder, which is their base.source.
"""

from __future__ import annotations

from cluster.training_command import train_command, with_cluster
from idc.systems.adpo.config import AdpoJob

Job = with_cluster(AdpoJob)


def main() -> None:
    train_command(Job, "idc.systems.adpo.task:train", __doc__)


if __name__ == "__main__":
    main()
