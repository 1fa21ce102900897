"""Put a guide's notes before the first question of every dialogue about a pair, for the tuning of any model. ChangeVG's
own (jobs/finetune_changevg.py) does so itself.

    python jobs/quote_guide.py instructions=data/changeimti pairs=data/levir-mci/guided out=data/changeimti-guided
    python jobs/quote_guide.py instructions=data/changeimti pairs=data/levir-mci/guided out=data/changeimti-summary \\
        prompt.regions=false
    python jobs/finetune_sft.py pairs=data/changeimti-guided base.source=Qwen/Qwen2.5-VL-7B-Instruct name=changevg

The result is a folder of instructions, which the tuning of any vision-language model takes.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.next_command import after_changeimti
from idc.systems.changevg.config import GuideQuestionsJob


class Job(GuideQuestionsJob):
    """Quote a guide's notes, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.systems.changevg.notes_job import open_questions

    job = args.config
    try:
        folder, source, stages = open_questions(job, args.overwrite)
        manifest = run_chunks(
            args.local, job.cluster, folder, source, stages, max_reject_share=0.0, job=job, name="rows"
        )
    except ValueError as error:
        raise SystemExit(f"quote_guide: {error}") from None
    print(f"{job.out}: {manifest.num_rows} rows {manifest.rows_by_split}")
    print(f"next: {after_changeimti(job.out)}")


if __name__ == "__main__":
    main()
