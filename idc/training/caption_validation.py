"""Validation of a captioning task: the metrics of generated captions, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from idc.metrics.coco import cider
from idc.metrics.hallucination import hallucination
from idc.training.context import Context

Captioned = tuple[str, str, list[str], Any]
"""pair_id, generated caption, references, and the true change (:func:`idc.metrics.hallucination.truth_of`) or None."""


def score_captions(mine: Sequence[Captioned], context: Context) -> dict[str, float]:
    """CIDEr and the number of distinct captions; where the scenes are known also the shares of right types and right
    objects. Nothing on ranks other than 0. The first 50 captions are tracked as text.

    Args:
        mine: the pairs that this rank captioned.
    """
    rows = [row for part in context.all_gather_object(list(mine)) for row in part]
    if context.rank != 0:
        return {}
    lines = [f"{pair}\n  says       {text}\n  references {'; '.join(right)}" for pair, text, right, _ in rows[:50]]
    context.tracker.text("validation_captions.txt", "\n".join(lines))
    score = cider({pair: right for pair, _, right, _ in rows}, {pair: text for pair, text, _, _ in rows})
    found = {"CIDEr": score, "distinct_captions": float(len({text for _, text, _, _ in rows}))}
    if known := [(text, scene) for _, text, _, scene in rows if scene is not None]:
        claimed = hallucination(known)
        found |= {"right_type": claimed.change_type.rate, "right_object": claimed.object.rate}
    return found
