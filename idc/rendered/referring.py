"""Descriptions that fit one object alone: the ways to name the object of a difference, and the sides of a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from idc.rendered.captions import RELATIONS, SUBSETS, ObjectInView, SceneDescription, descriptions, holds, matching
from idc.rendered.differences import Difference
from idc.rendered.scene import SceneObject, View

Record = Mapping[str, Any]
"""An object as the ``meta`` of a pair has it."""

CLEAR_SIDE = 1.0
"""Least distance in scene units from the middle of the picture, along the ground, of what is on one of its sides."""

CLEAR_MOVE = 1.0
"""Least way in scene units, along the ground and in both views, of what has moved to a side."""

SIDES = tuple(RELATIONS)
"""Sides of a picture, called as the relations: left, right, front, behind."""

_SAME_LOOK = ("orientation", "move", "text")
"""Kinds that leave all attributes: the object must be the only one that fits in both images."""


@dataclass(frozen=True)
class ReferringOptions:
    """A difference with all that a clause may say of it.

    Attributes:
        thing: the object as it looks where it is looked for; of a changed number one of the group, its plain
            descriptions fit the group.
        plain, relational, sided: the ways to name it: by attributes, also a relation, also a side.
        moves: side that it came from, if it is clear, and side that it has moved to.
    """

    difference: Difference
    thing: SceneObject
    plain: tuple[SceneDescription, ...]
    relational: tuple[SceneDescription, ...] = ()
    sided: tuple[SceneDescription, ...] = ()
    moves: tuple[tuple[str | None, str], ...] = ()

    @property
    def describable(self) -> bool:
        """Whether a clause about the difference can be true and unambiguous."""
        return bool(self.plain or self.relational or self.sided)


def find_referring_options(
    difference: Difference, before: Sequence[Record], after: Sequence[Record], views: Sequence[View]
) -> ReferringOptions:
    """All that a clause may say of a difference; not describable if nothing fits its object alone.

    Args:
        before, after: the objects of the images, as ``meta`` has them; ``views``: of both.
    """
    images = [tuple(thing_of(record) for record in side) for side in (before, after)]
    if difference.kind == "count":
        return _count_options(difference, images)
    shown = []
    every = zip((difference.before, difference.after), (before, after), images, views, strict=True)
    for records, side, things, view in every:
        shown += [ObjectInView(things[list(side).index(record)], things, view) for record in records]
    if difference.kind == "text":
        letters = [record.get("text") for record in (*difference.before, *difference.after)]
        if not all(letters) or letters[0] == letters[1]:
            return ReferringOptions(difference, shown[0].thing, ())
    unique_in = shown if difference.kind in _SAME_LOOK else shown[:1]
    plain, relational = descriptions(unique_in, shown)
    still = {thing_of(record) for record in before if record in after}
    return ReferringOptions(
        difference,
        unique_in[0].thing,
        tuple(plain),
        tuple(description for description in relational if description.anchor in still),
        tuple(_sided(unique_in, shown)) if difference.kind != "move" else (),
        tuple(_moves(shown)) if difference.kind == "move" else (),
    )


def _count_options(difference: Difference, images: Sequence[Sequence[SceneObject]]) -> ReferringOptions:
    groups = [[thing_of(record) for record in records] for records in (difference.before, difference.after)]
    thing = (groups[0] or groups[1])[0]

    def alone(attributes: Sequence[str]) -> bool:
        fitting = [matching(things, thing, attributes) for things in images]
        return all(
            len(things) == len(group) and set(things) == set(group)
            for things, group in zip(fitting, groups, strict=True)
        )

    named = (SceneDescription(attributes) for attributes in SUBSETS if len(attributes) >= 2 and alone(attributes))
    return ReferringOptions(difference, thing, tuple(named))


def _sided(unique_in: Sequence[ObjectInView], shown: Sequence[ObjectInView]) -> list[SceneDescription]:
    sided = []
    for side in SIDES:
        if not all(on_side(side, sight.thing, sight.view, CLEAR_SIDE) for sight in shown):
            continue
        sided += [
            SceneDescription(attributes, side=side)
            for attributes in SUBSETS
            if len(attributes) >= 2 and not any(_another(attributes, side, sight) for sight in unique_in)
        ]
    return sided


def _another(attributes: Sequence[str], side: str, sight: ObjectInView) -> bool:
    """Whether a second object with these attributes of the first may be said to be on this side."""
    return any(
        on_side(side, other, sight.view, 0.0)
        for other in matching(sight.things, sight.thing, attributes)
        if other is not sight.thing and other != sight.thing
    )


def _moves(shown: Sequence[ObjectInView]) -> list[tuple[str | None, str]]:
    """Sides that an object has moved to, each with one that it came from, or None."""
    start, end = shown
    moves: list[tuple[str | None, str]] = []
    for side in SIDES:
        if not all(went(side, start.thing, end.thing, sight.view, CLEAR_MOVE) for sight in shown):
            continue
        if not on_side(side, end.thing, end.view, CLEAR_SIDE):
            continue
        clear: Callable[[str], bool] = lambda name: on_side(name, start.thing, start.view, CLEAR_SIDE)  # noqa: E731
        sources = [
            name for name in SIDES if name != side and clear(name) and not on_side(name, end.thing, end.view, 0.0)
        ]
        moves += [(source, side) for source in sources] or [(None, side)]
    return moves


def _at(thing: SceneObject, x: float, y: float) -> SceneObject:
    return SceneObject(thing.shape, thing.color, thing.material, thing.size, thing.radius, x, y, thing.turn)


def thing_of(record: Record) -> SceneObject:
    """The object of a record, without what the record does not have."""
    return SceneObject(**{field.name: record[field.name] for field in fields(SceneObject) if field.name in record})


def on_side(side: str, thing: SceneObject, view: View, margin: float) -> bool:
    """Whether an object is on a side of the picture, by more than ``margin`` from what the camera looks at."""
    return holds(side, thing, _at(thing, view.target[0], view.target[1]), view, margin)


def went(side: str, start: SceneObject, end: SceneObject, view: View, margin: float) -> bool:
    """Whether an object went to a side by more than ``margin``."""
    return holds(side, end, start, view, margin)
