"""Train the image tokenizer (VQGAN) of ProCap and NAMC on the images of a folder of pairs.

    python jobs/train_tokenizer.py --config jobs/configs/vision/tokenizer_demo.yaml pairs=data/demo/pairs
    ray job submit --working-dir . -- python jobs/train_tokenizer.py \\
        --config jobs/configs/vision/tokenizer_paper.yaml pairs=s3://bucket/pairs runs=/shared/runs
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.vision.tokenizer.config import TrainTokenizerJob


def main() -> None:
    train_command(TrainTokenizerJob, __doc__)


if __name__ == "__main__":
    main()
