"""Reference captions of a pair: true, varied, in CLEVR-Change's style and with about its vocabulary.

A caption names the changed object by a description that fits no other object: by some of its attributes, and, if these
are ambiguous or in a share of the other cases, by a relation to a second object that is itself described unambiguously.
Descriptions of recoloured, remade, dropped or moved objects are unique in the before image, those of added objects in
the after image (of moved ones in both). A relation is used only if it holds in every image that shows both objects,
because the camera may turn between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import numpy as np

from idc.rendered.config import ChangeType, Color, Material, Shape
from idc.rendered.scene import CHANGED, Change, ChangedPair, Order, Scene, SceneObject, View

ATTRIBUTES = ("size", "color", "material", "shape")

VALUES: dict[str, tuple[str, ...]] = {
    "size": ("small", "large"),
    "color": get_args(Color),
    "material": get_args(Material),
    "shape": get_args(Shape),
}
"""Attribute -> its values."""

SUBSETS = tuple(
    tuple(a for a, used in zip(ATTRIBUTES, uses, strict=True) if used) for uses in product((True, False), repeat=4)
)
"""All choices of attributes, the fullest first."""

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


def holds(relation: str, a: SceneObject, b: SceneObject, view: View, margin: float) -> bool:
    """Whether ``relation`` holds between ``a`` and ``b`` by more than ``margin``, seen along the ground."""
    (right_x, right_y), (away_x, away_y) = view.ground_axes
    dx, dy = a.x - b.x, a.y - b.y
    right, away = dx * right_x + dy * right_y, dx * away_x + dy * away_y
    return {"left": -right, "right": right, "front": -away, "behind": away}[relation] > margin


def matching(things: Iterable[SceneObject], thing: SceneObject, attributes: Sequence[str]) -> list[SceneObject]:
    """The objects that share these attributes with ``thing``, itself among them."""
    return [t for t in things if all(getattr(t, a) == getattr(thing, a) for a in attributes)]


def sights(pair: ChangedPair) -> tuple[list[ObjectInView], list[ObjectInView]]:
    """The images in which its description must be unique, and those in which a relation of it must hold."""
    change, before, after, views = pair
    seen = []
    if change.before is not None:
        seen.append(ObjectInView(change.before, before, views[0]))
    if change.after is not None:
        seen.append(ObjectInView(change.after, after, views[1]))
    return (seen[:1] if change.kind in ("color", "material") else seen), seen


def descriptions(
    unique_in: list[ObjectInView], holds_in: list[ObjectInView]
) -> tuple[list[SceneDescription], list[SceneDescription]]:
    """All unambiguous descriptions of an object: by at least two attributes alone, and with a relation.

    Args:
        unique_in: the images in which no other object may fit the description.
        holds_in: the images in which the relation must be true.
    """
    thing = unique_in[0].thing
    plain = [SceneDescription(s) for s in SUBSETS if len(s) >= 2 and _unique(thing, s, unique_in)]
    relational = []
    anchors = [t for t in unique_in[0].things if t is not thing]
    for anchor in anchors:
        names = [s for s in SUBSETS if len(s) >= 2 and _unique(anchor, s, unique_in)]
        if not names:
            continue
        for relation in RELATIONS:
            if not all(holds(relation, s.thing, anchor, s.view, CLEAR_OFFSET) for s in holds_in):
                continue
            for attributes in SUBSETS:
                if len(attributes) >= 2 and all(
                    not any(
                        holds(relation, other, anchor, s.view, 0.0)
                        for other in matching(s.things, s.thing, attributes)
                        if other is not s.thing and other is not anchor
                    )
                    for s in unique_in
                ):
                    relational += [SceneDescription(attributes, relation, anchor, name) for name in names]
    return plain, relational


def describable(pair: ChangedPair) -> bool:
    """Whether the changed object has a true and unambiguous description."""
    unique_in, holds_in = sights(pair)
    # what is unique by some attributes is unique by all
    return _unique(unique_in[0].thing, ATTRIBUTES, unique_in) or any(descriptions(unique_in, holds_in))


def change_captions(
    scene: Scene, count: int, relation_share: float, rng: np.random.Generator, order: Order = CHANGED
) -> list[str]:
    """``count`` captions of what changes between two images, each from another template."""
    pair = scene.changed_pair(order)
    return no_change_captions(count, rng) if pair is None else _captions(pair, count, relation_share, rng)


def captions_of_record(
    kind: ChangeType, record: Mapping[str, Any], count: int, relation_share: float, rng: np.random.Generator
) -> list[str]:
    """``count`` captions of a change given by the ``meta`` of a rendered pair: ``before``, ``after``, ``views``. Empty
    if no description of the changed object is unambiguous (possible for a pair in reverse order)."""
    before, after = (tuple(SceneObject(**thing) for thing in record[name]) for name in ("before", "after"))
    gone = next((thing for thing in before if thing not in after), None)
    new = next((thing for thing in after if thing not in before), None)
    pair = ChangedPair(Change(kind, gone, new), before, after, [View.of_record(view) for view in record["views"]])
    return _captions(pair, count, relation_share, rng) if describable(pair) else []


def _captions(pair: ChangedPair, count: int, relation_share: float, rng: np.random.Generator) -> list[str]:
    plain, relational = descriptions(*sights(pair))
    change = pair.change
    thing = change.before if change.before is not None else change.after
    assert thing is not None
    value = getattr(change.after, change.kind) if change.kind in ("color", "material") else ""
    templates = TEMPLATES[change.kind]
    captions = []
    for t in rng.permutation(len(templates))[:count]:
        use_relation = bool(relational) and (not plain or rng.random() < relation_share)
        description = _pick(relational if use_relation else plain, rng)
        captions.append(templates[t].format(d=phrase(thing, description, rng), v=word(value, rng)))
    return captions


def no_change_captions(count: int, rng: np.random.Generator) -> list[str]:
    """``count`` different captions for no change."""
    templates = TEMPLATES["none"]
    return [templates[t] for t in rng.permutation(len(templates))[:count]]


def true_captions(
    change_type: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[str]:
    """True captions in every template of the change type, with all attributes of the changed object.

    Args:
        change_type: of the pair.
        before: the objects in the before image, as the ``meta`` of a rendered pair has them; ``after``: in the after
            image.
    """
    templates = TEMPLATES[change_type]
    if change_type == "none":
        return list(templates)
    gone = [thing for thing in before if thing not in after]
    new = [thing for thing in after if thing not in before]
    changed = (gone or new)[0]
    value = new[0][change_type] if change_type in ("color", "material") else ""
    return [t.format(d=" ".join(changed[name] for name in ATTRIBUTES), v=value) for t in templates]


def phrase(thing: SceneObject, description: SceneDescription, rng: Any) -> str:
    """The words of a description but for its side, without an article in front."""
    text = noun(thing, description.attributes, rng)
    if description.relation is None:
        return text
    assert description.anchor is not None
    relation = str(rng.choice(RELATIONS[description.relation]))
    return f"{text} that is {relation} the {noun(description.anchor, description.anchor_attributes, rng)}"


def _pick(options: list[SceneDescription], rng: np.random.Generator) -> SceneDescription:
    """One of the options; every other time one of those that name the most attributes."""
    if rng.random() < 0.5:
        most = max(len(o.attributes) for o in options)
        options = [o for o in options if len(o.attributes) == most]
    return options[int(rng.integers(len(options)))]


def _unique(thing: SceneObject, attributes: Sequence[str], images: list[ObjectInView]) -> bool:
    return all(len(matching(s.things, thing, attributes)) == 1 for s in images)


def noun(thing: SceneObject, attributes: Sequence[str], rng: Any) -> str:
    """An object by these attributes."""
    words = [word(getattr(thing, a), rng) for a in attributes]
    if "shape" not in attributes:
        words.append(str(rng.choice(ANY_SHAPE)))
    return " ".join(words)


def word(value: str, rng: Any) -> str:
    """A word for an attribute's value."""
    return str(rng.choice(SYNONYMS[value])) if value in SYNONYMS else value
