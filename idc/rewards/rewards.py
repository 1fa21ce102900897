"""Rewards by name: what a caption claims against the scene of its pair, CIDEr-D, and functions of the user's own.

Every reward is ``f(captions, row) -> numbers``. Of an object count the attributes that are named rightly, one value
each: one that is left out costs as much as a false one, so that it never pays to say less. d is their share.

=========== ========================================================================================================
differences 2 (sum of credits) / (claims + true differences), less the invented share
            (:func:`idc.metrics.scene_scores.match_caption`); the credit of a claim whose kind and new look are the
            difference's is :data:`HALF` + (1 - :data:`HALF`) d^2, of another half right one :data:`HALF`. Of a pair
            without differences 1 for a caption that says so
object      d^2 of the changed object, 0 with a false new look
change_type 1 if the caption names the type of the change
unchanged   1 if the caption of an unchanged pair says that nothing changed
=========== ========================================================================================================

object and change_type are 0 for unchanged pairs, unchanged for changed ones; both are divided by the number of claims,
of which there is a single right one, and change_type is 0 for a caption that gives an object two values of one
attribute.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np

from idc.data.mapped_rows import MappedRows
from idc.data.schema import NO_CHANGE
from idc.metrics.change_types import named_type
from idc.metrics.claims import Attributes, SentenceClaim, read_claims, read_object_claims
from idc.metrics.scene_scores import (
    INVENTED,
    Truth,
    Verdict,
    common_look,
    match_caption,
    scene_truth,
    true_differences,
    truth_in,
)
from idc.rendered.captions import ATTRIBUTES
from idc.rendered.differences import Difference
from idc.rewards.cider import CiderD
from idc.rewards.config import SCENE_REWARDS

HALF = 0.3
"""Credit of a claim whose kind or object alone fits, and of one that names nothing of its object."""
_REPEATED = 4
"""Words of the sequences by which repetition is measured."""

Row = Mapping[str, Any]
"""A pair: ``pair_id``, ``captions``, ``change_type`` and ``meta``."""
Reward = Callable[[Sequence[str], Row], Sequence[float]]
_COLUMNS = ("pair_id", "captions", "change_type", "meta")


@dataclass(frozen=True)
class DrawnCaption:
    """A drawn caption: its tokens, the end token included if it has ``ended``, and its text."""

    ids: Sequence[int]
    text: str
    ended: bool


def differences(captions: Sequence[str], row: Row) -> list[float]:
    truth = true_differences(row["change_type"], row["meta"])
    assert truth is not None  # checked before the training
    scores = []
    for caption in captions:
        matched = match_caption(caption, truth)
        credit = float(matched.says_no_change)
        if listed := truth.differences:
            assigned = zip(matched.claims, matched.assigned, matched.verdicts, strict=True)
            credits = [
                _credit(claim, listed[index], verdict) for claim, index, verdict in assigned if index is not None
            ]
            credit = 2 * sum(credits) / (len(matched.claims) + len(listed))
        scores.append(credit - matched.scores[INVENTED])
    return scores


def _credit(claim: SentenceClaim, difference: Difference, verdict: Verdict) -> float:
    look = common_look(difference.before or difference.after)
    new = {fact for fact in claim.new if fact[0] in ATTRIBUTES} <= common_look(difference.after or difference.before)
    # A half right claim may be false about its object alone.
    if verdict == "right" or (claim.kind == difference.kind and new and not claim.described <= look):
        return HALF + (1 - HALF) * (_named_share(claim.described, look) ** 2 if look else 1.0)
    return HALF


def _named_share(described: Attributes, look: Attributes) -> float:
    """The share of the attributes of a look that are named rightly, with one value."""
    values = Counter(name for name, _ in described)
    return sum(values[name] == 1 for name, _ in described & look) / max(1, len(look))


def changed_object(captions: Sequence[str], row: Row) -> list[float]:
    truth = _single_change(row)
    said = [(caption, read_object_claims(caption)) for caption in captions]
    return [
        _named_share(claims.described or frozenset(), truth.described) ** 2 * (claims.new_look <= truth.after)
        / _claims(caption)
        for caption, claims in said
    ]  # fmt: skip


def changed_type(captions: Sequence[str], row: Row) -> list[float]:
    truth = _single_change(row)
    if truth.kind == NO_CHANGE:
        return [0.0] * len(captions)
    return [
        float(named_type(caption) == truth.kind and _names_an_object(caption)) / _claims(caption)
        for caption in captions
    ]


def unchanged(captions: Sequence[str], row: Row) -> list[float]:
    kind = row["change_type"]
    return [float(kind == NO_CHANGE == named_type(caption)) for caption in captions]


def _single_change(row: Row) -> Truth:
    truth = truth_in(row["change_type"], row["meta"])
    assert truth is not None  # checked before the training
    return truth


def _claims(caption: str) -> int:
    return max(1, len(read_claims(caption).claims))


def _names_an_object(caption: str) -> bool:
    """Whether some object has a look, and none has two values of an attribute."""
    described = [claim.described for claim in read_claims(caption).claims]
    return any(described) and all(len(dict(look)) == len(look) for look in described)


_OF_SCENES: dict[str, Reward] = dict(
    zip(SCENE_REWARDS, (differences, changed_object, changed_type, unchanged), strict=True)
)


def training_rows(folders: Iterable[str]) -> Iterator[Row]:
    """The captioned pairs of the training splits, without their images."""
    for folder in folders:
        for row in MappedRows(folder, _COLUMNS, "train"):
            if row["captions"]:
                yield with_meta(row)


def with_meta(row: Row) -> Row:
    """A stored row as rewards take it."""
    meta = json.loads(row["meta"]) if row["meta"] else {}
    return {name: row[name] for name in _COLUMNS[:-1]} | {"meta": meta}


class Rewards:
    """Weighted rewards of the captions of pairs.

    Args:
        weights: by name, see :attr:`idc.rewards.config.RewardSettings.rewards`.
        rows: all pairs of the training: what each reward needs is checked, and CIDEr's documents are counted.

    Raises:
        ValueError: a reward cannot be computed for these pairs, or one of the user's is not as it must be.
    """

    def __init__(self, weights: Mapping[str, float], rows: Iterable[Row]) -> None:
        self.weights, every = dict(weights), list(rows)
        self.functions: dict[str, Reward] = {}
        for name in self.weights:
            if name in _OF_SCENES:
                _check_scenes(name, every)
                self.functions[name] = _OF_SCENES[name]
            elif name == "cider":
                if len({tuple(row["captions"]) for row in every}) < 2:
                    raise ValueError(
                        "rewards: cider weighs words by how few pairs have them, and all pairs have the same captions; "
                        "take more pairs, or leave it out"
                    )
                scorer = CiderD([row["captions"] for row in every])
                self.functions[name] = partial(_cider, scorer)
            else:
                self.functions[name] = resolve_name(name)
                self._earned(name, every[0]["captions"][:2], every[0])

    def __call__(self, answers: Sequence[Sequence[DrawnCaption]], rows: Sequence[Row]) -> np.ndarray:
        """Rewards without their weights, (R, B, G) float64, of the G answers to each of B pairs."""
        texts = [[answer.text for answer in group] for group in answers]
        earned = np.array([
            [self._earned(name, group, row) for group, row in zip(texts, rows, strict=True)] for name in self.functions
        ])  # fmt: skip
        ended = np.array([[answer.ended for answer in group] for group in answers])
        distinct = np.array([[distinct_share(text) for text in group] for group in texts])
        return np.where(earned > 0, earned * distinct * ended, earned)

    def _earned(self, name: str, texts: Sequence[str], row: Row) -> np.ndarray:
        """A reward of captions of a pair, of which equal ones are computed once. ValueError: what the function returns
        is not a finite number for each."""
        captions = list(dict.fromkeys(texts))
        returned = self.functions[name](captions, row)
        try:
            values = np.array(returned, float)
        except (TypeError, ValueError):
            values = np.array(math.nan)
        if values.shape != (len(captions),) or not np.isfinite(values).all():
            raise ValueError(
                f"rewards: {name} returned {returned!r} for {captions} of pair {row['pair_id']!r}; it must "
                f"return {len(captions)} finite numbers, one for each"
            )
        return values[[captions.index(text) for text in texts]]


def distinct_share(caption: str) -> float:
    """The number of different sequences of four words over that of all; 1 for shorter captions."""
    words = caption.lower().replace(".", "").split()
    grams = [tuple(words[start : start + _REPEATED]) for start in range(len(words) - _REPEATED + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _cider(scorer: CiderD, captions: Sequence[str], row: Row) -> Sequence[float]:
    return scorer(captions, row["captions"])


def _check_scenes(name: str, rows: Sequence[Row]) -> None:
    """ValueError: pairs do not have what a reward compares captions with."""
    single = name in ("object", "change_type")
    for row in rows:
        has_truth = true_differences(row["change_type"], row["meta"]) is not None
        if not (has_truth if name != "unchanged" else row["change_type"]):
            raise ValueError(
                f"rewards: {name} compares captions with the scenes of rendered pairs, and pair {row['pair_id']!r} has "
                "none in its meta; leave it out, and take cider, which needs captions alone"
            )
        if single and not isinstance(scene_truth(row["change_type"], row["meta"]), Truth):
            raise ValueError(
                f"rewards: {name} is of pairs with a single change, and pair {row['pair_id']!r} has a list of "
                "differences; take the reward differences"
            )
