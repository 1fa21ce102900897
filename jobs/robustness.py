"""The robustness table of a captioner, as NAMC's table 10: clean, words replaced, images corrupted, order swapped.

    python jobs/robustness.py --config jobs/configs/robustness/demo.yaml
    python jobs/robustness.py artifact=runs/captioner/artifact pairs=data/pairs sets=data/robust out=runs/robust --local

The first takes what `make demo` left. The sets are made first (as jobs/corrupt.py does) and captioned in this process;
the word rows are a sweep (as jobs/sweep.py runs it). What is done already is not done again. Writes <out>/report.html,
table.md and robustness.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from idc.config import Cli, cli, load, missing_inputs
from idc.data.config import CorruptJob
from idc.evaluation.config import EvaluateJob
from idc.report.config import RobustnessJob


class Job(RobustnessJob):
    """The robustness table, and where to run it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from idc.report.robustness import Condition, label, write_robustness

    job = args.config
    try:
        for one in noised(job):
            make(one, args)
        conditions = [Condition("clean", "clean", *evaluated(job, "clean", job.pairs, args.overwrite))]
        for one in changed(job):
            make(one, args)
            found = evaluated(job, Path(one.out).name, one.out, args.overwrite)
            conditions.append(Condition(Path(one.out).name, label(one), *found))
        result = trained(job, args) if job.sweep is not None else None
    except ValueError as error:
        raise SystemExit(f"robustness: {error}") from None
    page = write_robustness(Path(job.out), job.artifact, conditions, result)
    print(f"{(page.parent / 'table.md').read_text(encoding='utf-8')}\n{page}")
    if result is not None and result.failed:
        raise SystemExit(f"robustness: {len(result.failed)} of {result.trials} trainings have no result")


def changed(job: Job) -> Iterator[CorruptJob]:
    """The sets that the captioner is evaluated on; their training split is clean, for the baselines."""
    common: dict[str, Any] = {"pairs": job.pairs, "splits": (job.split,), "seed": job.seed}
    for kind in job.corruptions:
        out = f"{job.sets}/{kind}-{job.severity}"
        yield CorruptJob(out=out, kind=kind, severity=job.severity, **common)
    if job.swap:
        yield CorruptJob(out=f"{job.sets}/swap_order", kind="swap_order", **common)


def noised(job: Job) -> Iterator[CorruptJob]:
    """The procedures whose training captions are noised."""
    for share in job.shares if job.procedures is not None else ():
        out = f"{job.sets}/words-{100 * share:g}"
        yield CorruptJob(pairs=job.procedures or "", out=out, kind="replace_words", share=share, seed=job.seed)


def make(one: CorruptJob, args: Cli[Job]) -> None:
    """A robustness set, if it is not there."""
    from cluster.session import run_chunks
    from idc.data.robustness.build import open_build

    folder, source, stages = open_build(one, args.overwrite)
    run_chunks(args.local, args.config.cluster, folder, source, stages, max_reject_share=0.0, name=Path(one.out).name)


def evaluated(job: Job, name: str, pairs: str, overwrite: bool) -> tuple[Any, Any]:
    """The evaluation of the artifact on a set, and a few of its pairs to show."""
    from idc.evaluation.job import finished, run
    from idc.evaluation.record import load_predictions
    from idc.report.collect import gallery, spread_over_types

    own = {"out": f"{job.out}/{name}", "pairs": pairs, "artifact": job.artifact, "split": job.split}
    one = EvaluateJob(**job.evaluate.model_dump(exclude_unset=True), **own)
    evaluation = None if overwrite else finished(one)
    if evaluation is None:
        evaluation = run(one, overwrite=overwrite)
    shown = spread_over_types(load_predictions(one.out), job.examples)
    return evaluation, list(gallery(shown, pairs, None).values())


def trained(job: Job, args: Cli[Job]) -> Any:
    """The sweep over noised captions."""
    from cluster.tune import sweep
    from idc.sweep.config import SweepJob

    words = load(SweepJob, job.sweep)
    if faults := missing_inputs(words):
        raise ValueError(f"{job.sweep}: {'; '.join(faults)}")
    return sweep(words, job.cluster, local=args.local, overwrite=args.overwrite)


if __name__ == "__main__":
    main()
