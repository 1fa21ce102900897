"""The effect of a sweep's row against its control row, of metrics that are means over the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from idc.data.schema import NO_CHANGE
from idc.data.store import iter_rows
from idc.evaluation.record import load_evaluation, load_predictions
from idc.evaluation.rendered_truth import rendered_truth
from idc.evaluation.significance import SeededEffect, seeded_effect
from idc.metrics.scene_scores import F1, hallucination

PAIRED = ("CIDEr", "right_type", "right_object", "difference_f1")
"""Metrics with a value for each pair."""


def effect(metric: str, control: Sequence[Path], treatment: Sequence[Path]) -> SeededEffect | None:
    """The effect on one of :data:`PAIRED`; None if the metric is missing, or the rows have different pairs.

    Args:
        control, treatment: folders of the evaluations, one per seed, in the same order.
    """
    by_seed = [_values(metric, folder) for folder in (*control, *treatment)]
    names = sorted(by_seed[0])
    if len(names) < 2 or any(values.keys() != by_seed[0].keys() for values in by_seed):
        return None
    table = np.array([[values[name] for name in names] for values in by_seed], float)
    return seeded_effect(table[: len(control)], table[len(control) :])


@lru_cache(maxsize=128)  # the control row's are read for every other row
def _values(metric: str, folder: Path) -> dict[str, float]:
    rows = load_predictions(folder)
    if metric == "CIDEr":
        return {row.pair_id: row.scores["CIDEr"] for row in rows if "CIDEr" in row.scores}
    if metric == "right_type":
        return {row.pair_id: float(row.named_type == row.change_type) for row in rows if row.change_type is not None}
    if metric == "difference_f1":
        return {row.pair_id: row.differences.scores[F1] for row in rows if row.differences is not None}
    record = load_evaluation(folder)
    pairs = str(record.protocol.get("pairs"))
    if not Path(pairs).is_dir():
        return {}
    truth = rendered_truth(iter_rows(pairs, ["pair_id", "change_type", "source", "meta"], record.split))
    changed = {name: true for name, true in truth.changes.items() if true.kind != NO_CHANGE} if truth else {}
    return {
        row.pair_id: hallucination([(row.caption, changed[row.pair_id])]).object.rate
        for row in rows
        if row.pair_id in changed
    }
