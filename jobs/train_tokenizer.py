"""Train the image tokenizer (VQGAN) on the images of a folder of pairs.

    python jobs/train_tokenizer.py --config jobs/configs/vision/tokenizer_demo.yaml pairs=data/demo/pairs
    ray job submit --working-dir . -- python jobs/train_tokenizer.py \\
        --config jobs/configs/vision/tokenizer_paper.yaml pairs=s3://bucket/pairs runs=/shared/runs

A killed run goes on from its last checkpoint when the same command is given again. Writes <runs>/<name>/artifact, which
jobs/build_procedures.py takes.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vision.tokenizer.config import TrainTokenizerJob


class Job(TrainTokenizerJob):
    """An image tokenizer, and where to train it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.vision.tokenizer.task:train", args)


if __name__ == "__main__":
    main()
