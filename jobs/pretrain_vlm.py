"""Make a small base model for the vision-language systems: it learns to see on rendered scenes, from random weights.

    python jobs/pretrain_vlm.py --config jobs/configs/vlm/pretrain_small.yaml pairs=data/demo/pairs
    python jobs/pretrain_vlm.py --local --config jobs/configs/vlm/pretrain_small.yaml pairs=data/demo/pairs

The pairs are those of jobs/render.py. The same command resumes a killed run from its last checkpoint. Writes
<runs>/<name>/artifact, an ordinary folder of a transformers model for `base.source` of the vision-language systems,
and <runs>/<name>/report.html with the curves.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.vlm.pretrain_config import PretrainVlmJob


class Job(PretrainVlmJob):
    """The pre-training, and the cluster to run it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.job import train_job

    train_job("idc.vlm.pretrain:train", args)


if __name__ == "__main__":
    main()
