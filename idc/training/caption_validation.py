"""Validation of a captioning task: the metrics of generated captions, gathered from all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from idc.data.mapped_rows import MappedRows
from idc.metrics.coco import cider
from idc.metrics.scene_scores import (
    TrueDifferences,
    Truth,
    difference_scores,
    hallucination,
    match_caption,
    scene_truth,
)
from idc.training.context import Context
from idc.training.task import Batch, Task

Captioned = tuple[str, str, list[str], Any]
"""pair_id, generated caption, references, and the truth (:func:`idc.metrics.scene_scores.scene_truth`) or None."""


class CaptioningTask(Task):
    """A task that is validated by its captions. The validation split has ``truths()``; its batches have ``pair_id``,
    ``references`` and, if truths are known, ``scene``."""

    def metric_names(self, validation: Any) -> set[str]:
        return metric_names_of(validation.truths())

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """The metrics of :func:`score_captions`."""
        mine: list[Captioned] = []
        for batch in loader:
            references = batch["references"]
            scenes = batch.get("scene", [None] * len(references))
            mine += zip(batch["pair_id"], self.caption(batch), references, scenes, strict=True)
        return score_captions(mine, context)


def metric_names_of(truths: Iterable[Any]) -> set[str]:
    """Names of the metrics that :func:`score_captions` returns for pairs with these truths."""
    names = {"CIDEr", "distinct_captions"}
    for truth in truths:
        if isinstance(truth, Truth):
            names |= {"right_type", "right_object"}
        elif isinstance(truth, TrueDifferences):
            names |= {"difference_f1", "invented_share"}
    return names


class ValidatedRows:
    """The rows of a data set whose samples are captioned and scored.

    Attributes:
        rows: with the columns ``change_type`` and ``meta``.
        order: the row of each sample.
    """

    rows: MappedRows
    order: Sequence[int] | np.ndarray

    def truths(self) -> Iterator[Truth | TrueDifferences | None]:
        """The known truths of the pairs."""
        return row_truths(self.rows, self.order)

    def strata(self) -> list[str | None]:
        """The change type of each pair."""
        kinds = self.rows.column("change_type")
        return [kinds[row] for row in self.order]


def row_truths(rows: MappedRows, numbers: Iterable[int]) -> Iterator[Truth | TrueDifferences | None]:
    """The truths of these rows, which have the columns ``change_type`` and ``meta``; no image is read."""
    kinds, metas = rows.column("change_type"), rows.column("meta")
    for number in numbers:
        yield scene_truth(kinds[number], json.loads(metas[number]) if metas[number] else {})


def score_captions(mine: Sequence[Captioned], context: Context) -> dict[str, float]:
    """CIDEr and the number of distinct captions; where the scenes are known also the shares of right types and right
    objects, or, where they have lists of differences, ``difference_f1`` and ``invented_share``. Nothing on ranks other
    than 0. The first 50 captions are tracked as text.

    Args:
        mine: the pairs that this rank captioned.
    """
    rows = [row for part in context.all_gather_object(list(mine)) for row in part]
    if context.rank != 0:
        return {}
    lines = [f"{pair}\n  says       {text}\n  references {'; '.join(right)}" for pair, text, right, _ in rows[:50]]
    context.tracker.text("validation_captions.txt", "\n".join(lines))
    score = cider({pair: right for pair, _, right, _ in rows}, {pair: text for pair, text, _, _ in rows})
    metrics = {"CIDEr": score, "distinct_captions": float(len({text for _, text, _, _ in rows}))}
    if scenes := [(text, scene) for _, text, _, scene in rows if isinstance(scene, Truth)]:
        claimed = hallucination(scenes)
        metrics |= {"right_type": claimed.change_type.rate, "right_object": claimed.object.rate}
    if listed := [(text, scene) for _, text, _, scene in rows if isinstance(scene, TrueDifferences)]:
        lists = difference_scores((match_caption(text, scene), scene) for text, scene in listed)
        metrics |= {"difference_f1": lists.f1, "invented_share": lists.invented_share}
    return metrics
