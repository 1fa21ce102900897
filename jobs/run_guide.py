"""Store a guide's notes on every pair of a folder: its summary, and counts, positions and map of changed roads and
buildings.

    python jobs/run_guide.py pairs=data/levir-mci/pairs guide=runs/guide/artifact out=data/levir-mci/guided
    python jobs/run_guide.py pairs=data/levir-mci/pairs guide=runs/guide/artifact out=data/levir-mci/guided \\
        "cross_fitted=[runs/guide-fold-0/artifact,runs/guide-fold-1/artifact]"
    python jobs/finetune_changevg.py pairs=data/changeimti guide=runs/guide/artifact notes=data/levir-mci/guided \\
        base.source=Qwen/Qwen2.5-VL-7B-Instruct

The result is a folder of pairs with the notes in meta.guide. Where pairs have flags and masks the notes are scored,
each score next to a constant answer, and stored in guide.json. The same command continues a killed job. """

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.next_command import after_notes
from idc.systems.changevg.config import RunGuideJob


class Job(RunGuideJob):
    """Store a guide's notes, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.systems.changevg.notes_job import open_notes, score_notes, scores_table

    job = args.config
    try:
        folder, source, stages = open_notes(job, args.overwrite)
        manifest = run_chunks(
            args.local,
            job.cluster,
            folder,
            source,
            stages,
            max_reject_share=job.max_reject_share,
            job=job,
            name="pairs",
        )
        scores = score_notes(job.out, job.regions)
    except ValueError as error:
        raise SystemExit(f"run_guide: {error}") from None
    print(scores_table(scores))
    print(f"{job.out}: {manifest.num_rows} pairs {manifest.rows_by_split}, rejected: {manifest.num_rejected} "
          f"{manifest.reject_reasons}")  # fmt: skip
    print(f"next: {after_notes(job.out, job.guide)}")


if __name__ == "__main__":
    main()
