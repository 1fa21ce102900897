"""What captions of rendered scenes claim, against the scene graphs that the pairs carry (``meta``): two measures.

**One change** (:func:`hallucination`):

=============== ======================================================================== ============================
rate            right if                                                                 of
=============== ======================================================================== ============================
change type     the caption names the pair's type (:mod:`idc.metrics.change_types`)           all pairs
object          at least one attribute is named, and all of them are the changed         changed pairs
                object's, as it looks before (what was added: after) the change
attribute       the attribute is the changed object's; a new look is compared with it    all attributes named in
                after the change                                                         captions of changed pairs
invented change the caption of an unchanged pair names a change (to be low)              unchanged pairs
missed change   the caption of a changed pair names none (to be low)                     changed pairs
=============== ======================================================================== ============================

``chance`` is the rate that the same captions have on average when they are dealt out to the same pairs at random: what
is known of a data set without looking at a pair. Second objects and relations between objects are not checked.
Intervals are Wilson's (1927), 95 %. The claims of one caption are not independent, so an interval counts at most as
many cases as there are pairs.

**Lists of differences** (:func:`match_caption`, :func:`difference_scores`): precision, recall and F1. Claims and true
differences are assigned to each other one to one, so that as many claims as possible are right, then as many as
possible half right.

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

Long because both measures read one kind of truth.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.metrics.change_types import named_type
from idc.metrics.claim_words import COUNT, FEWER, MORE, SIDE, TEXT
from idc.metrics.claims import Attributes, ObjectClaims, SentenceClaim, read_claims, read_object_claims
from idc.rendered.captions import ATTRIBUTES, SIDES, moved_towards, on_side, relation_holds, thing_of
from idc.rendered.differences import DIFFERENCES, KINDS, Difference, differences_of
from idc.rendered.scene import View

INVENTED_CHANGE, MISSED_CHANGE = "invented change", "missed change"
"""Names of the rates that count mistakes."""

_Z = 1.959964
"""Quantile of the standard normal distribution for intervals of 95 %."""

Things = Sequence[Mapping[str, Any]]
"""Objects of an image, as the ``meta`` of a rendered pair has them."""

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
class Truth:
    """The change type of a pair; the changed object as it looks before the change (an added one: after it), and as it
    looks after it; each empty if there is none."""

    kind: str
    described: Attributes
    after: Attributes


def look_of(thing: Mapping[str, Any]) -> Attributes:
    """All attributes of an object, as the ``meta`` of a rendered pair has it."""
    return frozenset((name, str(thing[name])) for name in ATTRIBUTES)


def truth_of(change_type: str, before: Things, after: Things) -> Truth:
    """The truth of a rendered pair with these objects in its images."""
    if change_type == NO_CHANGE:
        return Truth(NO_CHANGE, frozenset(), frozenset())
    gone, new = ([look_of(thing) for thing in side] for side in changed_things(before, after))
    return Truth(change_type, (gone or new)[0], new[0] if new else frozenset())


def changed_things(before: Things, after: Things) -> tuple[Things, Things]:
    """The objects that only one of the images has."""
    return [thing for thing in before if thing not in after], [thing for thing in after if thing not in before]


def truth_in(change_type: str | None, meta: Mapping[str, Any]) -> Truth | None:
    """The truth that the ``meta`` of a pair holds; None if it does not have the objects of both images with all their
    attributes, or if these objects contradict the change type."""
    before, after = meta.get("before"), meta.get("after")
    if change_type not in CHANGE_TYPES or not (isinstance(before, list) and isinstance(after, list)):
        return None
    whole = all(isinstance(thing, dict) and thing.keys() >= set(ATTRIBUTES) for thing in (*before, *after))
    consistent = whole and (change_type == NO_CHANGE or any(changed_things(before, after)))
    return truth_of(change_type, before, after) if consistent else None


@dataclass(frozen=True)
class TrueDifferences:
    """The true differences of a pair, with its scenes.

    Attributes:
        before, after: the objects of the images, as the ``meta`` of a pair has them.
        views: of both images; None if not known, then sides and relations are not checked.
    """

    differences: tuple[Difference, ...]
    before: Things = ()
    after: Things = ()
    views: tuple[View, View] | None = None


def true_differences(change_type: str | None, meta: Mapping[str, Any]) -> TrueDifferences | None:
    """The true differences of a rendered pair: its list, or for a pair without one a list of its single change or of
    none. None if they are not known.

    Raises:
        ValueError: the list is not of the form of :mod:`idc.rendered.differences`.
    """
    views = None
    if recorded := meta.get("views"):
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
    single change or none."""
    return true_differences(change_type, meta) if DIFFERENCES in meta else truth_in(change_type, meta)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Recall(_Record):
    """How many are right, of all."""

    right: int
    total: int


class Rate(Recall):
    """The share of what is right."""

    rate: float
    """``right / total``; 0 where there is nothing to count."""
    chance: float
    """The same captions, dealt out to the pairs at random."""

    @classmethod
    def of(cls, right: int, total: int, chance: float) -> Rate:
        return cls(right=right, total=total, rate=right / total if total else 0.0, chance=chance if total else 0.0)

    def interval(self, pairs: int) -> tuple[float, float]:
        """The 95 % interval of the rate (Wilson); it counts no more cases than the ``pairs`` that were claimed of."""
        return wilson(self.rate, min(self.total, pairs))


def wilson(rate: float, cases: int) -> tuple[float, float]:
    """The 95 % interval of a rate in so many cases."""
    if not cases:
        return 0.0, 1.0
    z2 = _Z**2 / cases
    middle = (rate + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(rate * (1 - rate) / cases + z2 / (4 * cases)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


class Hallucination(_Record):
    """The rates of the module's table."""

    pairs: int
    changed: int
    change_type: Rate
    object: Rate
    attribute: Rate
    invented_change: Rate
    missed_change: Rate

    def rates(self) -> dict[str, Rate]:
        """All rates by their names in words."""
        return {name.replace("_", " "): rate for name, rate in self if isinstance(rate, Rate)}

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of one of :meth:`rates`."""
        return self.rates()[name].interval(self.changed if name == "attribute" else self.pairs)


def hallucination(rows: Iterable[tuple[str, Truth]]) -> Hallucination:
    """The rates of captions, each with the truth of its pair; a ValueError if there are none."""
    both = [(named_type(caption), read_object_claims(caption), true) for caption, true in rows]
    if not both:
        raise ValueError("there are no captions of pairs whose truth is known")
    count = len(both)
    types, true_types = Counter(kind for kind, _, _ in both), Counter(true.kind for _, _, true in both)
    changed = [row for row in both if row[2].kind != NO_CHANGE]
    invented = [kind not in (None, NO_CHANGE) for kind, _, true in both if true.kind == NO_CHANGE]
    says_change = count - types[None] - types[NO_CHANGE]
    claims, looks = [said for _, said, _ in changed], [(true.described, true.after) for _, _, true in changed]
    by_chance = sum(types[kind] * times for kind, times in true_types.items())
    return Hallucination(
        pairs=count,
        changed=len(changed),
        change_type=Rate.of(sum(kind == true.kind for kind, _, true in both), count, by_chance / count**2),
        object=_rate(claims, looks, _object),
        attribute=_rate(claims, looks, _attributes),
        invented_change=Rate.of(sum(invented), len(invented), says_change / count),
        missed_change=Rate.of(sum(row[0] == NO_CHANGE for row in changed), len(changed), types[NO_CHANGE] / count),
    )


_Looks = tuple[Attributes, Attributes]
"""The described object before the change, and the changed one after it."""


def _rate(
    said: Sequence[ObjectClaims], looks: Sequence[_Looks], count: Callable[[ObjectClaims, _Looks], tuple[int, int]]
) -> Rate:
    """The rate of ``count``, which gives the right claims and all; chance is the mean over all pairs of a caption and
    looks, equal ones counted once."""
    counts = [count(*row) for row in zip(said, looks, strict=True)]
    right, total = sum(right for right, _ in counts), sum(total for _, total in counts)
    pairings = itertools.product(Counter(said).items(), Counter(looks).items())
    dealt = sum(many * times * count(claims, look)[0] for (claims, many), (look, times) in pairings)
    return Rate.of(right, total, dealt / (len(counts) * total) if total else 0.0)


def _object(said: ObjectClaims, looks: _Looks) -> tuple[int, int]:
    return int(bool(said.described) and (said.described or frozenset()) <= looks[0]), 1


def _attributes(said: ObjectClaims, looks: _Looks) -> tuple[int, int]:
    named = (said.described or frozenset(), said.new_look)
    return sum(len(claimed & look) for claimed, look in zip(named, looks, strict=True)), sum(map(len, named))


@dataclass(frozen=True)
class Matched:
    """The claims of a caption, each with its verdict and the number of the difference that it is right or half right
    about, or None; the number of true differences; whether the caption says that nothing changed."""

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
    for (row, claim), (column, difference) in itertools.product(enumerate(claims), enumerate(truths)):
        fits, kind = _fits(claim, difference, truth), claim.kind == difference.kind
        if fits or kind:
            grades[row, column] = _RIGHT if fits and kind and look_is_true(claim, difference, truth) else _HALF
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


def _fits(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> bool:
    """Whether the object that a claim names is that of a difference."""
    if not claim.described:
        alone = sum(other.kind == claim.kind for other in truth.differences) == 1
        return alone and claim.kind == difference.kind and place_fits(claim, difference, truth)
    look = common_look(difference.before or difference.after)
    return claim.described <= look and place_fits(claim, difference, truth)


def place_fits(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> bool:
    """Whether the named sides and relations are the object's in an image that shows it."""
    if truth.views is None:
        return True
    images = zip((difference.before, difference.after), (truth.before, truth.after), truth.views, strict=True)
    shown = [(thing_of(thing), things, view) for shown_things, things, view in images for thing in shown_things]
    sides = all(any(on_side(side, thing, view, 0.0) for thing, _, view in shown) for side in claim.sides)
    return sides and all(
        any(
            relation == "near" or relation_holds(relation, thing, thing_of(other), view, 0.0)
            for thing, things, view in shown
            for other in things
            if named <= look_of(other)
        )
        for relation, named in claim.relations
    )


def look_is_true(claim: SentenceClaim, difference: Difference, truth: TrueDifferences) -> bool:
    """Whether all that a claim says of the old and the new look is true; sides are not checked without views."""
    old, new = (_facts(side) for side in (difference.before, difference.after))
    if difference.kind == COUNT:
        step = len(difference.after) - len(difference.before)
        way = MORE if step > 0 else FEWER
        new |= {(COUNT, way), (COUNT, f"{way} by {abs(step)}")}
    elif difference.kind == "move" and truth.views is not None:
        start, end = thing_of(difference.before[0]), thing_of(difference.after[0])
        old |= {(SIDE, side) for side in SIDES if on_side(side, start, truth.views[0], 0.0)}
        new |= {
            (SIDE, side) for side in SIDES if any(moved_towards(side, start, end, view, 0.0) for view in truth.views)
        }
    unchecked = {(SIDE, side) for side in SIDES} if truth.views is None else set()
    return claim.old <= old | unchecked and claim.new <= new | unchecked


def _facts(things: Things) -> set[tuple[str, str]]:
    common = common_look(things) if things else frozenset()
    return {(COUNT, str(len(things))), *common, *((TEXT, str(thing["text"])) for thing in things if thing.get("text"))}


def common_look(things: Things) -> Attributes:
    """The attributes that all of these objects have."""
    return frozenset[tuple[str, str]].intersection(*(look_of(thing) for thing in things))


class ByCount(_Record):
    """Means over the pairs with a number of true differences."""

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
    """The scores of a split; a ValueError if there are no pairs."""
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
