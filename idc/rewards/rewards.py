"""Rewards by name: what a caption claims against the scene of its pair, CIDEr-D, and functions of the user's own.

Every reward is ``f(captions, row) -> numbers``. d is the share of the attributes of an object, before the change and
those that the change gave it, that are named rightly, with one value each: one that is left out costs as much as a
false one, so that it never pays to say less.

=========== ========================================================================================================
differences (2 (sum of credits) - (sum of what is invented)) / (claims + true differences), with the assignment of
            claims to differences that has the most credit: a further claim as good as those before raises it. A claim
            of a difference's kind has :data:`HALF` + (1 - :data:`HALF`) d^2, or :data:`HALF` if a side, relation,
            number or text in it is false, and invents nothing; one of another kind has :data:`HALF` d^2, d of the
            object before the change, and invents 1 - d^2. A claim that has no difference left invents 1 - d^2 of the
            difference that it repeats. Of a pair without differences 1 for a caption that says so
object      d^2 of the changed object before the change
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
from dataclasses import dataclass, replace
from itertools import product
from pkgutil import resolve_name
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from idc.data.mapped_rows import MappedRows
from idc.data.schema import NO_CHANGE
from idc.metrics.change_types import named_type
from idc.metrics.claims import Attributes, SentenceClaim, read_claims
from idc.metrics.scene_scores import (
    TrueDifferences,
    Truth,
    common_look,
    look_is_true,
    place_fits,
    scene_truth,
    true_differences,
)
from idc.rendered.captions import ATTRIBUTES
from idc.rendered.differences import Difference
from idc.rewards.cider import CiderD
from idc.rewards.config import SCENE_REWARDS

HALF = 0.3
"""Credit of a claim whose kind or object alone fits."""
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
    return [_list_score(*read_claims(caption), truth) for caption in captions]


def _list_score(claims: Sequence[SentenceClaim], says_no_change: bool, truth: TrueDifferences) -> float:
    if not (claims and truth.differences):
        return 0.0 if truth.differences else float(says_no_change) - bool(claims)
    half, right = np.zeros((2, len(claims), len(truth.differences)))
    for cell in np.ndindex(half.shape):
        half[cell], right[cell] = _agreement(claims[cell[0]], truth.differences[cell[1]], truth)
    credit = HALF * half + (1 - HALF) * right
    rows, columns = linear_sum_assignment(credit, maximize=True)
    supported = right.max(axis=1)
    supported[rows] = np.maximum(supported[rows], half[rows, columns])
    return float((2 * credit[rows, columns].sum() - (1 - supported).sum()) / sum(half.shape))


def _agreement(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> tuple[float, float]:
    """How far a claim and a difference have the kind or the object in common, and how far all; at most 1."""
    if claim.kind != difference.kind:
        return _object_share(claim, difference) ** 2, 0.0
    old, new = (frozenset(fact for fact in facts if fact[0] in ATTRIBUTES) for facts in (claim.old, claim.new))
    others = replace(claim, old=claim.old - old, new=claim.new - new)
    if not (place_fits(claim, difference, truth) and look_is_true(others, difference, truth)):
        return 1.0, 0.0
    return 1.0, _object_share(replace(claim, described=claim.described | old), difference, new) ** 2


def _object_share(claim: SentenceClaim, difference: Difference, new: Attributes | None = None) -> float:
    """d of the module's text, of the object before the change, and with its ``new`` look also after it."""
    before = common_look(difference.before or difference.after)
    after = before if new is None else common_look(difference.after or difference.before)
    wanted = {(0, *fact) for fact in before} | {(1, *fact) for fact in after - before}
    named = {(0, *fact) for fact in claim.described} | {(1, *fact) for fact in (new or frozenset()) - (before & after)}
    values = Counter((side, name) for side, name, _ in named)
    right = sum(values[side, name] == 1 for side, name, _ in named & wanted)
    count = max(len(wanted), len(values))
    return right / count if count else 1.0


def changed_object(captions: Sequence[str], row: Row) -> list[float]:
    truth = true_differences(row["change_type"], row["meta"])
    assert truth is not None  # checked before the training
    every = [read_claims(caption).claims for caption in captions]
    shares = [[_object_share(*pair) ** 2 for pair in product(claims, truth.differences)] for claims in every]
    return [max(values, default=0.0) / max(1, len(values)) for values in shares]


def changed_type(captions: Sequence[str], row: Row) -> list[float]:
    kind = row["change_type"]
    every = [(caption, [claim.described for claim in read_claims(caption).claims]) for caption in captions]
    return [
        float(kind == named_type(caption) and any(looks) and all(len(dict(look)) == len(look) for look in looks))
        / max(1, len(looks)) * (kind != NO_CHANGE)
        for caption, looks in every
    ]  # fmt: skip


def unchanged(captions: Sequence[str], row: Row) -> list[float]:
    kind = row["change_type"]
    return [float(kind == NO_CHANGE == named_type(caption)) for caption in captions]


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
                self.functions[name] = CiderD([row["captions"] for row in every])
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


def _check_scenes(name: str, rows: Sequence[Row]) -> None:
    """ValueError: pairs do not have what a reward compares captions with."""
    for row in rows:
        truth = scene_truth(row["change_type"], row["meta"])
        if truth is None and not (name == "unchanged" and row["change_type"]):
            raise ValueError(
                f"rewards: {name} compares captions with the scenes of rendered pairs, and pair {row['pair_id']!r} has "
                "none in its meta; leave it out, and take cider, which needs captions alone"
            )
        if name in ("object", "change_type") and not isinstance(truth, Truth):
            raise ValueError(
                f"rewards: {name} is of pairs with a single change, and pair {row['pair_id']!r} has a list of "
                "differences; take the reward differences"
            )
