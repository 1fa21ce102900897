"""Caption a split of a folder of pairs and score it beside the best constant caption and the nearest training pair.

    python jobs/evaluate.py artifact=runs/captioner/artifact pairs=data/pairs split=test out=runs/captioner/evaluation
    python jobs/evaluate.py artifact=runs/captioner/artifact pairs=data/pairs out=runs/captioner/evaluation actors=4
    python jobs/evaluate.py predictions=captions.jsonl pairs=data/pairs out=runs/other/evaluation
    python jobs/evaluate.py predictions=results.json references=total_change_captions_reformat.json out=runs/other
    python jobs/evaluate.py predictions=captions.jsonl pairs=data/levir protocol=levir_ids out=runs/levir

Runs in this process; with actors=N the captioning runs on N Ray actors (not with --local). Captions are gathered and
scored once, so the scores are the same. A killed captioning goes on where it was. The same inputs and settings a second
time: nothing is done. What cannot be scored (Java missing, a damaged file, an empty caption, an id that only one side
has) is named, status 1.
"""

from __future__ import annotations

from functools import partial

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
    from idc.evaluation.job import finished, run
    from idc.evaluation.table import table
    from idc.metrics.java import JavaError
    from idc.systems import load_captioner

    job = args.config
    try:
        evaluation = None if args.overwrite else finished(job)
    except (ValueError, OSError) as error:
        refuse([str(error)])
    if evaluation is not None:
        print(f"done before: {job.out}")
    else:
        device = "cuda" if job.gpus_per_actor else "cpu"
        captioner = partial(load_captioner, job.artifact, device) if job.artifact is not None else None
        chunks = partial(run_chunks, args.local or job.actors == 1, job.cluster)
        try:
            evaluation = run(job, captioner, chunks, args.overwrite)
        except (ValueError, OSError, JavaError) as error:
            raise SystemExit(f"evaluate: {error}") from None
    print(table(evaluation))


if __name__ == "__main__":
    main()
