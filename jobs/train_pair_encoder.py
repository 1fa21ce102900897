"""Train the pair encoder (CLIP4IDC), which retrieves captions of pairs and pairs of captions.

    python jobs/train_pair_encoder.py --config jobs/configs/vision/pair_encoder_demo.yaml pairs=data/demo/pairs
    python jobs/train_pair_encoder.py --config jobs/configs/vision/pair_encoder_clip4idc.yaml \\
        pairs=data/clevr_change/pairs clip=openai/clip-vit-base-patch32

Scores: R@1, 5, 10 in both directions on held-out pairs, with the chance level. ProCap takes <runs>/<name>/artifact as
build.pair_encoder.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.vision.pair_encoder.config import TrainPairEncoderJob


def main() -> None:
    train_command(TrainPairEncoderJob, __doc__)


if __name__ == "__main__":
    main()
