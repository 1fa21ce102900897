"""The truth of rendered pairs in an evaluation: what captions claim about objects, and their difference lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from idc.data.schema import CHANGE_TYPES
from idc.evaluation.significance import intervals
from idc.metrics.scene_scores import (
    Matched,
    TrueDifferences,
    Truth,
    difference_scores,
    hallucination,
    match_caption,
    true_differences,
    truth_in,
)
from idc.rendered.differences import differences_of
from idc.rendered.sentences import true_captions, true_wordings


@dataclass(frozen=True)
class RenderedTruth:
    """The truth of the pairs of a split, all of them rendered.

    Attributes:
        wordings: pair -> its truth in several wordings, the n-th the same for all pairs of a change type.
        changes: pair -> its single change or none, of CLEVR-Change's kinds; pairs with another truth are not in it.
        lists: pair -> its true differences; empty if they are not known for every pair.
    """

    wordings: Mapping[str, list[str]]
    changes: Mapping[str, Truth]
    lists: Mapping[str, TrueDifferences]

    def scores(self, captions: Mapping[str, str], resamples: int) -> tuple[dict[str, Any], dict[str, Matched]]:
        """``hallucination`` and ``differences`` of captions, as an evaluation has them (None if no pair has a single
        change or none, and if the lists are not known), and the match of each pair."""
        claims = [(captions[name], true) for name, true in self.changes.items()]
        scores: dict[str, Any] = {"hallucination": hallucination(claims) if claims else None, "differences": None}
        matched = {name: match_caption(captions[name], true) for name, true in self.lists.items()}
        if matched:
            scores["differences"] = difference_scores((matched[name], true) for name, true in self.lists.items())
        if matched and resamples:
            rows = [match.scores for match in matched.values()]
            bounds = intervals(rows, [{}] * len(rows), resamples)
            scores["differences"].intervals = {name: (bound.low, bound.high) for name, bound in bounds.items()}
        return scores, matched


def rendered_truth(rows: Iterable[Mapping[str, Any]]) -> RenderedTruth | None:
    """The truth of a split's pairs; None if one of them is not rendered, or has neither a list of differences nor a
    change type of CLEVR-Change.

    Args:
        rows: with ``pair_id``, ``change_type``, ``source`` and ``meta`` (JSON).
    """
    wordings: dict[str, list[str]] = {}
    changes: dict[str, Truth] = {}
    lists: dict[str, TrueDifferences | None] = {}
    for row in rows:
        if not row["source"].startswith("rendered:"):
            return None
        name, kind, meta = row["pair_id"], row["change_type"], json.loads(row["meta"])
        if (listed := differences_of(meta)) is not None:
            wordings[name] = true_wordings(listed)
        elif kind in CHANGE_TYPES:
            wordings[name] = true_captions(kind, meta["before"], meta["after"])
        else:
            return None
        if kind in CHANGE_TYPES and (true := truth_in(kind, meta)) is not None:
            changes[name] = true
        lists[name] = true_differences(kind, meta)
    complete = {name: differences for name, differences in lists.items() if differences is not None}
    return RenderedTruth(wordings, changes, complete if len(complete) == len(lists) else {})
