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
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.metrics.changes import named_type
from idc.metrics.claims import Attributes, ObjectClaims, read_object_claims
from idc.rendered.captions import ATTRIBUTES

INVENTED, MISSED = "invented change", "missed change"
"""Names of the rates that count mistakes."""

_Z = 1.959964
"""Quantile of the standard normal distribution for intervals of 95 %."""


class Rate(BaseModel):
    """A share with its counts."""

    model_config = ConfigDict(extra="forbid")
    right: int
    total: int
    rate: float
    """``right / total``; 0 where there is nothing to count."""
    chance: float
    """The same captions, dealt out to the pairs at random."""

    def interval(self, pairs: int) -> tuple[float, float]:
        """The 95 % interval of the rate (Wilson).

        Args:
            pairs: number of pairs that the counted claims are about; the interval counts no more cases than these.
        """
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
        return {
            "change type": self.change_type,
            "object": self.object,
            "attribute": self.attribute,
            INVENTED: self.invented_change,
            MISSED: self.missed_change,
        }

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of one of :meth:`rates`."""
        return self.rates()[name].interval(self.changed if name == "attribute" else self.pairs)


@dataclass(frozen=True)
class Truth:
    """The true facts about a pair."""

    kind: str
    """Its change type."""
    described: Attributes
    """The changed object as it looks before the change (an added object: after it); empty for an unchanged pair."""
    after: Attributes
    """The changed object after the change; empty if there is none."""


def look_of(thing: Mapping[str, Any]) -> Attributes:
    """All attributes of an object, as the ``meta`` of a rendered pair has it."""
    return frozenset((name, str(thing[name])) for name in ATTRIBUTES)


def truth_of(change_type: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Truth:
    """The truth of a rendered pair.

    Args:
        change_type: of the pair.
        before: the objects in the before image, as the ``meta`` of a rendered pair has them; ``after``: in the after
            image.
    """
    if change_type == NO_CHANGE:
        return Truth(NO_CHANGE, frozenset(), frozenset())
    gone = [look_of(thing) for thing in before if thing not in after]
    new = [look_of(thing) for thing in after if thing not in before]
    return Truth(change_type, (gone or new)[0], new[0] if new else frozenset())


def truth_in(change_type: str | None, meta: Mapping[str, Any]) -> Truth | None:
    """The truth that the ``meta`` of a pair holds; None if it does not have the objects of both images with all their
    attributes, or if these objects contradict the change type."""
    before, after = meta.get("before"), meta.get("after")
    if change_type not in CHANGE_TYPES or not _are_objects(before) or not _are_objects(after):
        return None
    if change_type != NO_CHANGE and all(thing in after for thing in before) and all(thing in before for thing in after):
        return None
    return truth_of(change_type, before, after)


def _are_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(
        isinstance(thing, dict) and thing.keys() >= set(ATTRIBUTES) for thing in value
    )


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
    types = Counter(kind for kind, _, _ in both)
    true_types = Counter(true.kind for _, _, true in both)
    changed = [row for row in both if row[2].kind != NO_CHANGE]
    unchanged = [kind for kind, _, true in both if true.kind == NO_CHANGE]
    says_change = sum(count for kind, count in types.items() if kind not in (None, NO_CHANGE)) / len(both)
    said, looks = [claims for _, claims, _ in changed], [(true.described, true.after) for _, _, true in changed]
    return Hallucination(
        pairs=len(both),
        changed=len(changed),
        change_type=_rate(
            sum(kind == true.kind for kind, _, true in both),
            len(both),
            sum(types[kind] * count for kind, count in true_types.items()) / len(both) ** 2,
        ),
        object=_rate_of(said, looks, _object),
        attribute=_rate_of(said, looks, _attributes),
        invented_change=_rate(sum(kind not in (None, NO_CHANGE) for kind in unchanged), len(unchanged), says_change),
        missed_change=_rate(
            sum(kind == NO_CHANGE for kind, _, _ in changed), len(changed), types[NO_CHANGE] / len(both)
        ),
    )


def hallucination_table(scores: Hallucination) -> str:
    """The rates as plain text."""
    lines = [f"claims of the captions, {scores.pairs} pairs, {scores.changed} of them changed; 95 % intervals (Wilson)"]
    for name, rate in scores.rates().items():
        low, high = scores.interval(name)
        counts, interval = f"({rate.right} of {rate.total})", f"{100 * low:.1f} to {100 * high:.1f}"
        wanted = ", to be low" if name in (INVENTED, MISSED) else ""
        lines.append(f"  {name:20}{rate.rate:7.1%} {counts:16} {interval:>15}  chance {rate.chance:.1%}{wanted}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------ counting

_Looks = tuple[Attributes, Attributes]
"""The described object before the change, and the changed one after it."""


def _rate(right: int, total: int, chance: float) -> Rate:
    return Rate(right=right, total=total, rate=right / total if total else 0.0, chance=chance if total else 0.0)


def _rate_of(
    said: Sequence[ObjectClaims], looks: Sequence[_Looks], count: Callable[[ObjectClaims, _Looks], tuple[int, int]]
) -> Rate:
    """The rate of ``count``, which gives the right claims and all; chance is the mean over all pairs of a caption and
    looks, equal ones counted once."""
    counts = [count(*row) for row in zip(said, looks, strict=True)]
    right, total = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    pairings = itertools.product(Counter(said).items(), Counter(looks).items())
    dealt = sum(many * times * count(claims, look)[0] for (claims, many), (look, times) in pairings)
    return _rate(right, total, dealt / (len(counts) * total) if total else 0.0)


def _object(said: ObjectClaims, looks: _Looks) -> tuple[int, int]:
    return int(bool(said.described) and (said.described or frozenset()) <= looks[0]), 1


def _attributes(said: ObjectClaims, looks: _Looks) -> tuple[int, int]:
    named = (said.described or frozenset(), said.new_look)
    return sum(len(claimed & look) for claimed, look in zip(named, looks, strict=True)), sum(map(len, named))
