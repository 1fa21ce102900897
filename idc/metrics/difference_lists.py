"""Precision, recall and F1 of the differences that captions claim, against the true list of a rendered pair.

A caption is taken apart into claims (:mod:`idc.metrics.claims`); claims and true differences are assigned to
each other one to one, so that as many claims as possible are right, then as many as possible half right.

========== ===========================================================================================================
a claim is if
========== ===========================================================================================================
right      its kind is the difference's, the object that it names fits, and every old or new look that it names is true
half right it is assigned to a difference that no right claim has, and its kind or its object alone fits
surplus    it would be right, but another claim has its difference already: the same said twice
invented   none of these: no difference that is left agrees with it even in part
========== ===========================================================================================================

*The object fits* if at least one attribute is named and all that are named are the object's, as it looks before (what
was added: after; a changed number: what the group has in common); if a side of the picture is named, the object is on
it in an image that shows it; if a relation is named, some object with the named attributes has it to the object in such
an image. A claim without attributes ("an object was removed") fits only if a single true difference has its kind. *A
look is true* if each of its values is: attributes, letter, number, a side that a moved object came from or went to.

Of a pair: precision = right / claims, recall = right / true differences, F1 = 2 right / (claims + true differences). A
pair without differences has 1 in all three if its caption says that nothing changed, else 0; a caption without claims
of a pair with differences has 0. The invented share is invented / claims, 0 without claims. Of a split: means over its
pairs.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.data.schema import NO_CHANGE
from idc.metrics.claim_words import COUNT, FEWER, MORE, SIDE, TEXT
from idc.metrics.claims import Attributes, SentenceClaim, read_claims
from idc.metrics.hallucination import Truth, changed_things, look_of, truth_in
from idc.rendered.captions import SIDES, holds, on_side, thing_of, went
from idc.rendered.differences import DIFFERENCES, KINDS, Difference, differences_of
from idc.rendered.scene import View

PROTOCOL = "rendered-difference-rules-2"
"""Name and version of the rules; the number goes up when the same captions would get other scores."""

DEVIATIONS = (
    "After DiffCap-Bench (arXiv 2605.04503), which has a language model compare captions with difference lists that "
    "people validated, in ten categories. Here rules read the captions and the scene is the truth; the kinds are those "
    "of the rendered pairs (add, drop, replace, size, color, material, orientation, move, count, text); a claim is "
    "right only as a whole; numbers are not comparable with the benchmark's."
)

Verdict = Literal["right", "half", "surplus", "invented"]

PRECISION, RECALL, F1, INVENTED = "difference P", "difference R", "difference F1", "invented share"
"""Names of a pair's scores."""

_RIGHT, _HALF = 10_000, 1
"""Weights of the assignment: no number of half right claims outweighs a right one."""


@dataclass(frozen=True)
class TrueDifferences:
    """The true differences of a pair, with its scenes.

    Attributes:
        before, after: the objects of the images, as the ``meta`` of a pair has them.
        views: of both images; None if not known, then sides and relations are not checked.
    """

    differences: tuple[Difference, ...]
    before: Sequence[Mapping[str, Any]] = ()
    after: Sequence[Mapping[str, Any]] = ()
    views: tuple[View, View] | None = None


def true_differences(change_type: str | None, meta: Mapping[str, Any]) -> TrueDifferences | None:
    """The true differences of a rendered pair: its list, or for a pair without one a list of its single change or of
    none. None if they are not known.

    Raises:
        ValueError: the list is not of the form of :mod:`idc.rendered.differences`.
    """
    views = None
    recorded: Sequence[Mapping[str, Any]] = meta.get("views") or ()
    if len(recorded) == 2:
        views = (View.of_record(recorded[0]), View.of_record(recorded[1]))
    if (listed := differences_of(meta)) is not None:
        return TrueDifferences(listed, meta["before"], meta["after"], views)
    if truth_in(change_type, meta) is None:
        return None
    before, after = meta["before"], meta["after"]
    gone, new = (tuple(things[:1]) for things in changed_things(before, after))
    listed = () if change_type == NO_CHANGE else (Difference(str(change_type), gone, new),)
    return TrueDifferences(listed, before, after, views)


def scene_truth(change_type: str | None, meta: Mapping[str, Any]) -> Truth | TrueDifferences | None:
    """The truth that validation compares the captions of a pair with: its list of differences if it has one, else its
    single change or none (:func:`~idc.metrics.hallucination.truth_in`)."""
    return true_differences(change_type, meta) if DIFFERENCES in meta else truth_in(change_type, meta)


@dataclass(frozen=True)
class Matched:
    """The claims of a caption against the truth.

    Attributes:
        claims: what the caption claims; ``verdicts``: of each.
        assigned: of each claim the number of the difference that it is right or half right about, or None.
        truths: number of true differences.
        says_no_change: whether the caption says that nothing changed.
    """

    claims: tuple[SentenceClaim, ...]
    verdicts: tuple[Verdict, ...]
    assigned: tuple[int | None, ...]
    truths: int
    says_no_change: bool

    def count(self, verdict: Verdict) -> int:
        return self.verdicts.count(verdict)

    @property
    def scores(self) -> dict[str, float]:
        """Precision, recall, F1 and invented share, by their names."""
        right, claims = self.count("right"), max(1, len(self.claims))
        rates = dict.fromkeys((PRECISION, RECALL, F1), float(self.says_no_change))
        if self.truths:
            f1 = 2 * right / (len(self.claims) + self.truths)
            rates = {PRECISION: right / claims, RECALL: right / self.truths, F1: f1}
        return {**rates, INVENTED: self.count("invented") / claims}


def match_caption(caption: str, truth: TrueDifferences) -> Matched:
    """The one-to-one assignment of the module's text, of the claims of a caption and the truth of its pair."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and records of evaluations import this module

    claims, says_no_change = read_claims(caption)
    truths = truth.differences
    grades = np.zeros((len(claims), len(truths)), int)
    for row, claim in enumerate(claims):
        grades[row] = [_grade(claim, difference, truth) for difference in truths]
    assigned: list[int | None] = [None] * len(claims)
    # Negative: the assignment has the least sum. It is of min(claims, truths) pairs; those of grade 0 are no match.
    for row, column in zip(*linear_sum_assignment(-grades), strict=True):
        if grades[row, column]:
            assigned[row] = int(column)
    taken = {index for row, index in enumerate(assigned) if index is not None and grades[row, index] == _RIGHT}
    verdicts: list[Verdict] = []
    for row, index in enumerate(assigned):
        if index is not None:
            verdicts.append("right" if grades[row, index] == _RIGHT else "half")
        else:
            verdicts.append("surplus" if any(grades[row, index] == _RIGHT for index in taken) else "invented")
    return Matched(claims, tuple(verdicts), tuple(assigned), len(truths), says_no_change)


def _grade(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> int:
    fits, kind = _fits(claim, difference, truth), claim.kind == difference.kind
    if fits and kind and _true(claim, difference, truth):
        return _RIGHT
    return _HALF if fits or kind else 0


def _fits(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> bool:
    """Whether the object that a claim names is that of a difference."""
    if not claim.described:
        alone = sum(other.kind == claim.kind for other in truth.differences) == 1
        return alone and claim.kind == difference.kind and _is_there(claim, difference, truth)
    return claim.described <= _common(difference.before or difference.after) and _is_there(claim, difference, truth)


def _is_there(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> bool:
    """Whether the named sides and relations are the object's in an image that shows it."""
    if truth.views is None:
        return True
    images = zip((difference.before, difference.after), (truth.before, truth.after), truth.views, strict=True)
    shown = [(thing_of(thing), things, view) for shown_things, things, view in images for thing in shown_things]
    sides = all(any(on_side(side, thing, view, 0.0) for thing, _, view in shown) for side in claim.sides)
    return sides and all(
        any(
            relation == "near" or holds(relation, thing, thing_of(other), view, 0.0)
            for thing, things, view in shown
            for other in things
            if named <= look_of(other)
        )
        for relation, named in claim.relations
    )


def _true(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> bool:
    """Whether all that a claim says of the old and the new look is true; sides are not checked without views."""
    old, new = (_facts(side) for side in (difference.before, difference.after))
    if difference.kind == COUNT:
        step = len(difference.after) - len(difference.before)
        way = MORE if step > 0 else FEWER
        new |= {(COUNT, way), (COUNT, f"{way} by {abs(step)}")}
    elif difference.kind == "move" and truth.views is not None:
        start, end = thing_of(difference.before[0]), thing_of(difference.after[0])
        old |= {(SIDE, side) for side in SIDES if on_side(side, start, truth.views[0], 0.0)}
        new |= {(SIDE, side) for side in SIDES if any(went(side, start, end, view, 0.0) for view in truth.views)}
    unchecked = {(SIDE, side) for side in SIDES} if truth.views is None else set()
    return claim.old <= old | unchecked and claim.new <= new | unchecked


def _facts(things: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    common = _common(things) if things else frozenset()
    return {(COUNT, str(len(things))), *common, *((TEXT, str(thing["text"])) for thing in things if thing.get("text"))}


def _common(things: Sequence[Mapping[str, Any]]) -> Attributes:
    """The attributes that all of them have."""
    return frozenset[tuple[str, str]].intersection(*(look_of(thing) for thing in things))


def worded(claim: SentenceClaim) -> str:
    """A claim in words: "color of red cube: to blue"."""
    parts = [" ".join(value for _, value in sorted(claim.described)) or "an object"]
    parts += sorted(claim.sides)
    parts += [f"{relation} {' '.join(value for _, value in sorted(named))}" for relation, named in claim.relations]
    old, new = (" ".join(value for _, value in sorted(side)) for side in (claim.old, claim.new))
    looks = [f"from {old}"] * bool(old) + [f"to {new}"] * bool(new)
    return f"{claim.kind or 'change'} of {', '.join(parts)}" + (f": {' '.join(looks)}" if looks else "")


class Recall(BaseModel):
    """How many of the true differences were found."""

    model_config = ConfigDict(extra="forbid")
    right: int
    total: int


class ByCount(BaseModel):
    """Means over the pairs with a number of true differences."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    precision: float
    recall: float
    f1: float
    invented_share: float


class DifferenceScores(ByCount):
    """The scores of a split, as in the module's text, with counts over all of its pairs."""

    protocol: str
    deviations: str
    claims: int
    truths: int
    right: int
    half: int
    surplus: int
    invented: int
    unchanged: Recall
    """Captions that say that nothing changed, of the pairs without differences."""
    by_kind: dict[str, Recall]
    """Kind -> its differences, and those that a claim is right about; kinds that do not occur are left out."""
    by_number: dict[int, ByCount]
    """Number of true differences -> the means over its pairs."""
    intervals: dict[str, tuple[float, float]] = {}
    """Name of a pair's score -> 95 % bootstrap interval of its mean, if intervals were asked for."""

    def means(self) -> dict[str, float]:
        """The means by the names of a pair's scores."""
        return {PRECISION: self.precision, RECALL: self.recall, F1: self.f1, INVENTED: self.invented_share}


def difference_scores(rows: Iterable[tuple[Matched, TrueDifferences]]) -> DifferenceScores:
    """The scores of a split.

    Raises:
        ValueError: there are no pairs.
    """
    both = list(rows)
    if not both:
        raise ValueError("there are no captions of pairs whose differences are known")
    verdicts = Counter(verdict for matched, _ in both for verdict in matched.verdicts)
    totals, right = Counter[str](), Counter[str]()
    numbers: dict[int, list[Matched]] = defaultdict(list)
    for matched, truth in both:
        totals.update(difference.kind for difference in truth.differences)
        for index, verdict in zip(matched.assigned, matched.verdicts, strict=True):
            if index is not None and verdict == "right":
                right[truth.differences[index].kind] += 1
        numbers[matched.truths].append(matched)
    return DifferenceScores(
        **_means([matched for matched, _ in both]),
        protocol=PROTOCOL,
        deviations=DEVIATIONS,
        claims=sum(verdicts.values()),
        truths=sum(totals.values()),
        **{name: verdicts[name] for name in ("right", "half", "surplus", "invented")},
        unchanged=Recall(right=sum(matched.says_no_change for matched in numbers[0]), total=len(numbers[0])),
        by_kind={kind: Recall(right=right[kind], total=totals[kind]) for kind in KINDS if totals[kind]},
        by_number={number: ByCount(**_means(group)) for number, group in sorted(numbers.items()) if group},
    )


def _means(every: Sequence[Matched]) -> dict[str, Any]:
    scores = [matched.scores for matched in every]
    names = {"precision": PRECISION, "recall": RECALL, "f1": F1, "invented_share": INVENTED}
    return {"pairs": len(every)} | {name: statistics.fmean(row[key] for row in scores) for name, key in names.items()}


def difference_table(scores: DifferenceScores) -> str:
    """The scores as plain text."""
    lines = [
        f"differences, {scores.protocol}: {scores.pairs} pairs, {scores.truths} true differences, "
        f"{scores.claims} claimed: {scores.right} right, {scores.half} half right, {scores.surplus} said twice, "
        f"{scores.invented} invented"
    ]
    for name, value in scores.means().items():
        low_high = scores.intervals.get(name)
        interval = f"  {100 * low_high[0]:.1f} to {100 * low_high[1]:.1f}" if low_high else ""
        lines.append(f"  {name:16}{value:7.1%}{interval}" + (", to be low" if name == INVENTED else ""))
    if scores.unchanged.total:
        lines.append(
            f"  unchanged pairs of which the caption says so: {scores.unchanged.right} of {scores.unchanged.total}"
        )
    kinds = [f"{kind} {hits.right} of {hits.total}" for kind, hits in scores.by_kind.items()]
    lines.append(f"  found by kind: {', '.join(kinds) or 'none'}")
    numbers = [f"{number}: {means.f1:.1%} ({means.pairs} pairs)" for number, means in scores.by_number.items()]
    lines.append(f"  F1 by number of differences: {', '.join(numbers)}")
    return "\n".join(lines)
