"""Train the pair encoder (CLIP4IDC) on captioned pairs: it finds the captions of a pair and the pairs of a caption.

    python jobs/train_pair_encoder.py --config jobs/configs/vision/pair_encoder_demo.yaml pairs=data/demo/pairs
    python jobs/train_pair_encoder.py --config jobs/configs/vision/pair_encoder_clip4idc.yaml \\
        pairs=data/clevr_change/pairs clip=openai/clip-vit-base-patch32

A killed run goes on from its last checkpoint when the same command is given again. Writes <runs>/<name>/artifact, which
jobs/build_procedures.py takes as build.pair_encoder. Its score: R@1, 5, 10 both ways on held-out pairs, beside chance.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vision.pair_encoder.config import TrainPairEncoderJob


class Job(TrainPairEncoderJob):
    """A pair encoder, and where to train it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.vision.pair_encoder.task:train", args)


if __name__ == "__main__":
    main()
