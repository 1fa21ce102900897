"""Captions of rendered pairs with exactly one planted error: what a measure of captions ought to see.

The language is that of :mod:`idc.rendered.sentences`; all clauses but the one with the error are true.

================= ====================================================================================================
error             the clause
================= ====================================================================================================
wrong object      names, by all attributes, an object that did not change in place of the one that did
wrong attribute   one attribute of the object is another one: no object fits
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

from idc.rendered.captions import (
    ATTRIBUTES,
    VALUES,
    Record,
    ReferringOptions,
    SceneDescription,
    find_referring_options,
    matching,
    thing_of,
)
from idc.rendered.differences import REVERSED, Difference
from idc.rendered.scene import SceneObject, View
from idc.rendered.sentences import DIRECTED_MOVES, clause, clauses_of_changes, join_clauses

ERRORS = ("wrong object", "wrong attribute", "missing", "invented", "swapped order")
_BY_ALL = SceneDescription(ATTRIBUTES)


def planted(
    kind: str, differences: Sequence[Difference], before: Sequence[Record], after: Sequence[Record],
    views: Sequence[View], rng: np.random.Generator,
) -> str | None:  # fmt: skip
    """A caption with one error of a kind of :data:`ERRORS`, else true and complete; None if the pair has no such error:
    nothing to get wrong, one difference alone to leave out, no second object, nothing that has a direction."""
    scene = _Images(before, after, views)
    true = [_clause(find_referring_options(difference, before, after, views), rng) for difference in differences]
    if kind == "invented":
        return join_clauses([*true, _invented(scene, rng)], rng)
    if kind == "missing":
        left_out = int(rng.integers(max(1, len(true))))
        return join_clauses(true[:left_out] + true[left_out + 1 :], rng) if len(true) > 1 else None
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

    def bystanders(self) -> list[SceneObject]:
        """Objects that did not change, each the only one of its look in both images."""
        same = [thing_of(record) for record in self.before if record in self.after]
        return [thing for thing in same if self.counts(thing) == [1, 1]]

    def counts(self, look: SceneObject) -> list[int]:
        """How many objects of either image look so."""
        return [len(matching(image, look, ATTRIBUTES)) for image in self.things]


def _clause(
    statement: ReferringOptions, rng: np.random.Generator, fits: Callable[[str], bool] = lambda template: True
) -> str:
    options = [template for template in clauses_of_changes(statement) if fits(template)]
    return clause(statement, options[int(rng.integers(len(options)))], rng)


def _about(difference: Difference, options: Sequence[SceneObject], rng: np.random.Generator) -> str | None:
    """A clause about a difference that names one of the objects by all attributes."""
    if not options:
        return None
    return _clause(ReferringOptions(difference, options[int(rng.integers(len(options)))], (_BY_ALL,)), rng)


def _wrong_object(difference: Difference, scene: _Images, rng: np.random.Generator) -> str | None:
    options = scene.bystanders()
    if difference.kind in ("color", "material", "size"):
        # Otherwise the clause would contradict itself: "the blue cube has turned from red to blue"
        old = difference.before[0][difference.kind]
        options = [other for other in options if getattr(other, difference.kind) == old]
    elif difference.kind == "replace":
        options = [other for other in options if other.shape != difference.after[0]["shape"]]
    return _about(difference, options, rng)


def _wrong_attribute(difference: Difference, scene: _Images, rng: np.random.Generator) -> str | None:
    thing = thing_of((*difference.before, *difference.after)[0])
    looks = [
        replace(thing, **{name: value})  # type: ignore[arg-type]
        for name in ATTRIBUTES
        # What changes stays, else the clause would contradict itself
        if name != difference.kind and (difference.kind, name) != ("replace", "shape")
        for value in VALUES[name]
    ]
    return _about(difference, [look for look in looks if scene.counts(look) == [0, 0]], rng)


def _invented(scene: _Images, rng: np.random.Generator) -> str | None:
    kind = str(rng.choice(["add", "drop", "color", "move"]))
    if kind == "add" or not scene.bystanders():
        while True:
            look = {name: str(rng.choice(values)) for name, values in VALUES.items()}
            thing = SceneObject(**look, radius=0.0, x=0.0, y=0.0, turn=0.0)
            if scene.counts(thing) == [0, 0]:
                return _about(Difference("add", (), (look,)), [thing], rng)
    thing = scene.bystanders()[0]
    look = {name: getattr(thing, name) for name in ATTRIBUTES}
    colors = [value for value in VALUES["color"] if value != thing.color]
    new = {**look, "color": str(rng.choice(colors))} if kind == "color" else look
    return _about(Difference(kind, (look,), () if kind == "drop" else (new,)), [thing], rng)


def _swapped(difference: Difference, scene: _Images, rng: np.random.Generator) -> str | None:
    if difference.kind == "orientation":
        return None
    back = Difference(REVERSED.get(difference.kind, difference.kind), difference.after, difference.before)
    images = (scene.after, scene.before, scene.views[::-1])
    statement = find_referring_options(back, *images)
    if not statement.describable:
        return None
    if difference.kind == "move":
        return _clause(statement, rng, lambda template: template in DIRECTED_MOVES) if statement.moves else None
    return _clause(statement, rng)
