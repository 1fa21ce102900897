"""Caption a split of a folder of pairs and score it beside the best constant caption and the nearest training pair.

    python jobs/evaluate.py artifact=runs/captioner/artifact pairs=data/pairs split=test out=runs/captioner/evaluation
    python jobs/evaluate.py predictions=captions.jsonl pairs=data/pairs out=runs/other/evaluation

Runs in this process, with Ray or without. The same inputs and settings a second time: nothing is done.
"""

from __future__ import annotations

from idc.config import cli, refuse
from idc.metrics.config import EvaluateJob


def main() -> None:
    args = cli(EvaluateJob, __doc__)
    from idc.metrics.evaluate import table
    from idc.metrics.run import finished, run

    job = args.config
    try:
        evaluation = None if args.overwrite else finished(job)
    except ValueError as error:
        refuse([str(error)])
    if evaluation is not None:
        print(f"done before: {job.out}")
    else:
        captioner = None
        if job.artifact is not None:
            from idc.systems import load
            from idc.training.artifact import read_artifact

            captioner = load(read_artifact(job.artifact).system).load_captioner(job.artifact)
        evaluation = run(job, captioner)
    print(table(evaluation))


if __name__ == "__main__":
    main()
