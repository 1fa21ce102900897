"""Robustness: make corrupted and swapped sets, evaluate a captioner on each and on the clean pairs, write a table.

Each row has the baselines of the same set. They matter: under heavy noise a captioner that writes one sentence for all
pairs may lose nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from idc.captioning.sources import artifact_folder
from idc.data.config import CorruptJob
from idc.data.pipeline import Runner
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import finished_evaluation
from idc.evaluation.job import run_evaluation as evaluate
from idc.evaluation.record import Evaluation
from idc.metrics.change_maps import MODEL, PIXELS
from idc.report.config import RobustnessJob
from idc.report.leaderboard.scored_runs import CLEAN, ROBUSTNESS
from idc.report.page import Table
from idc.report.run_page import environment
from idc.robustness.build import open_corruption
from idc.util.atomic import write_text
from idc.util.units import score_text

COLUMNS = {"B": "BLEU-4", "M": "METEOR", "R": "ROUGE-L", "C": "CIDEr"}
"""NAMC's columns."""


class Condition(NamedTuple):
    """A row: what was done to the pairs, in words, and the evaluation on them."""

    what: str
    evaluation: Evaluation


def run_robustness(job: RobustnessJob, runner: Runner, overwrite: bool = False) -> Path:
    """Do what is not done yet, and write the table. Returns its path.

    Args:
        runner: runs the chunks of a set.

    Raises:
        ValueError: an input is unusable, or a folder holds other results and ``overwrite`` is off.
    """
    job = job.model_copy(update={"artifact": artifact_folder(job.artifact, job.evaluate.objects)})
    conditions = [Condition(CLEAN, _evaluation(job, CLEAN, job.pairs, overwrite))]
    for corrupt_job in _perturbed(job):
        name = Path(corrupt_job.out).name
        folder, source, stages = open_corruption(corrupt_job, overwrite)
        runner(folder, source, stages, max_reject_share=0.0, name=name)
        what = f"{str(corrupt_job.kind).replace('_', ' ')}, severity {corrupt_job.severity}"
        what = "before and after swapped" if corrupt_job.kind == "swap_order" else what
        conditions.append(Condition(what, _evaluation(job, name, corrupt_job.out, overwrite)))
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


def _evaluation(job: RobustnessJob, name: str, pairs: str, overwrite: bool) -> Evaluation:
    settings: dict[str, Any] = {
        "out": f"{job.out}/{name}", "pairs": pairs, "artifact": job.artifact, "split": job.split,
        "change_maps": job.change_maps,
    }  # fmt: skip
    if job.trained_baseline is not None:
        settings["trained_baseline"] = f"{job.trained_baseline}/{name}"
    evaluate_job = EvaluateJob(**job.evaluate.model_dump(exclude_unset=True), **settings)
    evaluation = None if overwrite else finished_evaluation(evaluate_job)
    return evaluation or evaluate(evaluate_job, overwrite=overwrite)


def write_robustness(folder: Path, artifact: str, conditions: Sequence[Condition]) -> Path:
    """Write ``table.md`` and ``robustness.json``; the clean pairs come first. Returns the table's path."""
    rows = {what: _row(evaluation, conditions[0].evaluation) for what, evaluation in conditions}
    record = {"artifact": artifact, "rows": rows, "environment": environment()}
    write_text(folder / ROBUSTNESS, json.dumps(record, indent=1) + "\n")
    table = Table(["", *next(iter(rows.values()))], [[what, *row.values()] for what, row in rows.items()])
    return write_text(folder / "table.md", table.markdown() + "\n")


def _row(evaluation: Evaluation, clean: Evaluation) -> dict[str, str]:
    """Column -> text, scores times 100; the columns are those of the clean pairs."""
    row = {name: score_text(evaluation.scores[metric]) if metric in evaluation.scores else ""
           for name, metric in COLUMNS.items()}  # fmt: skip
    changed, unchanged = (of.scores.get("CIDEr", math.nan) for of in (evaluation, clean))
    row["C, share of clean"] = f"{changed / unchanged:.0%}" if unchanged and not math.isnan(changed) else ""
    for name in clean.baselines:
        other = evaluation.baselines.get(name)
        row[f"C, {name}"] = score_text(other.scores["CIDEr"]) if other and "CIDEr" in other.scores else ""
    types, claims, maps = evaluation.types, evaluation.hallucination, evaluation.change_maps
    row["right change type"] = f"{types.accuracy:.1%} of {types.pairs}" if types is not None else ""
    if clean.hallucination is not None:
        row["right object"] = f"{claims.object.rate:.1%}" if claims is not None else ""
    for way in (MODEL, PIXELS) if clean.change_maps is not None else ():
        row[f"map AP, {way}"] = f"{100 * maps.scores[way]['AP']:.1f}" if maps is not None else ""
    return row | {"distinct captions": str(evaluation.distinct_captions), "pairs": str(evaluation.pairs)}
