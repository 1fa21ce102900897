"""A metric of each pair in the evaluations of two settings, by their seeds: what an effect is computed from."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from idc.data.store import iter_rows
from idc.evaluation.record import EVALUATION, Baseline, Evaluation, ScoredCaption, load_evaluation, load_predictions
from idc.evaluation.rendered_truth import rendered_truth
from idc.metrics.difference_lists import F1
from idc.metrics.hallucination import Truth, hallucination
from idc.report.paper_claims.config import SEED_MARK, ClaimMetric
from idc.schema import NO_CHANGE


class MissingError(Exception):
    """What a test needs is not there.

    Args:
        reason: in words, without names of files.
        detail: which file, sweep or row it is.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def evaluations_by_seed(pattern: str) -> dict[str, Path]:
    """Seed -> folder of an evaluation: those whose path has a number for the mark; without a mark the folder itself,
    by the seed ""."""
    before, mark, after = pattern.partition(SEED_MARK)
    if not mark:
        return {"": Path(pattern)} if (Path(pattern) / EVALUATION).exists() else {}
    paths = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}")
    folders = {path[len(before) : len(path) - len(after)]: Path(path) for path in paths}
    return {seed: path for seed, path in sorted(folders.items()) if seed.isdigit() and (path / EVALUATION).exists()}


def load_records(rows: Sequence[Mapping[str, Path]], seeds: Sequence[str]) -> list[list[Evaluation]]:
    """The evaluations of each row by these seeds.

    Raises:
        MissingError: as :func:`check_comparable`.
    """
    records = [[load_evaluation(row[seed]) for seed in seeds] for row in rows]
    check_comparable([record for of_row in records for record in of_row])
    return records


def check_comparable(records: Sequence[Evaluation]) -> None:
    """Whether evaluations may stand in one table.

    Raises:
        MissingError: they are of other data or by other rules.
    """
    for rule in ("name", "data", "references", "CIDEr"):
        if any(record.protocol.get(rule) != records[0].protocol.get(rule) for record in records):
            raise MissingError(f"the rows were evaluated by other rules or on other data ({rule})")


def values_of_rows(
    metric: ClaimMetric, records: Sequence[Sequence[Evaluation]], rows: Sequence[Mapping[str, Path]],
    seeds: Sequence[str],
) -> list[np.ndarray]:  # fmt: skip
    """The metric of each seed and pair (S, N), an array for each row; the pairs are the same, in the same order.

    Raises:
        MissingError: pairs are missing, or what the metric needs.
    """
    values = [[_values(metric, record, row[seed]) for record, seed in zip(of_row, seeds, strict=True)]
              for of_row, row in zip(records, rows, strict=True)]  # fmt: skip
    pairs = list(values[0][0])
    if len(pairs) < 2:
        raise MissingError(f"{len(pairs)} of the evaluated pairs have the metric")
    if any(of_seed.keys() != set(pairs) for of_row in values for of_seed in of_row):
        raise MissingError("the rows were evaluated on different pairs")
    return [np.array([[of_seed[pair] for pair in pairs] for of_seed in of_row], float) for of_row in values]


def value_of_baseline(metric: ClaimMetric, baseline: Baseline | None) -> float | None:
    """The metric's mean over the pairs; None if it was not evaluated."""
    if baseline is None:
        return None
    match metric:
        case "CIDEr":
            return baseline.scores.get("CIDEr")
        case "right_type":
            return baseline.types.accuracy if baseline.types is not None else None
        case "right_object":
            return baseline.hallucination.object.rate if baseline.hallucination is not None else None
        case "difference_f1":
            return baseline.differences.f1 if baseline.differences is not None else None


def _values(metric: ClaimMetric, record: Evaluation, folder: Path) -> dict[str, float]:
    """The metric of each pair that has it."""
    rows = load_predictions(folder)
    if metric == "CIDEr":
        return {row.pair_id: row.scores["CIDEr"] for row in rows if "CIDEr" in row.scores}
    if metric == "right_type":
        return {row.pair_id: float(row.named_type == row.change_type) for row in rows if row.change_type is not None}
    if metric == "difference_f1":
        if any(row.differences is None for row in rows):
            raise MissingError("the true lists of differences are not known for every pair")
        return {row.pair_id: row.differences.scores[F1] for row in rows if row.differences is not None}
    return _right_objects(rows, _truths(str(record.protocol.get("pairs")), record.split))


def _right_objects(rows: Sequence[ScoredCaption], truths: Mapping[str, Truth]) -> dict[str, float]:
    """Whether the caption of each changed pair names the right object."""
    changed = {name: truth for name, truth in truths.items() if truth.kind != NO_CHANGE}
    return {
        row.pair_id: hallucination([(row.caption, changed[row.pair_id])]).object.rate
        for row in rows
        if row.pair_id in changed
    }


@lru_cache
def _truths(pairs: str, split: str) -> Mapping[str, Truth]:
    """The single change or none of each pair."""
    if not Path(pairs).is_dir():
        raise MissingError("right_object needs the pairs", f"{pairs} does not exist")
    truth = rendered_truth(iter_rows(pairs, ["pair_id", "change_type", "source", "meta"], split))
    if truth is None or not truth.changes:
        raise MissingError("right_object needs rendered pairs of a single change", f"{pairs} has none")
    return truth.changes
