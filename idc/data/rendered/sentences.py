"""References of pairs with no, one or several true differences, in OmniDiff's manner: one clause a difference.

A clause has a *referring part*, which fits exactly one object of the image where one looks for it, and a *change part*:
"the small red cube on the left side of the scene | has turned from red to blue". An object is looked for in the before
image, what was added in the after image; what was turned, written on or moved must be the only one that fits in both.
The referring part names at least two attributes and, where these are ambiguous or in a share of the other cases, the
object's relation to an object that did not change, or its side of the picture. Relations and sides hold in every image
that shows the object, because the camera may turn between them. The words are those of
:mod:`idc.data.rendered.captions` and few more, so that small models learn them.

A caption names every difference, in any order. :mod:`idc.metrics.difference_lists` takes it apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from idc.data.rendered.captions import (
    ANY_SHAPE,
    ATTRIBUTES,
    SUBSETS,
    SYNONYMS,
    TEMPLATES,
    Description,
    Sight,
    descriptions,
    holds,
    matching,
    no_change_captions,
    phrase,
)
from idc.data.rendered.differences import Difference
from idc.data.rendered.scene import Thing, View

Record = Mapping[str, Any]
"""An object as the ``meta`` of a pair has it."""

RELATION_SHARE, SIDE_SHARE = 0.25, 0.25
"""Shares of the clauses that name a relation, or a side of the picture, although attributes alone are unambiguous."""

CLEAR_SIDE = 1.0
"""Least distance in scene units from the middle of the picture, along the ground, of what is on one of its sides."""

CLEAR_MOVE = 1.0
"""Least way in scene units, along the ground and in both views, of what has moved to a side."""

SIDES: dict[str, tuple[str, ...]] = {
    "left": ("on the left side of the scene", "on the left"),
    "right": ("on the right side of the scene", "on the right"),
    "front": ("in the foreground", "at the front of the scene"),
    "behind": ("in the background", "at the back of the scene"),
}
"""Side -> where an object is. The sides are called as the relations."""

SIDE_NAMES = {"left": "left", "right": "right", "front": "front", "behind": "back"}

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

_UP, _DOWN = {"w": "grown", "c": "larger"}, {"w": "shrunk", "c": "smaller"}

CLAUSES: dict[str, tuple[str, ...]] = {
    "add": TEMPLATES["add"],
    "drop": TEMPLATES["drop"],
    "color": (
        "the {d} has turned from {a} to {b}",
        "the {d} has changed color from {a} to {b}",
        "the color of the {d} has changed from {a} to {b}",
        "the {d} was changed from {a} to {b}",
        "the {d} is now {b} instead of {a}",
        "the {d} has turned {b}",
        "the {d} has become {b}",
        "the {d} is now {b}",
    ),
    "material": (
        "the {d} has changed from {a} to {b}",
        "the {d} has turned from {a} to {b}",
        "the material of the {d} has changed from {a} to {b}",
        "the {d} was changed from {a} to {b}",
        "the {d} is now {b} instead of {a}",
        "the {d} has turned {b}",
        "the {d} has become {b}",
        "the {d} is now {b}",
    ),
    "size": (
        "the {d} has {w} from {a} to {b}",
        "the size of the {d} has changed from {a} to {b}",
        "the {d} was changed from {a} to {b}",
        "the {d} is now {b} instead of {a}",
        "the {d} has {w}",
        "the {d} has become {c}",
        "the {d} is now {c}",
        "the {d} is now {b}",
    ),
    "replace": (
        "the {d} has been replaced by a {b}",
        "the {d} was replaced by a {b}",
        "the {d} has been replaced with a {b}",
        "someone replaced the {d} with a {b}",
        "there is a {b} in place of the {d}",
        "a {b} is now in place of the {d}",
        "a {b} has replaced the {d}",
        "a {b} has taken the place of the {d}",
    ),
    "orientation": (
        "the {d} has been rotated",
        "the {d} was rotated",
        "someone rotated the {d}",
        "the {d} has a different orientation",
        "the orientation of the {d} has changed",
        "the {d} has changed its orientation",
        "the {d} now faces another direction",
        "the {d} has been turned around",
    ),
    "move": TEMPLATES["move"],
    "count": (
        "the number of {d} has {w} from {a} to {b}",
        "the number of {d} has changed from {a} to {b}",
        "the number of {d} changed from {a} to {b}",
        "the number of {d} has gone from {a} to {b}",
        "the number of {d} is now {b} instead of {a}",
        "there {is} now {b} {n} instead of {a}",
        "there {was} {a} {m} and now there {is} {b}",
        "the number of {d} was {a} and is now {b}",
    ),
    "text": (
        "the letter on the {d} has changed from {a} to {b}",
        "the letter on the {d} was changed from {a} to {b}",
        "the letter on the {d} is now {b} instead of {a}",
        "the letter on the {d} has become {b}",
        "the letter on the {d} is now {b}",
        "the letter {a} on the {d} has changed to {b}",
        "someone changed the letter on the {d} from {a} to {b}",
        "the {d} now has the letter {b} instead of {a}",
    ),
}
"""Kind -> its clauses, eight of each. ``{d}``: the referring part, ``{a}`` and ``{b}``: old and new look, number or
letter, ``{w}`` and ``{c}``: the direction of growth; of counts ``{m}`` and ``{n}``: the objects in old and new number."""

DIRECTED_MOVES = (
    "the {d} has moved from the {a} to the {b} of the scene",
    "the {d} was moved from the {a} to the {b}",
    "the {d} has been moved to the {b}",
    "someone moved the {d} to the {b}",
)
"""Clauses of moves whose direction is clear; the first two only if the object comes from another side."""

_SAME_LOOK = ("orientation", "move", "text")
"""Kinds that leave all attributes: the object must be the only one that fits in both images."""


@dataclass(frozen=True)
class Referring:
    """A way to name the object of a difference: a description, or attributes and the side where it is."""

    description: Description
    side: str | None = None


@dataclass(frozen=True)
class Told:
    """A difference with all that a clause may say of it.

    Attributes:
        thing: the object as it looks where it is looked for; of a changed number one of the group.
        plain, relational, sided: the ways to name it; of a changed number only plain ones.
        moves: side that it came from, if it is clear, and side that it has moved to.
    """

    difference: Difference
    thing: Thing
    plain: tuple[Referring, ...]
    relational: tuple[Referring, ...]
    sided: tuple[Referring, ...]
    moves: tuple[tuple[str | None, str], ...] = ()

    @property
    def describable(self) -> bool:
        return bool(self.plain or self.relational or self.sided)


# ------------------------------------------------------------------------------------------------------- the captions


def several_captions(
    differences: Sequence[Difference],
    before: Sequence[Record],
    after: Sequence[Record],
    views: Sequence[View],
    count: int,
    rng: np.random.Generator,
) -> list[str]:
    """``count`` different captions, each of which names all differences of a pair, or says that there are none.

    Args:
        differences: as :func:`~idc.data.rendered.differences.differences_of` returns them.
        before, after: the objects of the images, as ``meta`` has them.
        views: of the before and the after image.

    Raises:
        ValueError: a difference has no true and unambiguous description (:func:`describable_difference`), or
            ``count`` is above the eight wordings of "no change".
    """
    if not differences:
        if count > len(TEMPLATES["none"]):
            raise ValueError(f"{count} captions of no change are asked for, there are {len(TEMPLATES['none'])}")
        return no_change_captions(count, rng)
    told = [tell(one, before, after, views) for one in differences]
    captions: dict[str, None] = {}
    decks = [_Deck(len(_clauses(one)), rng) for one in told]
    while len(captions) < count:
        clauses = [clause(one, rng, deck.draw()) for one, deck in zip(told, decks, strict=True)]
        captions[joined(clauses, rng)] = None
    return list(captions)


def describable_difference(
    difference: Difference, before: Sequence[Record], after: Sequence[Record], views: Sequence[View]
) -> bool:
    """Whether a clause about this difference can be true and unambiguous: some description fits its object alone (of a
    changed number: its group alone), and of a changed letter there is one before and another one after."""
    return _told(difference, before, after, views).describable


def tell(
    difference: Difference, before: Sequence[Record], after: Sequence[Record], views: Sequence[View]
) -> Told:
    """What a clause may say of a difference.

    Raises:
        ValueError: there is no true and unambiguous description.
    """
    told = _told(difference, before, after, views)
    if not told.describable:
        raise ValueError(
            f"a difference of kind {difference.kind!r} has no unambiguous description; draw another scene "
            "(describable_difference)"
        )
    return told


def joined(clauses: Sequence[str], rng: np.random.Generator) -> str:
    """The clauses in a drawn order: "a; b; c" or "a, b and c"."""
    shuffled = [clauses[place] for place in rng.permutation(len(clauses))]
    if len(shuffled) == 1 or rng.random() < 0.5:
        return "; ".join(shuffled)
    return f"{', '.join(shuffled[:-1])} and {shuffled[-1]}"


def clause(told: Told, rng: np.random.Generator, number: int | None = None) -> str:
    """One clause about a difference, of a drawn wording or of wording ``number``; the referring part is drawn."""
    templates = _clauses(told)
    template = templates[int(rng.integers(len(templates))) if number is None else number % len(templates)]
    referring = _pick(told, rng)
    return template.format(**words_of(told, referring, rng, template))


def true_wordings(differences: Sequence[Difference]) -> list[str]:
    """True captions of the differences in every wording, in their own order, each object named by all attributes.

    Returns:
        Eight captions; the n-th is made of the n-th clause of each kind.
    """
    if not differences:
        return list(TEMPLATES["none"])
    rng = _FirstWord()
    captions = []
    for number in range(8):
        clauses = []
        for one in differences:
            thing = thing_of((*one.before, *one.after)[0])
            told = Told(one, thing, (Referring(Description(ATTRIBUTES)),), (), ())
            template = CLAUSES[one.kind][number]
            clauses.append(template.format(**words_of(told, told.plain[0], rng, template)))
        captions.append("; ".join(clauses))
    return captions


def words_of(told: Told, referring: Referring, rng: Any, template: str = "") -> dict[str, str]:
    """The words of a clause: see :data:`CLAUSES`."""
    one, attributes = told.difference, referring.description.attributes
    if one.kind == "count":
        old, new = len(one.before), len(one.after)
        nouns = [plural(told.thing, attributes, number, rng) for number in (0, old, new)]
        return {
            "d": nouns[0], "m": nouns[1], "n": nouns[2], "a": NUMBER_WORDS[old], "b": NUMBER_WORDS[new],
            "w": "increased" if new > old else "decreased",
            "was": "was" if old == 1 else "were", "is": "is" if new == 1 else "are",
        }  # fmt: skip
    words = {"d": phrase(told.thing, referring.description, rng)}
    if referring.side is not None:
        words["d"] += f" {rng.choice(SIDES[referring.side])}"
    if one.kind in ("color", "material", "size"):
        words |= {"a": word(one.before[0][one.kind], rng), "b": word(one.after[0][one.kind], rng)}
        words |= _UP if one.after[0]["size"] == "large" else _DOWN
    elif one.kind == "replace":
        # The new shape is always named; of the other attributes those that the referring part names.
        named = tuple(name for name in ATTRIBUTES if name in attributes or name == "shape")
        words["b"] = phrase(thing_of(one.after[0]), Description(named), rng)
    elif one.kind == "text":
        words |= {"a": one.before[0]["text"], "b": one.after[0]["text"]}
    elif "{b}" in template:
        source = [pair for pair in told.moves if pair[0] is not None or "{a}" not in template]
        old_side, new_side = source[int(rng.integers(len(source)))]
        words |= {"a": SIDE_NAMES.get(old_side or "", ""), "b": SIDE_NAMES[new_side]}
    return words


def word(value: str, rng: Any) -> str:
    """A word for an attribute value."""
    return str(rng.choice(SYNONYMS[value])) if value in SYNONYMS else value


def plural(thing: Thing, attributes: Sequence[str], number: int, rng: Any) -> str:
    """The noun of so many objects with these attributes of ``thing``."""
    words = [word(getattr(thing, name), rng) for name in attributes]
    if "shape" not in attributes:
        words.append(str(rng.choice(ANY_SHAPE)))
    return " ".join(words) + ("" if number == 1 else "s")


def thing_of(record: Record) -> Thing:
    """The object of a record, without what the record does not have."""
    return Thing(**{one.name: record[one.name] for one in fields(Thing) if one.name in record})


def on_side(side: str, thing: Thing, view: View, margin: float) -> bool:
    """Whether an object is on a side of the picture, by more than ``margin`` from what the camera looks at."""
    return holds(side, thing, _at(thing, view.target[0], view.target[1]), view, margin)


def went(side: str, start: Thing, end: Thing, view: View, margin: float) -> bool:
    """Whether an object went to a side by more than ``margin``."""
    return holds(side, end, start, view, margin)


# ------------------------------------------------------------------------------------------------ what fits one object


class _Deck:
    """The numbers below ``size`` in a drawn order, again and again."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.left: list[int] = []

    def draw(self) -> int:
        self.left = self.left or [int(number) for number in self.rng.permutation(self.size)]
        return self.left.pop()


class _FirstWord:
    """In place of a generator: always the first of the words."""

    def choice(self, words: Sequence[str]) -> str:
        return words[0]


def _clauses(told: Told) -> tuple[str, ...]:
    templates = CLAUSES[told.difference.kind]
    if told.moves:
        directed = DIRECTED_MOVES if any(start is not None for start, _ in told.moves) else DIRECTED_MOVES[2:]
        templates = (*directed, *templates[:4])
    return templates


def _pick(told: Told, rng: np.random.Generator) -> Referring:
    """A way to name the object; every other time one of those that name the most attributes."""
    drawn = rng.random()
    options = told.plain
    if told.relational and drawn < RELATION_SHARE:
        options = told.relational
    elif told.sided and drawn < RELATION_SHARE + SIDE_SHARE:
        options = told.sided
    options = options or told.sided or told.relational
    if rng.random() < 0.5:
        most = max(len(one.description.attributes) for one in options)
        options = tuple(one for one in options if len(one.description.attributes) == most)
    return options[int(rng.integers(len(options)))]


def _told(difference: Difference, before: Sequence[Record], after: Sequence[Record], views: Sequence[View]) -> Told:
    images = [tuple(thing_of(one) for one in side) for side in (before, after)]
    if difference.kind == "count":
        return _told_count(difference, images)
    shown = []
    for own, things, view in zip((difference.before, difference.after), images, views, strict=True):
        shown += [Sight(thing_of(one), things, view) for one in own]
    nothing = Told(difference, shown[0].thing, (), (), ())
    if difference.kind == "text":
        letters = [one.get("text") for one in (*difference.before, *difference.after)]
        if None in letters or letters[0] == letters[1]:
            return nothing
    unique_in = shown if difference.kind in _SAME_LOOK else shown[:1]
    plain, relational = descriptions(unique_in, shown)
    still = set(images[0]) & set(images[1])
    return Told(
        difference,
        unique_in[0].thing,
        tuple(Referring(one) for one in plain),
        tuple(Referring(one) for one in relational if one.anchor in still),
        tuple(_sided(unique_in, shown)) if difference.kind != "move" else (),
        tuple(_moves(shown)) if difference.kind == "move" else (),
    )


def _told_count(difference: Difference, images: Sequence[Sequence[Thing]]) -> Told:
    groups = [[thing_of(one) for one in own] for own in (difference.before, difference.after)]
    thing = (groups[0] or groups[1])[0]

    def alone(attributes: Sequence[str]) -> bool:
        fitting = [matching(things, thing, attributes) for things in images]
        return all(len(own) == len(group) and set(own) == set(group) for own, group in zip(fitting, groups, strict=True))

    named = [Referring(Description(own)) for own in SUBSETS if len(own) >= 2 and alone(own)]
    return Told(difference, thing, tuple(named), (), ())


def _sided(unique_in: Sequence[Sight], shown: Sequence[Sight]) -> list[Referring]:
    found = []
    for side in SIDES:
        if not all(on_side(side, one.thing, one.view, CLEAR_SIDE) for one in shown):
            continue
        found += [
            Referring(Description(attributes), side)
            for attributes in SUBSETS
            if len(attributes) >= 2 and not any(_another(attributes, side, one) for one in unique_in)
        ]
    return found


def _another(attributes: Sequence[str], side: str, sight: Sight) -> bool:
    """Whether a second object with these attributes of the first may be said to be on this side."""
    return any(
        on_side(side, other, sight.view, 0.0)
        for other in matching(sight.things, sight.thing, attributes)
        if other is not sight.thing and other != sight.thing
    )


def _moves(shown: Sequence[Sight]) -> list[tuple[str | None, str]]:
    """Sides that an object has moved to, each with one that it came from, or None."""
    start, end = shown
    found: list[tuple[str | None, str]] = []
    for side in SIDES:
        if not all(went(side, start.thing, end.thing, one.view, CLEAR_MOVE) for one in shown):
            continue
        if not on_side(side, end.thing, end.view, CLEAR_SIDE):
            continue
        clear: Callable[[str], bool] = lambda one: on_side(one, start.thing, start.view, CLEAR_SIDE)  # noqa: E731
        sources = [one for one in SIDES if one != side and clear(one) and not on_side(one, end.thing, end.view, 0.0)]
        found += [(source, side) for source in sources] or [(None, side)]
    return found


def _at(thing: Thing, x: float, y: float) -> Thing:
    return Thing(thing.shape, thing.color, thing.material, thing.size, thing.radius, x, y, thing.turn)
