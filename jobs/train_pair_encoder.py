"""Train the pair encoder (CLIP4IDC) on captioned pairs: it retrieves the captions of a pair and the pairs of a caption.

    python jobs/train_pair_encoder.py --config jobs/configs/vision/pair_encoder_demo.yaml pairs=data/demo/pairs
    python jobs/train_pair_encoder.py --config jobs/configs/vision/pair_encoder_clip4idc.yaml \\
        pairs=data/clevr_change/pairs clip=openai/clip-vit-base-patch32

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, which
jobs/build_procedures.py takes as build.pair_encoder. Scores: R@1, 5, 10 in both directions on held-out pairs, with the
chance level.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vision.pair_encoder.config import TrainPairEncoderJob


class Job(TrainPairEncoderJob):
    """A pair encoder, and the cluster to train it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.vision.pair_encoder.task:train", args)


if __name__ == "__main__":
    main()
