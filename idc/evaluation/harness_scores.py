"""Scores of a harness's captions by this project's scorer, for the tasks of :mod:`idc.evaluation.export`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from idc.evaluation.record import Prediction
from idc.evaluation.rendered_truth import rendered_truth
from idc.evaluation.score import evaluate_captions

CIDER, DIFFERENCE_F1 = "CIDEr", "difference_f1"


def harness_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """CIDEr as of `jobs/evaluate.py`, and difference F1 where the pairs are rendered, else NaN.

    Args:
        rows: of each pair ``pair_id``, ``captions`` (the references), ``caption`` (the prediction), ``change_type``,
            ``source`` and ``meta``.
    """
    predictions = [
        Prediction(pair_id=row["pair_id"], caption=row["caption"], references=list(row["captions"]), split="test")
        for row in rows
    ]
    evaluation, _ = evaluate_captions(predictions, metrics=[CIDER], allow_empty=True)
    truth = rendered_truth(rows)
    lists = truth and truth.scores({row["pair_id"]: row["caption"] for row in rows}, 0)[0]["differences"]
    cider = evaluation.scores[CIDER]
    return {CIDER: math.nan if cider is None else cider, DIFFERENCE_F1: lists.f1 if lists else math.nan}
