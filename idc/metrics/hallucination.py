"""The claims of captions of rendered pairs against the truth: the object, its attributes, the kind of change.

The truth is the scene graph that a rendered pair carries (``meta``: the objects ``before`` and ``after``). A caption is
read by the words of :mod:`idc.rendered.captions`. A noun phrase is a noun (a shape, "object", "thing") with the
attribute words right before it. One that follows a relation ("left of the", "next to the") describes a second object,
the words after "to", "turned", "became", "now" are the new look, and the first other one describes the changed object.

=============== ======================================================================== ============================
rate            right if                                                                 of
=============== ======================================================================== ============================
change type     the caption names the pair's type (:mod:`idc.metrics.changes`)           all pairs
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
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.metrics.changes import named_type
from idc.metrics.claims import Attributes, ObjectClaims, read_object_claims
from idc.rendered.captions import ATTRIBUTES

INVENTED, MISSED = "invented change", "missed change"
"""Names of the rates that count mistakes."""

_Z = 1.959964
"""Quantile of the standard normal distribution for intervals of 95 %."""

Things = Sequence[Mapping[str, Any]]
"""Objects of an image, as the ``meta`` of a rendered pair has them."""


class Rate(BaseModel):
    """A share with its counts."""

    model_config = ConfigDict(extra="forbid")
    right: int
    total: int
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


class Hallucination(BaseModel):
    """The rates of the module's table."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    changed: int
    change_type: Rate
    object: Rate
    attribute: Rate
    invented_change: Rate
    missed_change: Rate

    def rates(self) -> dict[str, Rate]:
        """All rates by their names in words."""
        names = ("change_type", "object", "attribute", "invented_change", "missed_change")
        return {name.replace("_", " "): getattr(self, name) for name in names}

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of one of :meth:`rates`."""
        return self.rates()[name].interval(self.changed if name == "attribute" else self.pairs)


@dataclass(frozen=True)
class Truth:
    """The true facts about a pair.

    Attributes:
        kind: its change type.
        described: the changed object as it looks before the change (an added object: after it); empty for an unchanged
            pair.
        after: the changed object after the change; empty if there is none.
    """

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
    sides: list[Any] = [meta.get("before"), meta.get("after")]
    if change_type not in CHANGE_TYPES or not all(isinstance(side, list) for side in sides):
        return None
    before, after = sides
    if not all(isinstance(thing, dict) and thing.keys() >= set(ATTRIBUTES) for thing in (*before, *after)):
        return None
    if change_type != NO_CHANGE and not any(changed_things(before, after)):
        return None
    return truth_of(change_type, before, after)


def hallucination(rows: Iterable[tuple[str, Truth]]) -> Hallucination:
    """The rates of captions.

    Args:
        rows: (caption, truth of its pair).

    Raises:
        ValueError: there are none.
    """
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


def hallucination_table(scores: Hallucination) -> str:
    """The rates as plain text."""
    lines = [f"claims of the captions, {scores.pairs} pairs, {scores.changed} of them changed; 95 % intervals (Wilson)"]
    for name, rate in scores.rates().items():
        low, high = scores.interval(name)
        counts, interval = f"({rate.right} of {rate.total})", f"{100 * low:.1f} to {100 * high:.1f}"
        wanted = ", to be low" if name in (INVENTED, MISSED) else ""
        lines.append(f"  {name:20}{rate.rate:7.1%} {counts:16} {interval:>15}  chance {rate.chance:.1%}{wanted}")
    return "\n".join(lines)
