"""ProCap stage 1, explicit procedure modeling: train the procedure encoder by masked reconstruction.

    python jobs/pretrain_procap.py --config jobs/configs/procap/pretrain_demo.yaml
    ray job submit --working-dir . -- python jobs/pretrain_procap.py --config jobs/configs/procap/pretrain_demo.yaml

The procedures are built first if they do not exist. The same command resumes a killed run from its last checkpoint.
Writes <runs>/<name>/artifact.
"""

from __future__ import annotations

from cluster.training_command import train_command, with_cluster
from idc.systems.procap.config import PretrainJob

Job = with_cluster(PretrainJob)


def main() -> None:
    build = ("procedures", "idc.systems.procap.procedures.build:build")
    train_command(Job, "idc.systems.procap.task:pretrain", __doc__, build)


if __name__ == "__main__":
    main()
