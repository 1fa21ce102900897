"""ProCap stage 1: train the procedure encoder; with `only` build the procedures.

    python jobs/pretrain_procap.py --config jobs/configs/procap/pretrain_demo.yaml
    ray job submit --working-dir . -- python jobs/pretrain_procap.py --config jobs/configs/procap/pretrain_demo.yaml
    python jobs/pretrain_procap.py only=procedures --config jobs/configs/procap/procedures_demo.yaml \\
        procedures=data/demo/procedures build.pairs=data/demo/pairs build.tokenizer=runs/demo/tokenizer/artifact
    python jobs/pretrain_procap.py only=procedures --help        the settings of the procedures

Procedures are the frames between a pair's images, with tokens, features, confidence, key frames and caption ids; they
are built first if they do not exist. The same command continues a killed build.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cluster.config import OnCluster
from cluster.training_command import train_command
from idc.config import Cli, command
from idc.next_command import after_procedures
from idc.systems.procap.config import PretrainJob
from idc.systems.procap.procedures.config import BuildProceduresJob
from idc.util.command_forms import Form


class ProceduresJob(OnCluster, BuildProceduresJob):
    """Procedures, and the cluster to build them on."""

    only: Literal["procedures"]
    """Build the procedures and stop."""


def procedures_command(args: Cli[ProceduresJob]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.systems.procap.procedures.build import build

    run = partial(run_chunks, args.local, job.cluster, processes=job.build.actors, job=job)
    manifest = build(job.build, job.procedures, run, overwrite=args.overwrite)
    print(
        f"{job.procedures}: {manifest.num_rows} procedures {manifest.rows_by_split}, "
        f"rejected: {manifest.num_rejected} {manifest.reject_reasons or ''}".rstrip()
    )
    print(f"next: {after_procedures(job.procedures)}")


@command
def main() -> None:
    procedures = ("procedures", "idc.systems.procap.procedures.build:build")
    train_command(PretrainJob, __doc__, procedures, {procedures_command: Form(ProceduresJob, "only")})


if __name__ == "__main__":
    main()
