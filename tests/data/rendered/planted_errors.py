"""Captions of rendered pairs with exactly one planted error: what a measure of captions ought to see.

The language is that of :mod:`idc.data.rendered.sentences`; all clauses but the one with the error are true.

================= ====================================================================================================
error             the clause
================= ====================================================================================================
wrong object      names, by all attributes, an object that did not change in place of the one that did
wrong attribute   one attribute of the object, its new look, number or letter is another one: no object fits, or the
                  new look is not true
missing           one difference is not told (of at least two)
invented          one more clause, of a change that did not happen, about an object that did not change or is not there
swapped order     one difference is told as if after came before before: "added" for "removed", "from blue to red" for
                  "from red to blue"
================= ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from idc.data.rendered.captions import ATTRIBUTES, VALUES, SceneDescription, matching
from idc.data.rendered.differences import Difference
from idc.data.rendered.referring import Record, Referring, Told, thing_of
from idc.data.rendered.scene import REVERSED, Thing, View
from idc.data.rendered.sentences import (
    DIRECTED_MOVES,
    clause,
    clauses_of_changes,
    describable_difference,
    join_clauses,
    tell,
)

ERRORS: tuple[str, ...] = ("wrong object", "wrong attribute", "missing", "invented", "swapped order")

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_BY_ALL = Referring(SceneDescription(ATTRIBUTES))


def planted(
    kind: str,
    differences: Sequence[Difference],
    before: Sequence[Record],
    after: Sequence[Record],
    views: Sequence[View],
    rng: np.random.Generator,
) -> str | None:
    """A caption with one error of a kind of :data:`ERRORS`, else true and complete.

    Args:
        differences, before, after, views: as :func:`~idc.data.rendered.sentences.several_captions`.

    Returns:
        The caption; None if the pair has no such error: nothing to get wrong ("invented" alone is possible without
        differences), one difference alone to leave out, no second object, nothing that has a direction.

    Raises:
        ValueError: there is no such error, or a difference has no unambiguous description.
    """
    if kind not in ERRORS:
        raise ValueError(f"no error is called {kind!r}; there are: {', '.join(ERRORS)}")
    scene = _Images(before, after, views)
    true = [_clause(tell(difference, before, after, views), rng) for difference in differences]
    if kind == "invented":
        wrong = _invented(scene, rng)
        return None if wrong is None else join_clauses([*true, wrong], rng)
    if kind == "missing":
        if len(true) < 2:
            return None
        left_out = int(rng.integers(len(true)))
        return join_clauses(true[:left_out] + true[left_out + 1 :], rng)
    make = {"wrong object": _wrong_object, "wrong attribute": _wrong_attribute, "swapped order": _swapped}[kind]
    for index in rng.permutation(len(true)):
        wrong = make(differences[index], scene, rng)
        if wrong is not None:
            true[index] = wrong
            return join_clauses(true, rng)
    return None


class _Images:
    """The objects of both images."""

    def __init__(self, before: Sequence[Record], after: Sequence[Record], views: Sequence[View]) -> None:
        self.before, self.after, self.views = before, after, views
        self.things = [[thing_of(record) for record in image] for image in (before, after)]

    def bystanders(self) -> list[Thing]:
        """Objects that did not change, each the only one of its look in both images."""
        same = [thing_of(record) for record in self.before if record in self.after]
        return [thing for thing in same if all(self._count(thing, image) == 1 for image in (0, 1))]

    def has(self, look: Thing) -> bool:
        return any(self._count(look, image) for image in (0, 1))

    def _count(self, look: Thing, image: int) -> int:
        return len(matching(self.things[image], look, ATTRIBUTES))


def _clause(statement: Told, rng: np.random.Generator, fits: Callable[[str], bool] = lambda template: True) -> str:
    options = [template for template in clauses_of_changes(statement) if fits(template)]
    return clause(statement, options[int(rng.integers(len(options)))], rng)


def _about(
    difference: Difference, thing: Thing, rng: np.random.Generator, fits: Callable[[str], bool] = lambda _: True
) -> str:
    """A clause about a difference that names ``thing`` by all attributes."""
    return _clause(Told(difference, thing, (_BY_ALL,), (), ()), rng, fits)


def _wrong_object(difference: Difference, scene: _Images, rng: np.random.Generator) -> str | None:
    options = scene.bystanders()
    if difference.kind in ("color", "material", "size"):
        # Otherwise the clause would contradict itself: "the blue cube has turned from red to blue"
        options = [
            other for other in options if getattr(other, difference.kind) == difference.before[0][difference.kind]
        ]
    elif difference.kind == "replace":
        options = [other for other in options if other.shape != difference.after[0]["shape"]]
    elif difference.kind in ("orientation", "text"):
        options = [other for other in options if other.shape == difference.before[0]["shape"]] or options
    return _about(difference, options[int(rng.integers(len(options)))], rng) if options else None


def _wrong_attribute(difference: Difference, scene: _Images, rng: np.random.Generator) -> str | None:
    thing = thing_of((*difference.before, *difference.after)[0])
    looks = [
        replace(thing, **{name: value})  # type: ignore[arg-type]
        for name in ATTRIBUTES
        # What changes stays, else the clause would contradict itself
        if name != difference.kind and (difference.kind, name) != ("replace", "shape")
        for value in VALUES[name]
        if value != getattr(thing, name)
    ]
    looks = [look for look in looks if not scene.has(look)]
    wrong_news = _wrong_news(difference)
    if wrong_news and (not looks or rng.random() < 0.5):
        return _about(wrong_news[int(rng.integers(len(wrong_news)))], thing, rng, lambda template: "{b}" in template)
    return _about(difference, looks[int(rng.integers(len(looks)))], rng) if looks else None


def _wrong_news(difference: Difference) -> list[Difference]:
    """The difference with another new look, letter or number."""
    if difference.kind == "count":
        record, counts = (*difference.before, *difference.after)[0], (len(difference.before), len(difference.after))
        others = [number for number in range(1, max(counts) + 2) if number not in counts]
        return [replace(difference, after=(record,) * number) for number in others]
    if difference.kind == "text":
        used = (difference.before[0]["text"], difference.after[0]["text"])
        values = [("text", letter) for letter in LETTERS if letter not in used]
    elif difference.kind == "color":
        used = (difference.before[0]["color"], difference.after[0]["color"])
        values = [("color", color) for color in VALUES["color"] if color not in used]
    elif difference.kind == "replace":
        new = difference.after[0]
        names = ("size", "color", "material")
        values = [(name, value) for name in names for value in VALUES[name] if value != new[name]]
    else:
        return []
    return [replace(difference, after=({**difference.after[0], name: value},)) for name, value in values]


def _invented(scene: _Images, rng: np.random.Generator) -> str | None:
    options = scene.bystanders()
    kinds = ["add", *(["drop", "color", "material", "size", "move", "orientation"] if options else [])]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == "add":
        for _ in range(100):
            drawn = {name: str(rng.choice(values)) for name, values in VALUES.items()}
            thing = Thing(**drawn, radius=0.0, x=0.0, y=0.0, turn=0.0)
            if not scene.has(thing):
                return _about(Difference("add", (), (drawn,)), thing, rng)
        return None
    thing = options[int(rng.integers(len(options)))]
    look = {name: getattr(thing, name) for name in ATTRIBUTES}
    if kind == "drop":
        return _about(Difference(kind, (look,), ()), thing, rng)
    new = dict(look)
    if kind in VALUES:
        new[kind] = str(rng.choice([value for value in VALUES[kind] if value != look[kind]]))
    return _about(Difference(kind, (look,), (new,)), thing, rng)


def _swapped(difference: Difference, scene: _Images, rng: np.random.Generator) -> str | None:
    if difference.kind == "orientation":
        return None
    back = Difference(REVERSED.get(difference.kind, difference.kind), difference.after, difference.before)
    images = (scene.after, scene.before, scene.views[::-1])
    if not describable_difference(back, *images):
        return None
    statement = tell(back, *images)
    if difference.kind == "move":
        return _clause(statement, rng, lambda template: template in DIRECTED_MOVES) if statement.moves else None
    return _clause(statement, rng)
