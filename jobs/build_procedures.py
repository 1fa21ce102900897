"""Build the procedures of a folder of pairs: frames between, tokens, features, confidence, key frames, caption ids.

    python jobs/build_procedures.py --config jobs/configs/procap/procedures_demo.yaml procedures=data/demo/procedures \\
        build.pairs=data/demo/pairs build.tokenizer=runs/demo/tokenizer/artifact
    python jobs/build_procedures.py procedures=data/mine build.pairs=data/pairs build.tokenizer=runs/tokenizer/artifact

With --local, `build.actors` processes of this machine build them. The same command resumes a killed build; a complete
one is not changed.
"""

from __future__ import annotations

from functools import partial

from cluster.config import ClusterConfig
from idc.config import cli
from idc.next_command import after_procedures
from idc.systems.procap.procedures.config import BuildProceduresJob


class Job(BuildProceduresJob):
    """Procedures, and the cluster to build them on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.systems.procap.procedures.build import build

    job = args.config
    try:
        run = partial(run_chunks, args.local, job.cluster, processes=job.build.actors, job=job)
        manifest = build(job.build, job.procedures, run, overwrite=args.overwrite)
    except ValueError as error:
        raise SystemExit(f"build_procedures: {error}") from None
    print(
        f"{job.procedures}: {manifest.num_rows} procedures {manifest.rows_by_split}, "
        f"rejected: {manifest.num_rejected} {manifest.reject_reasons or ''}".rstrip()
    )
    print(f"next: {after_procedures(job.procedures)}")


if __name__ == "__main__":
    main()
