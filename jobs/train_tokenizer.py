"""Train the image tokenizer (VQGAN) on the images of a folder of pairs.

    python jobs/train_tokenizer.py --config jobs/configs/vision/tokenizer_demo.yaml pairs=data/demo/pairs
    ray job submit --working-dir . -- python jobs/train_tokenizer.py \\
        --config jobs/configs/vision/tokenizer_paper.yaml pairs=s3://bucket/pairs runs=/shared/runs

The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, an input of
jobs/build_procedures.py.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vision.tokenizer.config import TrainTokenizerJob


class Job(TrainTokenizerJob):
    """An image tokenizer, and the cluster to train it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.vision.tokenizer.task:train", args)


if __name__ == "__main__":
    main()
