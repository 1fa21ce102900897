"""The oracle describer: true descriptions of rendered pairs from their scene graphs, with a known share of noise.

A description names objects by size, colour, material and shape: first the object that changed (where the image has it),
then two unchanged ones, in the same order and with the same words in both images. The first object is put in
relation to the second: "a small red metal cube behind a large blue rubber sphere, and a large gray metal cylinder". For
a pair without a change both images name the same objects. No description denies: where an object is added, the before
image has the others. If an object moves, the second object and the relations are chosen so that the relation changes;
if that is impossible, the place of the moved object is named.

**Noise.** Each object that is named is disturbed with probability ``noise``, in each image on its own, in one of four
ways:

=================== ==================================================================================================
``wrong_object``    all four words are wrong: those of an object that differs in every attribute
``wrong_attribute`` one of the four words is wrong
``extra_object``    an object that is not in the image is named too, at the end
``missing_detail``  size, colour or material is left out
=================== ==================================================================================================

No object of the image fits wrong words. Every draw depends on (seed, pair_id) and the place in the description alone,
so an object that is disturbed at a share of 0.2 is disturbed in the same way at 0.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from idc.mining.descriptions.config import OracleConfig
from idc.mining.descriptions.template import PairDescription
from idc.rendered import captions
from idc.rendered.captions import ATTRIBUTES, CLEAR_OFFSET, RELATIONS, SYNONYMS, relation_holds
from idc.rendered.scene import SceneObject, View

VERBS = ("shows", "depicts", "displays", "presents", "features", "contains", "has", "captures", "illustrates")
"""The verbs of the template's list that fit a list of objects."""

VALUES: dict[str, tuple[str, ...]] = {**captions.VALUES, "size": ("large", "small")}
"""Attribute -> its values, in the order of :data:`~idc.rendered.captions.ATTRIBUTES`."""

EMPTY = "an empty ground"
"""The description of an image without objects."""

_IMAGES = ("before", "after")
_OTHERS = 2
"""Unchanged objects that each description names, if the scene has as many."""
_NOISE = ("wrong_object", "wrong_attribute", "extra_object", "missing_detail")
_Look = tuple[str, ...]
"""The values of :data:`VALUES` of an object."""


def describe_by_oracle(pair_id: str, meta: Mapping[str, Any], config: OracleConfig) -> PairDescription:
    """The description of a rendered pair.

    Args:
        meta: of the pair: the scene graphs ``before`` and ``after``, and ``views``.

    Raises:
        ValueError: ``meta`` has no scene graphs.
    """
    try:
        scenes = [tuple(SceneObject(**thing) for thing in meta[image]) for image in _IMAGES]
        before_view, after_view = (View.of_record(view) for view in meta["views"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no scene: the meta of {pair_id!r} is not that of a rendered pair ({error!r})") from None
    rng = _rng(config, pair_id, "pair")
    words = {value: str(rng.choice(SYNONYMS.get(value, (value,)))) for values in VALUES.values() for value in values}
    words |= {relation: str(rng.choice(texts)) for relation, texts in RELATIONS.items()}
    verbs = [str(rng.choice(VERBS)) for _ in _IMAGES]
    before, after = scenes
    changed = (
        next((thing for thing in before if thing not in after), None),
        next((thing for thing in after if thing not in before), None),
    )
    same = [thing for thing in before if thing in after]
    others = [same[i] for i in rng.permutation(len(same))]
    others, links = _links(changed, others, (before_view, after_view), rng)
    texts = []
    for image, scene, thing, link in zip(_IMAGES, scenes, changed, links, strict=True):
        named = _looks([*([] if thing is None else [thing]), *others], scene, config, pair_id, image)
        texts.append(_text(named, link, words))
    return PairDescription(verbs[0], texts[0], verbs[1], texts[1])


class _Link(NamedTuple):
    """The words after the first object: its relation to the second one, or its position, or neither."""

    relation: str | None = None
    position: str | None = None


def _links(
    changed: tuple[SceneObject | None, SceneObject | None],
    others: list[SceneObject],
    views: tuple[View, View],
    rng: np.random.Generator,
) -> tuple[list[SceneObject], tuple[_Link, _Link]]:
    """The unchanged objects to name, and in both images what follows the first object."""
    old, new = changed
    if old is not None and new is not None and (old.x, old.y) != (new.x, new.y):
        telling = [
            (anchor, _Link(first), _Link(second))
            for anchor in others
            for first, second in product(_holding(old, anchor, views[0]), _holding(new, anchor, views[1]))
            if first not in _holding(new, anchor, views[1], 0.0) and second not in _holding(old, anchor, views[0], 0.0)
        ]
        if not telling:
            first, second = _positions(old, new, views)
            return others[:_OTHERS], (_Link(position=first), _Link(position=second))
        anchor, *links = telling[int(rng.integers(len(telling)))]
        return [anchor, *(thing for thing in others if thing is not anchor)][:_OTHERS], (links[0], links[1])
    others = others[:_OTHERS]
    named = [[*([] if thing is None else [thing]), *others] for thing in changed]
    holding = [
        _holding(things[0], things[1], view) if len(things) > 1 else []
        for things, view in zip(named, views, strict=True)
    ]
    if (old is None) == (new is None) and (common := [relation for relation in holding[0] if relation in holding[1]]):
        holding = [[str(rng.choice(common))]] * 2  # a turned camera is no change
    links = [_Link(str(rng.choice(relations))) if relations else _Link() for relations in holding]
    return others, (links[0], links[1])


def _holding(a: SceneObject, b: SceneObject, view: View, margin: float = CLEAR_OFFSET) -> list[str]:
    return [relation for relation in RELATIONS if relation_holds(relation, a, b, view, margin)]


def _positions(old: SceneObject, new: SceneObject, views: tuple[View, View]) -> tuple[str, str]:
    """Where a moved object is in the two images: left or right, or front or back, whichever differs more. On the same
    side of both images, the outer place is the far one."""
    seen = [_seen(thing, view) for thing, view in zip((old, new), views, strict=True)]
    axis = max((0, 1), key=lambda i: abs(seen[0][i] - seen[1][i]))
    first, second = seen[0][axis], seen[1][axis]
    sides = [_SIDES[axis][value > 0] for value in (first, second)]
    if sides[0] == sides[1]:
        outer = int(abs(second) > abs(first))
        sides[outer] = sides[outer].replace("the ", "the far ")
    return sides[0], sides[1]


_SIDES = (("on the left", "on the right"), ("in the front", "in the back"))


def _seen(thing: SceneObject, view: View) -> tuple[float, float]:
    """To the right of and behind the point that the camera looks at, along the ground, in scene units."""
    x, y = thing.x - view.target[0], thing.y - view.target[1]
    (right_x, right_y), (away_x, away_y) = view.ground_axes
    return x * right_x + y * right_y, x * away_x + y * away_y


def _looks(
    named: Sequence[SceneObject], scene: Sequence[SceneObject], config: OracleConfig, pair_id: str, image: str
) -> list[_Look]:
    """The words of the named objects, some of them disturbed, and of the objects that are not there."""
    taken = {_look(thing) for thing in scene}
    looks, extra = [], []
    for number, thing in enumerate(named):
        look = _look(thing)
        rng = _rng(config, pair_id, f"{image} {number}")
        if rng.random() < config.noise:
            absent = [other for other in product(*VALUES.values()) if other not in taken]
            match _NOISE[int(rng.integers(len(_NOISE)))]:
                case "wrong_object":
                    look = _drawn([other for other in absent if _differing(other, look) == 4], rng)
                case "wrong_attribute":
                    look = _drawn([other for other in absent if _differing(other, look) == 1], rng)
                case "extra_object":
                    extra.append(_drawn(absent, rng))
                case "missing_detail":
                    index = int(rng.integers(3))  # not the shape
                    look = look[:index] + look[index + 1 :]
        looks.append(look)
    return looks + extra


def _text(looks: Sequence[_Look], link: _Link, words: Mapping[str, str]) -> str:
    if not looks:
        return EMPTY
    text = ""
    for number, look in enumerate(looks):
        if number == 1 and link.relation is not None:
            text += f" {words[link.relation]} "
        elif number:
            after = ", " if link.relation is not None or number < len(looks) - 1 else " "
            text += after + ("and " if number == len(looks) - 1 else "")
        text += " ".join(["a", *(words[value] for value in look)])
        if number == 0 and link.position is not None:
            text += f" {link.position}"
    return text


def _look(thing: SceneObject) -> _Look:
    return tuple(str(getattr(thing, attribute)) for attribute in ATTRIBUTES)


def _differing(a: _Look, b: _Look) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def _drawn(looks: Sequence[_Look], rng: np.random.Generator) -> _Look:
    return looks[int(rng.integers(len(looks)))]


def _rng(config: OracleConfig, pair_id: str, part: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{config.seed}\n{part}\n{pair_id}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
