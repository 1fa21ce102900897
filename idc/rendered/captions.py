"""The words of captions, and descriptions that fit one object alone.

A caption names a changed object by a description that fits no other object: by some of its attributes, and, if these
are ambiguous or in a share of the other cases, by a relation to a second object that is itself described unambiguously.
Of several changes also by the side of the picture where it is. An object is looked for in the before image, what was
added in the after image; what was moved, turned or written on must be the only one that fits in both. Relations and
sides hold in every image that shows the object, because the camera may turn between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, get_args

from idc.rendered.config import Color, Material, Shape
from idc.rendered.differences import Difference
from idc.rendered.scene import PairScene, SceneObject, View

ATTRIBUTES = ("size", "color", "material", "shape")

VALUES: dict[str, tuple[str, ...]] = {
    "size": ("small", "large"),
    "color": get_args(Color),
    "material": get_args(Material),
    "shape": get_args(Shape),
}
"""Attribute -> its values."""

SUBSETS = tuple(
    subset
    for uses in product((True, False), repeat=4)
    if len(subset := tuple(a for a, used in zip(ATTRIBUTES, uses, strict=True) if used)) >= 2
)
"""All choices of at least two attributes, the fullest first."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "large": ("large", "big"),
    "small": ("small", "tiny"),
    "rubber": ("rubber", "matte"),
    "metal": ("metal", "metallic", "shiny"),
    "sphere": ("sphere", "ball"),
    "cube": ("cube", "block"),
    "cylinder": ("cylinder",),
}
"""Words for attribute values; a colour is its own word."""

ANY_SHAPE = ("object", "thing")

RELATIONS: dict[str, tuple[str, ...]] = {
    "left": ("left of", "to the left of", "on the left side of"),
    "right": ("right of", "to the right of", "on the right side of"),
    "front": ("in front of",),
    "behind": ("behind",),
}

CLEAR_OFFSET = 0.4
"""Least distance in scene units, along the ground, for an object to be left (right, ...) of another."""

CLEAR_SIDE = 1.0
"""Least distance in scene units from the middle of the picture, along the ground, of what is on one of its sides."""

CLEAR_MOVE = 1.0
"""Least way in scene units, along the ground and in both views, of what has moved to a side."""

SIDES = tuple(RELATIONS)
"""Sides of a picture, called as the relations: left, right, front, behind."""

_SAME_LOOK = ("orientation", "move", "text")
"""Kinds that leave all attributes: the object must be the only one that fits in both images."""

Record = Mapping[str, Any]
"""An object as the ``meta`` of a pair has it."""


def _recoloured(attribute: str) -> tuple[str, ...]:
    return (
        "the {d} changed to {v}", "the {d} turned {v}", "the {d} became {v}", "the {d} is now {v}",
        f"the {attribute} of the {{d}} changed to {{v}}", "someone changed the {d} to {v}",
        "the {d} was changed to {v}", "the {d} has become {v}",
    )  # fmt: skip


TEMPLATES: dict[str, tuple[str, ...]] = {
    "color": _recoloured("color"),
    "material": _recoloured("material"),
    "add": (
        "the {d} has been added", "the {d} was added", "the {d} has appeared", "a {d} has been added",
        "there is a new {d}", "someone added a {d}", "the {d} has been newly placed", "a {d} appeared in the scene",
    ),
    "drop": (
        "the {d} has been removed", "the {d} is missing", "the {d} has disappeared",
        "the {d} was removed from the scene", "the {d} is no longer there", "there is no longer a {d}",
        "someone removed the {d}", "the {d} is gone",
    ),
    "move": (
        "the {d} has been moved", "the {d} moved", "the {d} changed its location",
        "the {d} was moved from its original location", "the {d} is in a different location", "someone moved the {d}",
        "the {d} has moved to a new location", "someone changed the location of the {d}",
    ),
    "none": (
        "no change was made", "there is no change", "nothing has changed", "the scene is the same as before",
        "the two scenes seem identical", "the scene remains the same", "nothing was changed",
        "the two scenes look the same",
    ),
}  # fmt: skip
"""``{d}`` is the description, ``{v}`` the new colour or material."""


@dataclass(frozen=True)
class ObjectInView:
    """An object in one image, with all objects of that image and its view."""

    thing: SceneObject
    things: tuple[SceneObject, ...]
    view: View


@dataclass(frozen=True)
class SceneDescription:
    """A description of an object: some of its attributes and optionally its relation to a second object, or the side of
    the picture where it is (one of :data:`RELATIONS`)."""

    attributes: tuple[str, ...]
    relation: str | None = None
    anchor: SceneObject | None = None
    anchor_attributes: tuple[str, ...] = ()
    side: str | None = None


def relation_holds(relation: str, a: SceneObject, b: SceneObject, view: View, margin: float) -> bool:
    """Whether ``relation`` holds between ``a`` and ``b`` by more than ``margin``, seen along the ground."""
    (right_x, right_y), (away_x, away_y) = view.ground_axes
    dx, dy = a.x - b.x, a.y - b.y
    right, away = dx * right_x + dy * right_y, dx * away_x + dy * away_y
    return {"left": -right, "right": right, "front": -away, "behind": away}[relation] > margin


def matching(things: Iterable[SceneObject], thing: SceneObject, attributes: Sequence[str]) -> list[SceneObject]:
    """The objects that share these attributes with ``thing``, itself among them."""
    return [t for t in things if all(getattr(t, a) == getattr(thing, a) for a in attributes)]


def descriptions(
    unique_in: list[ObjectInView], holds_in: list[ObjectInView]
) -> tuple[list[SceneDescription], list[SceneDescription]]:
    """All unambiguous descriptions of an object: by at least two attributes alone, and with a relation.

    Args:
        unique_in: the images in which no other object may fit the description.
        holds_in: the images in which the relation must be true.
    """
    thing = unique_in[0].thing
    plain = [SceneDescription(s) for s in SUBSETS if _unique(thing, s, unique_in)]
    relational = []
    for anchor in unique_in[0].things:
        names = [s for s in SUBSETS if anchor is not thing and _unique(anchor, s, unique_in)]
        for relation in RELATIONS if names else ():
            if not all(relation_holds(relation, s.thing, anchor, s.view, CLEAR_OFFSET) for s in holds_in):
                continue
            for attributes in SUBSETS:
                if not any(
                    relation_holds(relation, other, anchor, s.view, 0.0)
                    for s in unique_in
                    for other in matching(s.things, s.thing, attributes)
                    if other is not s.thing and other is not anchor
                ):
                    relational += [SceneDescription(attributes, relation, anchor, name) for name in names]
    return plain, relational


def changed_object_in_views(
    kind: str,
    changed: Sequence[Sequence[SceneObject]],
    images: Sequence[tuple[SceneObject, ...]],
    views: Sequence[View],
) -> tuple[list[ObjectInView], list[ObjectInView]]:
    """The images in which the description of a changed object must be unique, and those in which what it says of its
    place must hold.

    Args:
        changed: the objects of a difference of this kind in either image, identical to those of ``images``.
    """
    shown = [
        ObjectInView(thing, things, view)
        for side, things, view in zip(changed, images, views, strict=True)
        for thing in side
    ]
    return (shown if kind in _SAME_LOOK else shown[:1]), shown


def changed_object_of_pair(pair: PairScene) -> tuple[list[ObjectInView], list[ObjectInView]]:
    """:func:`changed_object_in_views` of the only difference of a pair."""
    (difference,) = pair.differences
    images = (pair.before, pair.after)
    changed = [
        [things[at] for at in difference[side]] for things, side in zip(images, ("before", "after"), strict=True)
    ]
    return changed_object_in_views(difference["kind"], changed, images, pair.views)


def describable(pair: PairScene) -> bool:
    """Whether the only changed object, if any, has a description by attributes or a relation."""
    if not pair.differences:
        return True
    unique_in, holds_in = changed_object_of_pair(pair)
    # what is unique by some attributes is unique by all
    return _unique(unique_in[0].thing, ATTRIBUTES, unique_in) or any(descriptions(unique_in, holds_in))


def _unique(thing: SceneObject, attributes: Sequence[str], images: list[ObjectInView]) -> bool:
    return all(len(matching(s.things, thing, attributes)) == 1 for s in images)


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
    every = zip((difference.before, difference.after), (before, after), images, strict=True)
    changed = [[things[list(side).index(record)] for record in records] for records, side, things in every]
    unique_in, shown = changed_object_in_views(difference.kind, changed, images, views)
    if difference.kind == "text":
        letters = [record.get("text") for record in (*difference.before, *difference.after)]
        if not all(letters) or letters[0] == letters[1]:
            return ReferringOptions(difference, shown[0].thing, ())
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

    sides = list(zip(images, groups, strict=True))
    named = (
        SceneDescription(attributes)
        for attributes in SUBSETS
        if all(Counter(matching(things, thing, attributes)) == Counter(group) for things, group in sides)
    )
    return ReferringOptions(difference, thing, tuple(named))


def _sided(unique_in: Sequence[ObjectInView], shown: Sequence[ObjectInView]) -> Iterator[SceneDescription]:
    for side in SIDES:
        if all(on_side(side, sight.thing, sight.view, CLEAR_SIDE) for sight in shown):
            for attributes in SUBSETS:
                if not any(
                    on_side(side, other, sight.view, 0.0)
                    for sight in unique_in
                    for other in matching(sight.things, sight.thing, attributes)
                    if other != sight.thing
                ):
                    yield SceneDescription(attributes, side=side)


def _moves(shown: Sequence[ObjectInView]) -> Iterator[tuple[str | None, str]]:
    """Sides that an object has moved to, each with one that it came from, or None."""
    start, end = shown
    for side in SIDES:
        moved = all(moved_towards(side, start.thing, end.thing, sight.view, CLEAR_MOVE) for sight in shown)
        if moved and on_side(side, end.thing, end.view, CLEAR_SIDE):
            sources: list[str | None] = [
                source
                for source in SIDES
                if source != side
                and on_side(source, start.thing, start.view, CLEAR_SIDE)
                and not on_side(source, end.thing, end.view, 0.0)
            ]
            yield from ((source, side) for source in sources or [None])


def thing_of(record: Record) -> SceneObject:
    """The object of a record, without what the record does not have."""
    return SceneObject(**{field.name: record[field.name] for field in fields(SceneObject) if field.name in record})


def on_side(side: str, thing: SceneObject, view: View, margin: float) -> bool:
    """Whether an object is on a side of the picture, by more than ``margin`` from what the camera looks at."""
    return relation_holds(side, thing, replace(thing, x=view.target[0], y=view.target[1]), view, margin)


def moved_towards(side: str, start: SceneObject, end: SceneObject, view: View, margin: float) -> bool:
    """Whether an object went to a side by more than ``margin``."""
    return relation_holds(side, end, start, view, margin)


def phrase(thing: SceneObject, description: SceneDescription, rng: Any) -> str:
    """The words of a description but for its side, without an article in front."""
    text = noun(thing, description.attributes, rng)
    if description.relation is None:
        return text
    assert description.anchor is not None
    relation = str(rng.choice(RELATIONS[description.relation]))
    return f"{text} that is {relation} the {noun(description.anchor, description.anchor_attributes, rng)}"


def noun(thing: SceneObject, attributes: Sequence[str], rng: Any) -> str:
    """An object by these attributes."""
    words = [word(getattr(thing, a), rng) for a in attributes]
    if "shape" not in attributes:
        words.append(str(rng.choice(ANY_SHAPE)))
    return " ".join(words)


def word(value: str, rng: Any) -> str:
    """A word for an attribute's value."""
    return str(rng.choice(SYNONYMS[value])) if value in SYNONYMS else value
