"""Tune ChangeVG, a vision-language model with the notes of a guide; with `out` score the guide alone.

    python jobs/finetune_changevg.py pairs=data/changeimti guide=runs/guide/artifact \\
        base.source=Qwen/Qwen2.5-VL-7B-Instruct
    ray job submit --working-dir . -- python jobs/finetune_changevg.py --config jobs/configs/changevg/paper.yaml
    python jobs/finetune_changevg.py pairs=data/levir-mci/pairs guide=runs/guide/artifact out=runs/guide/scores
    python jobs/finetune_changevg.py out= --help                   the settings of the scores

The artifact contains the guide. Its notes are summary, counts and positions of changed roads and buildings. Where pairs
have flags and masks, notes, class maps and constant answers are scored (guide.json), in this process.
"""

from __future__ import annotations

from cluster.training_command import train_command
from idc.config import Cli, command
from idc.next_command import after_notes
from idc.systems.changevg.config import ChangeVgJob, ScoreGuideJob
from idc.util.command_forms import Form


def score_command(args: Cli[ScoreGuideJob]) -> None:
    job = args.config
    from idc.systems.changevg.guide_scores import SCORES, score_guide, scores_table

    print(f"{scores_table(score_guide(job))}\n{job.out}/{SCORES}\nnext: {after_notes(job.guide)}")


@command
def main() -> None:
    scores = Form(ScoreGuideJob, "out", overwrite=False)
    train_command(ChangeVgJob, __doc__, others={score_command: scores})


if __name__ == "__main__":
    main()
