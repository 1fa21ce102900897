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
existing object some object of either image has all attributes that are named            described objects, second
                                                                                         ones included
invented change the caption of an unchanged pair names a change (to be low)              unchanged pairs
missed change   the caption of a changed pair names none (to be low)                     changed pairs
=============== ======================================================================== ============================

``chance`` is the rate that the same captions have on average when they are dealt out to the same pairs at random: what
is known of a data set without looking at a pair. Whether a relation between two objects holds is not checked. The
attribute rate is also counted for each attribute alone (:attr:`Hallucination.by_attribute`).

Intervals are Wilson's (1927), 95 %. The claims of one caption are not independent, so an interval counts at most as
many cases as there are pairs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.metrics.changes import COLORS, named_type
from idc.rendered.captions import ANY_SHAPE, ATTRIBUTES, SYNONYMS

Attributes = frozenset[tuple[str, str]]
"""Some (attribute, value) pairs: ``{("color", "red"), ("shape", "cube")}``."""

_KIND_OF = {
    **dict.fromkeys(("large", "small"), "size"),
    **dict.fromkeys(("rubber", "metal"), "material"),
    **dict.fromkeys(("sphere", "cube", "cylinder"), "shape"),
}
WORDS: dict[str, tuple[str, str]] = {
    **{word: (_KIND_OF[value], value) for value, words in SYNONYMS.items() for word in words},
    **{color: ("color", color) for color in COLORS},
    "grey": ("color", "gray"),
}
"""Word -> (attribute, value), the inverse of the captions' synonyms."""

INVENTED, MISSED = "invented change", "missed change"
"""Names of the rates that count mistakes."""

_Z = 1.959964
"""Quantile of the standard normal distribution for intervals of 95 %."""

_NOUNS = frozenset((*(word for word, (kind, _) in WORDS.items() if kind == "shape"), *ANY_SHAPE))
_RELATION = re.compile(
    r"\b(?:left of|right of|(?:left|right) side of|in front of|behind|beside|near|"
    r"(?:next|close|closer|nearer|adjacent|opposite|relative) to)(?: the| an?)?$"
)
_NEW_LOOK = re.compile(r"\b(?:to|into|turned|turns|became|becomes|become|now|painted)(?: an?| the| be| made| of)*$")


class Rate(BaseModel):
    """A share with its counts."""

    model_config = ConfigDict(extra="forbid")
    right: int
    of: int
    rate: float
    """``right / of``; 0 where there is nothing to count."""
    chance: float
    """The same captions, dealt out to the pairs at random."""

    def interval(self, pairs: int) -> tuple[float, float]:
        """The 95 % interval of the rate (Wilson).

        Args:
            pairs: number of pairs that the counted claims are about; the interval counts no more cases than these.
        """
        return wilson(self.rate, min(self.of, pairs))


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
    existing_object: Rate
    invented_change: Rate
    missed_change: Rate
    by_attribute: dict[str, Rate]
    """:data:`~idc.rendered.captions.ATTRIBUTES` -> its attribute rate."""

    def rates(self) -> dict[str, Rate]:
        """All rates by their names in words, each attribute's after that of all attributes."""
        attributes = {f"attribute, {name}": rate for name, rate in self.by_attribute.items()}
        return {
            "change type": self.change_type,
            "object": self.object,
            "attribute": self.attribute,
            **attributes,
            "existing object": self.existing_object,
            INVENTED: self.invented_change,
            MISSED: self.missed_change,
        }

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of one of :meth:`rates`."""
        return self.rates()[name].interval(self.changed if name.startswith("attribute") else self.pairs)


@dataclass(frozen=True)
class Claims:
    """The claims of a caption about objects."""

    described: Attributes | None
    """Of the changed object; ``None`` if no noun phrase describes it."""
    new_look: Attributes
    """Its attributes after the change."""
    others: tuple[Attributes, ...]
    """Of the objects it is related to."""


@dataclass(frozen=True)
class Truth:
    """The true facts about a pair."""

    kind: str
    """Its change type."""
    described: Attributes
    """The changed object as it looks before the change (an added object: after it); empty for an unchanged pair."""
    after: Attributes
    """The changed object after the change; empty if there is none."""
    objects: tuple[Attributes, ...]
    """All objects of both images."""


@lru_cache(maxsize=65536)
def claims(caption: str) -> Claims:
    """Read a caption's noun phrases."""
    described: Attributes | None = None
    new_look: set[tuple[str, str]] = set()
    others: list[Attributes] = []
    for before, phrase, named in _noun_phrases(caption):
        is_object = phrase[-1] in _NOUNS  # "the red one": no noun of ours, nothing to distinguish
        if _RELATION.search(before):  # first, as "next to" ends in a word of a new look
            others += [named] if is_object else []
        elif _NEW_LOOK.search(before):
            new_look |= named
        elif is_object and described is None:
            described = named
    return Claims(described, frozenset(new_look), tuple(others))


def _noun_phrases(text: str) -> Iterator[tuple[str, list[str], Attributes]]:
    """The text before each noun phrase, the words of the phrase, and the attributes they name."""
    words = re.findall(r"[a-z]+", text.lower())
    start = 0
    for end, word in enumerate([*words, ""]):
        if word in WORDS and word not in _NOUNS:
            continue
        phrase = words[start : end + 1] if word in _NOUNS else words[start:end]
        before = " ".join(words[:start])
        start = end + 1
        if phrase:
            yield before, phrase, frozenset(WORDS[word] for word in phrase if word in WORDS)


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
    objects = tuple(dict.fromkeys(look_of(thing) for thing in (*before, *after)))
    if change_type == NO_CHANGE:
        return Truth(NO_CHANGE, frozenset(), frozenset(), objects)
    gone = [look_of(thing) for thing in before if thing not in after]
    new = [look_of(thing) for thing in after if thing not in before]
    return Truth(change_type, (gone or new)[0], new[0] if new else frozenset(), objects)


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
    both = list(rows)
    if not both:
        raise ValueError("there are no captions of pairs whose truth is known")
    changed = [(caption, true) for caption, true in both if true.kind != NO_CHANGE]
    unchanged = [(caption, true) for caption, true in both if true.kind == NO_CHANGE]
    named, kinds = Counter(named_type(caption) for caption, _ in both), Counter(true.kind for _, true in both)
    says_change = sum(count for kind, count in named.items() if kind not in (None, NO_CHANGE)) / len(both)
    return Hallucination(
        pairs=len(both),
        changed=len(changed),
        change_type=_rate(
            sum(named_type(caption) == true.kind for caption, true in both),
            len(both),
            sum(named[kind] * count for kind, count in kinds.items()) / len(both) ** 2,
        ),
        object=_rate(
            sum(_fits(claims(caption), _looks(true)) for caption, true in changed),
            len(changed),
            _object_chance(changed),
        ),
        attribute=_attribute_rate(changed),
        existing_object=_existing_rate(both),
        invented_change=_rate(
            sum(named_type(caption) not in (None, NO_CHANGE) for caption, _ in unchanged), len(unchanged), says_change
        ),
        missed_change=_rate(
            sum(named_type(caption) == NO_CHANGE for caption, _ in changed), len(changed), named[NO_CHANGE] / len(both)
        ),
        by_attribute={name: _attribute_rate(changed, (name,)) for name in ATTRIBUTES},
    )


def hallucination_table(scores: Hallucination) -> str:
    """The rates as plain text."""
    lines = [f"claims of the captions, {scores.pairs} pairs, {scores.changed} of them changed; 95 % intervals (Wilson)"]
    for name, rate in scores.rates().items():
        low, high = scores.interval(name)
        counts, interval = f"({rate.right} of {rate.of})", f"{100 * low:.1f} to {100 * high:.1f}"
        wanted = ", to be low" if name in (INVENTED, MISSED) else ""
        lines.append(f"  {name:20}{rate.rate:7.1%} {counts:16} {interval:>15}  chance {rate.chance:.1%}{wanted}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------ counting


def _rate(right: int, of: int, chance: float) -> Rate:
    return Rate(right=right, of=of, rate=right / of if of else 0.0, chance=chance if of else 0.0)


def _looks(true: Truth) -> tuple[Attributes, Attributes]:
    return true.described, true.after


def _fits(said: Claims, looks: tuple[Attributes, Attributes]) -> bool:
    return bool(said.described) and (said.described or frozenset()) <= looks[0]


def _attributes(
    said: Claims, looks: tuple[Attributes, Attributes], only: Sequence[str] = ATTRIBUTES
) -> tuple[int, int]:
    """Right and all attributes that a caption names, of the kinds ``only``."""
    described, new_look = _of_kinds(said.described or frozenset(), only), _of_kinds(said.new_look, only)
    return len(described & looks[0]) + len(new_look & looks[1]), len(described) + len(new_look)


def _of_kinds(named: Attributes, kinds: Sequence[str]) -> Attributes:
    return frozenset(attribute for attribute in named if attribute[0] in kinds)


def _object_chance(changed: Sequence[tuple[str, Truth]]) -> float:
    """The mean over all (caption, pair): equal captions and equal looks are counted once."""
    if not changed:
        return 0.0
    said, looks = Counter(claims(caption) for caption, _ in changed), Counter(_looks(true) for _, true in changed)
    fitting = sum(
        many * times for claimed, many in said.items() for look, times in looks.items() if _fits(claimed, look)
    )
    return fitting / len(changed) ** 2


def _attribute_rate(changed: Sequence[tuple[str, Truth]], only: Sequence[str] = ATTRIBUTES) -> Rate:
    counts = [_attributes(claims(caption), _looks(true), only) for caption, true in changed]
    right, of = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    said, looks = Counter(claims(caption) for caption, _ in changed), Counter(_looks(true) for _, true in changed)
    by_chance = sum(
        many * times * _attributes(claimed, look, only)[0]
        for claimed, many in said.items()
        for look, times in looks.items()
    )
    return _rate(right, of, by_chance / (len(changed) * of) if of else 0.0)


def _existing_rate(both: Sequence[tuple[str, Truth]]) -> Rate:
    """Of described objects; those of which no attribute is named ("the object moved") claim nothing."""

    def named(said: Claims) -> list[Attributes]:
        return [attributes for attributes in (said.described, *said.others) if attributes]

    right = sum(_exists(attributes, true) for caption, true in both for attributes in named(claims(caption)))
    described = Counter(attributes for caption, _ in both for attributes in named(claims(caption)))
    of = sum(described.values())
    scenes = [true for _, true in both]
    by_chance = sum(many * sum(_exists(attributes, true) for true in scenes) for attributes, many in described.items())
    return _rate(right, of, by_chance / (len(scenes) * of) if of else 0.0)


def _exists(described: Attributes, true: Truth) -> bool:
    return any(described <= thing for thing in true.objects)
