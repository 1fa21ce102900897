"""Caption a split of a folder of pairs and score it with two baselines: the best constant caption, and the caption of
the nearest training pair.

    python jobs/evaluate.py artifact=runs/captioner/artifact pairs=data/pairs split=test out=runs/captioner/evaluation
    python jobs/evaluate.py artifact=runs/captioner/artifact pairs=data/pairs out=runs/captioner/evaluation actors=4
    python jobs/evaluate.py artifact=hf:Qwen/Qwen2.5-VL-3B-Instruct device=cuda pairs=data/pairs out=runs/qwen
    python jobs/evaluate.py predictions=captions.jsonl pairs=data/pairs out=runs/other/evaluation
    python jobs/evaluate.py predictions=results.json references=total_change_captions_reformat.json out=runs/other
    python jobs/evaluate.py predictions=captions.jsonl pairs=data/levir protocol=levir_ids out=runs/levir

Runs in this process; with actors=N the captioning runs on N Ray actors (not with --local). Captions are gathered and
scored once, so the scores are the same. The page of the result is OUT/report.html. An interrupted captioning is
continued. Given again with the same inputs and
settings, the command does nothing. Errors (Java missing, a damaged file, an empty caption, an id that only one side
has) are named; the status is then 1.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cluster.config import ClusterConfig
from idc.config import cli, refuse
from idc.evaluation.config import EvaluateJob


class Job(EvaluateJob):
    """An evaluation, and where its captioning runs."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (with actors above 1, not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.captioning.loading import artifact_folder
    from idc.evaluation.job import caption_files, finished_evaluation, run_evaluation
    from idc.evaluation.table import evaluation_table
    from idc.metrics.java import JavaError
    from idc.next_command import after_evaluation
    from idc.report.collect import evaluation_page
    from idc.training.artifact import CALIBRATION

    job = args.config
    try:
        if job.artifact is not None:
            job = job.model_copy(update={"artifact": artifact_folder(job.artifact, job.objects)})
        files = caption_files(job)
        evaluation = None if args.overwrite else finished_evaluation(job, files)
    except (ValueError, OSError) as error:
        refuse([str(error)])
    if evaluation is not None:
        print(f"done before: {job.out}")
    else:
        runner = partial(run_chunks, args.local or job.actors == 1, job.cluster, job=job)
        try:
            evaluation = run_evaluation(job, None, runner, args.overwrite, files)
        except (ValueError, OSError, JavaError) as error:
            raise SystemExit(f"evaluate: {error}") from None
    print(evaluation_table(evaluation))
    if job.pairs is not None and (page := evaluation_page(job.out, job.pairs)) is not None:
        print(f"page: {page}")
    calibrated = job.artifact is not None and (Path(job.artifact) / CALIBRATION).exists()
    if command := after_evaluation(job.artifact, job.pairs, calibrated, job):
        print(f"next: {command}")


if __name__ == "__main__":
    main()
