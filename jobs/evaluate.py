"""Caption a split and score it next to baselines; or put questions, judge, make a page.

    python jobs/evaluate.py artifact=runs/captioner/artifact pairs=data/pairs split=test out=runs/captioner/evaluation
    python jobs/evaluate.py artifact=hf:Qwen/Qwen2.5-VL-3B-Instruct device=cuda pairs=data/pairs out=runs/qwen
    python jobs/evaluate.py predictions=captions.jsonl pairs=data/levir protocol=levir_ids out=runs/levir
    python jobs/evaluate.py predictions=results.json references=total_change_captions_reformat.json out=runs/other
    python jobs/evaluate.py instructions=data/changeimti-test artifact=runs/changevg/artifact out=runs/changevg/answers
    python jobs/evaluate.py answers=answers.jsonl out=runs/answers
    python jobs/evaluate.py judge=Qwen/Qwen3-8B url=http://localhost:8000/v1 evaluation=runs/captioner/evaluation \\
        out=runs/captioner/judge
    python jobs/evaluate.py checklist=data/vidic predictions=captions.jsonl out=runs/vidic
    python jobs/evaluate.py evaluations=[runs/captioner/evaluation] "compare.ProCap=[runs/other/evaluation]" \\
        pairs=data/pairs out=runs/report.html
    python jobs/evaluate.py instructions= --help     the settings of questions; answers=, judge=, evaluations= likewise

The baselines are the best constant caption and the caption of the nearest training pair. With actors=N the captioning
runs on N Ray actors. The page of the result is OUT/report.html. The same command continues an interrupted captioning;
if all is done, it does nothing.

instructions: the questions of a data set are put to the captioner: yes or no, counts, positions. Writes
OUT/answers.jsonl and OUT/answers.json; an answer that no rule can parse counts as wrong.

answers: scores lines such as {"type": "binary", "answer": "Yes", "prediction": "yes."}; type count and location also
have "class": "road", other types are scored by equal texts.

checklist: captions against the yes and no questions of their pairs; without url= and judge= only those that say that
nothing changed.

judge: a language model says how much of the reference the captions and baselines of an evaluation cover. The key of the
endpoint is read from $OPENAI_API_KEY (api_key_variable=OTHER).

evaluations: the page OUT shows evaluations of one captioner, one per seed, next to those of others (compare.NAME).
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.config import ClusterConfig
from idc.config import Cli, command, refuse, run_form
from idc.evaluation.config import AnswersJob, AskJob, EvaluateJob
from idc.util.command_forms import Form

if TYPE_CHECKING:
    from idc.evaluation.checklist import ChecklistJob
    from idc.evaluation.judge import JudgeJob
    from idc.report.config import ReportJob


class Job(EvaluateJob):
    """An evaluation, and where its captioning runs."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (with actors above 1, not with --local)."""


def questions_command(args: Cli[AskJob]) -> None:
    from idc.evaluation.answers import answers_table, ask_questions

    for title, result in zip(("single questions", "in dialogues"), ask_questions(args.config), strict=True):
        if result is not None:
            print(f"{title}: {answers_table(result)}")


def answers_command(args: Cli[AnswersJob]) -> None:
    from idc.evaluation.answers import answers_table, run_answers

    print(answers_table(run_answers(args.config)))


def judge_command(args: Cli[JudgeJob]) -> None:
    from idc.endpoint.chat_endpoint import EndpointError
    from idc.evaluation.judge import ANSWERS, judgement_table, run_judge

    try:
        result = run_judge(args.config)
    except EndpointError as error:
        raise SystemExit(
            f"{error}\nAnswers so far are in {Path(args.config.out) / ANSWERS}; the same command continues."
        ) from None
    print(judgement_table(result))
    for pair, reply in list(result.unreadable.items())[:10]:
        print(f"no score in the answer for {pair}: {reply[:200]!r}", file=sys.stderr)
    if result.unreadable:
        raise SystemExit(f"{len(result.unreadable)} answers without a score; the same command requests them again")


def checklist_command(args: Cli[ChecklistJob]) -> None:
    from idc.endpoint.chat_endpoint import EndpointError
    from idc.evaluation.checklist import checklist_table, run_checklist

    try:
        result = run_checklist(args.config)
    except EndpointError as error:
        raise SystemExit(f"{error}\nThe same command continues.") from None
    print(checklist_table(result))


def page_command(args: Cli[ReportJob]) -> None:
    from idc.report.run_page import collect
    from idc.util.atomic import write_text

    path = write_text(Path(args.config.out), collect(args.config).html())
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB)")


def captions_command(args: Cli[Job]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.captioning.sources import artifact_folder
    from idc.evaluation.job import finished_evaluation, run_evaluation
    from idc.evaluation.record import evaluation_table
    from idc.next_command import after_evaluation
    from idc.report.run_page import evaluation_page
    from idc.training.artifact import CALIBRATION

    try:
        if job.artifact is not None:
            job = job.model_copy(update={"artifact": artifact_folder(job.artifact, job.objects)})
        evaluation = None if args.overwrite else finished_evaluation(job)
    except (ValueError, OSError) as error:
        refuse([str(error)])
    if evaluation is not None:
        print(f"done before: {job.out}")
    else:
        runner = partial(run_chunks, args.local or job.actors == 1, job.cluster, job=job)
        evaluation = run_evaluation(job, None, runner, args.overwrite)
    print(evaluation_table(evaluation))
    if job.pairs is not None and (page := evaluation_page(job.out, job.pairs)) is not None:
        print(f"page: {page}")
    calibrated = job.artifact is not None and (Path(job.artifact) / CALIBRATION).exists()
    if following := after_evaluation(job.artifact, job.pairs, calibrated, job):
        print(f"next: {following}")


@command
def main() -> None:
    plain = partial(Form, local=False, overwrite=False)
    run_form(
        __doc__,
        {
            captions_command: Form(Job),
            questions_command: plain(AskJob, "instructions"),
            answers_command: plain(AnswersJob, "answers"),
            checklist_command: plain("idc.evaluation.checklist:ChecklistJob", "checklist"),
            judge_command: plain("idc.evaluation.judge:JudgeJob", "judge"),
            page_command: plain("idc.report.config:ReportJob", "evaluations"),
        },
    )


if __name__ == "__main__":
    main()
