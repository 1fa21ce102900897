"""The robustness job: make the sets, evaluate the captioner on each, write the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idc.data.config import CorruptJob
from idc.data.pipeline import Runner
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation
from idc.evaluation.job import run_evaluation as evaluate
from idc.report.config import RobustnessJob
from idc.report.leaderboard.scored_runs import CLEAN
from idc.report.robustness.robustness_table import Condition, label, write_robustness
from idc.robustness.build import open_corruption


def run_robustness(job: RobustnessJob, runner: Runner, overwrite: bool = False) -> Path:
    """Do what is not done yet, and write the table. Returns its path.

    Args:
        runner: runs the chunks of a set.

    Raises:
        ValueError: an input is unusable, or a folder holds other results and ``overwrite`` is off.
    """
    conditions = [_condition(job, CLEAN, "clean", job.pairs, overwrite)]
    for corrupt_job in _perturbed(job):
        name = Path(corrupt_job.out).name
        folder, source, stages = open_corruption(corrupt_job, overwrite)
        runner(folder, source, stages, max_reject_share=0.0, name=name)
        conditions.append(_condition(job, name, label(corrupt_job), corrupt_job.out, overwrite))
    return write_robustness(Path(job.out), job.artifact, conditions)


def _perturbed(job: RobustnessJob) -> Iterator[CorruptJob]:
    """The sets that the captioner is evaluated on; if there are baselines, with the clean training split for them."""
    compared = bool(job.evaluate.constant_candidates or job.evaluate.nearest_train_pairs)
    common: dict[str, Any] = {
        "pairs": job.pairs, "splits": (job.split,), "keep_others": compared, "seed": job.seed,
    }  # fmt: skip
    for kind, severities in job.corruptions.items():
        which = {"which": "after"} if kind == "shift" else {}
        for severity in severities:
            yield CorruptJob(out=f"{job.sets}/{kind}-{severity}", kind=kind, severity=severity, **which, **common)
    if job.swap:
        yield CorruptJob(out=f"{job.sets}/swap_order", kind="swap_order", **common)


def _condition(job: RobustnessJob, name: str, what: str, pairs: str, overwrite: bool) -> Condition:
    """The evaluation of the artifact on a set."""
    settings: dict[str, Any] = {
        "out": f"{job.out}/{name}",
        "pairs": pairs,
        "artifact": job.artifact,
        "split": job.split,
        "change_maps": job.change_maps,
    }
    if job.trained_baseline is not None:
        settings["trained_baseline"] = f"{job.trained_baseline}/{name}"
    evaluate_job = EvaluateJob(**job.evaluate.model_dump(exclude_unset=True), **settings)
    evaluation = None if overwrite else finished_evaluation(evaluate_job)
    if evaluation is None:
        evaluation = evaluate(evaluate_job, overwrite=overwrite)
    return Condition(name, what, evaluation)
