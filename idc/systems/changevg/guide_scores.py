"""Scores a guide on pairs whose truth is known: its class maps, and the answers that its notes give to ChangeIMTI's
questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from idc.changeimti.config import RegionConfig
from idc.data.change_masks import CLASSES, class_map
from idc.data.images import ImageError, decode_image
from idc.data.store import iter_rows
from idc.data.validation.checks import is_changed
from idc.metrics.classification import Measures, ScoredAnswer, score_answers
from idc.metrics.segmentation import confusion, segmentation_scores
from idc.systems.changevg.config import ScoreGuideJob
from idc.systems.changevg.guide_captioner import GuideCaptioner, locations, positions_of_classes
from idc.util.atomic import write_text

SCORES = "guide.json"
"""File of :func:`score_guide` in the folder of its job."""


class SplitScores:
    """Compares the guide with the pairs of a split; ``regions`` of the masks are counted."""

    def __init__(self, regions: RegionConfig) -> None:
        self.regions, self.pairs = regions, 0
        self.answers: list[ScoredAnswer] = []
        self.matrix: np.ndarray | None = None

    def add(self, row: Mapping[str, Any], positions: Mapping[str, Sequence[str]], classes: np.ndarray) -> None:
        """Add a pair: its ``change_type``, ``mask`` and ``meta``, and the guide's positions and class map."""
        self.pairs += 1
        changed = is_changed(row["change_type"], json.loads(row["meta"] or "{}"))
        if changed is not None:
            self.answers.append(_answer("binary", _yes(changed), _yes(any(positions.values()))))
        if row["mask"] is None:
            return
        truth = class_map(row["mask"])
        matrix = confusion(truth, _resized(classes, truth.shape), len(CLASSES))
        self.matrix = matrix if self.matrix is None else self.matrix + matrix
        for name, true_positions in positions_of_classes(truth, self.regions).items():
            counts = str(len(true_positions)), str(len(positions[name]))
            self.answers.append(_answer("count", *counts, name))
            self.answers.append(_answer("location", locations(true_positions), locations(positions[name]), name))

    def to_dict(self) -> dict[str, Any]:
        """``pairs``; of pairs with masks ``map`` and its baseline ``map_unchanged`` (no change anywhere), from
        :func:`segmentation_scores`; ``answers``, :class:`Measures` of changed or not, counts and positions."""
        scores: dict[str, Any] = {"pairs": self.pairs}
        if self.matrix is not None:
            unchanged = np.zeros_like(self.matrix)
            unchanged[:, 0] = self.matrix.sum(axis=1)
            scores["map"] = segmentation_scores(self.matrix, CLASSES)
            scores["map_unchanged"] = segmentation_scores(unchanged, CLASSES)
        return {**scores, "answers": [measures.model_dump() for measures in score_answers(self.answers)]}


def score_guide(job: ScoreGuideJob) -> dict[str, Any]:
    """Run a guide on a folder of pairs, compare it with their flags and masks, and write :data:`SCORES`; returns
    split -> :meth:`SplitScores.to_dict`. ValueError: the pairs cannot be read or have no images, or it is not a
    guide."""
    guide, splits = GuideCaptioner(job.guide, job.device), dict[str, SplitScores]()
    columns = ["pair_id", "before", "after", "split", "change_type", "mask", "meta"]
    rows = islice(iter_rows(job.pairs, columns, batch_size=job.batch_size), job.max_pairs)
    while batch := list(islice(rows, job.batch_size)):
        befores, afters = ([_image(row, side) for row in batch] for side in ("before", "after"))
        for row, (notes, extras) in zip(batch, guide.notes_and_maps(befores, afters, job.regions), strict=True):
            assert extras.class_map is not None
            split = splits.setdefault(row["split"], SplitScores(job.regions))
            split.add(row, notes.positions, extras.class_map.classes)
    scores = {name: split.to_dict() for name, split in splits.items()}
    write_text(Path(job.out) / SCORES, json.dumps(scores, indent=1) + "\n")
    return scores


def _image(row: Mapping[str, Any], side: str) -> np.ndarray:
    try:
        return decode_image(row[side])
    except ImageError as error:
        raise ValueError(f"pair {row['pair_id']!r}, {side}: {error}; leave the pair out") from None


def scores_table(scores: Mapping[str, Any]) -> str:
    """The scores as plain text, shares times 100."""
    lines = []
    for split, of_split in scores.items():
        lines.append(f"{split}: {of_split['pairs']} pairs")
        if "map" in of_split:
            shown = "".join(f", {name} {100 * value:.1f}" for name, value in of_split["map"].items())
            lines.append(f"  map{shown}; no change anywhere: mIoU {100 * of_split['map_unchanged']['mIoU']:.1f}")
        for measures in map(Measures.model_validate, of_split["answers"]):
            of = f" of {measures.of}s" if measures.of else ""
            pairs = ", ".join(
                f"{name} {_shown(name, value)} (constant {_shown(name, measures.baseline[name])})"
                for name, value in measures.scores.items()
            )
            lines.append(f"  {measures.type}{of}: {pairs}")
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    return f"{value:.3f}" if name == "MAE" else f"{100 * value:.1f}"


def _answer(kind: str, truth: str, predicted: str, of: str = "") -> ScoredAnswer:
    return ScoredAnswer(type=kind, answer=truth, prediction=predicted, of=of)


def _yes(changed: bool) -> str:
    return "Yes" if changed else "No"


def _resized(classes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    rows, columns = ((np.arange(length) * side // length) for length, side in zip(size, classes.shape, strict=True))
    return classes[rows[:, None], columns]
