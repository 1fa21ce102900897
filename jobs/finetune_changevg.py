"""Tune ChangeVG, a vision-language model with the notes of a guide; with `out` store the notes alone.

    python jobs/finetune_changevg.py pairs=data/changeimti guide=runs/guide/artifact \\
        base.source=Qwen/Qwen2.5-VL-7B-Instruct
    ray job submit --working-dir . -- python jobs/finetune_changevg.py --config jobs/configs/changevg/paper.yaml
    python jobs/finetune_changevg.py pairs=data/levir-mci/pairs guide=runs/guide/artifact out=data/levir-mci/guided
    python jobs/finetune_changevg.py out= --help                   the settings of the notes

The artifact contains the guide. Notes are summary, counts, positions and map of changed roads and buildings, stored in
meta.guide of a folder of pairs; where pairs have flags and masks, the notes and constant answers are scored
(guide.json).
"""

from __future__ import annotations

from cluster.config import OnCluster
from cluster.training_command import train_command, with_cluster
from idc.config import cli, setting
from idc.next_command import after_notes
from idc.systems.changevg.config import ChangeVgJob, RunGuideJob

Job = with_cluster(ChangeVgJob)


class NotesJob(OnCluster, RunGuideJob):
    """Store a guide's notes, and the cluster to do it on."""


def store_notes() -> None:
    args = cli(NotesJob, __doc__)
    from cluster.session import run_chunks
    from idc.systems.changevg.notes_job import open_notes, score_notes, scores_table

    job, share = args.config, args.config.max_reject_share
    folder, source, stages = open_notes(job, args.overwrite)
    manifest = run_chunks(
        args.local, job.cluster, folder, source, stages, max_reject_share=share, job=job, name="pairs"
    )
    print(scores_table(score_notes(job.out, job.regions)))
    print(f"{job.out}: {manifest.num_rows} pairs {manifest.rows_by_split}, rejected: {manifest.num_rejected} "
          f"{manifest.reject_reasons}")  # fmt: skip
    print(f"next: {after_notes(job.guide)}")


def main() -> None:
    if setting("out") is None:
        train_command(Job, "idc.systems.changevg.tuning:train", __doc__)
        return
    try:
        store_notes()
    except ValueError as error:
        raise SystemExit(f"finetune_changevg: {error}") from None


if __name__ == "__main__":
    main()
