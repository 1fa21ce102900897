"""The truth about a pair beyond its captions: the type of the change, the changed object's attributes, and where the
objects of both images are.

Of a rendered pair it is the scene graph in ``meta``, projected by the cameras. Of other pairs, type and attributes are
read from the captions where the rules of :mod:`idc.metrics` can; the rest is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.metrics.change_types import named_type
from idc.metrics.claims import read_object_claims
from idc.rendered.captions import ATTRIBUTES
from idc.rendered.config import Color, Material, Shape
from idc.rendered.differences import DIFFERENCES, KINDS
from idc.rendered.scene import SceneObject, View

VALUES: dict[str, tuple[str, ...]] = {
    "size": ("large", "small"),
    "color": get_args(Color),
    "material": get_args(Material),
    "shape": get_args(Shape),
}
"""Attribute -> its values; an index into them is a label."""
PARTS = (NO_CHANGE, *KINDS)
"""Parts that an object has in the differences of a pair: none, or the kind of the one that it belongs to. An index is a
label."""
UNKNOWN = -100
"""Label of what is not known; torch's cross-entropy ignores it."""


@dataclass(frozen=True)
class PairTruth:
    """N objects at most in an image. Attributes are in the order of :data:`idc.rendered.captions.ATTRIBUTES`.

    Attributes:
        kind: label of the change type in :data:`idc.data.schema.CHANGE_TYPES`, or :data:`UNKNOWN`.
        changed: int64 (2, 4), labels of the changed object before and after; :data:`UNKNOWN` where it is not there, and
            where several changed.
        places: per image float32 (N, 3): centre of the objects (x, y) and radius, as shares of width, height and width.
        labels: per image int64 (N, 4) of the objects.
        differs: per image bool (N,), the objects that the other image does not have.
        parts: per image int64 (N,), labels of the objects' parts in the differences (:data:`PARTS`). A group whose
            number changed is part of that difference as a whole.
        has_scene: whether ``places``, ``labels``, ``differs`` and ``parts`` are known.
    """

    kind: int
    changed: np.ndarray
    places: tuple[np.ndarray, np.ndarray]
    labels: tuple[np.ndarray, np.ndarray]
    differs: tuple[np.ndarray, np.ndarray]
    parts: tuple[np.ndarray, np.ndarray]
    has_scene: bool


def pair_truth(
    change_type: str | None, captions: Sequence[str], meta: Mapping[str, Any], size: tuple[int, int]
) -> PairTruth:
    """The truth about a pair with this ``meta``, whose images were rendered at this height and width."""
    if not {"before", "after", "views"} <= meta.keys():
        named = (kind for kind in map(named_type, captions) if kind is not None)
        kind = change_type if change_type in CHANGE_TYPES else next(named, None)
        changed = _said_attributes(kind, captions)
        circles, labels = np.zeros((0, 3), np.float32), np.zeros((0, 4), np.int64)
        differs, parts = np.zeros(0, bool), np.zeros(0, np.int64)
        return PairTruth(_label(kind), changed, (circles,) * 2, (labels,) * 2, (differs,) * 2, (parts,) * 2, False)
    sides = (meta["before"], meta["after"])
    first, second = (
        _ImageTruth(
            project(side, view, size),
            np.array([_labels(thing) for thing in side], np.int64).reshape(-1, 4),
            np.array([thing not in other for thing in side], bool),
        )
        for side, other, view in zip(sides, sides[::-1], meta["views"], strict=True)
    )
    changed = np.full((2, 4), UNKNOWN)
    if first.differs.sum() <= 1 and second.differs.sum() <= 1:  # else there is no "changed object" to learn
        for image, truth in enumerate((first, second)):
            changed[image] = truth.labels[truth.differs][0] if truth.differs.any() else UNKNOWN
    return PairTruth(
        _label(change_type),
        changed,
        (first.circles, second.circles),
        (first.labels, second.labels),
        (first.differs, second.differs),
        (_parts("before", first.differs, change_type, meta), _parts("after", second.differs, change_type, meta)),
        True,
    )


class _ImageTruth(NamedTuple):
    circles: np.ndarray
    labels: np.ndarray
    differs: np.ndarray


def _parts(side: str, differs: np.ndarray, change_type: str | None, meta: Mapping[str, Any]) -> np.ndarray:
    """The labels of an image's objects in :data:`PARTS`: of the pair's list of differences, else of its change type."""
    parts = np.full(len(differs), PARTS.index(NO_CHANGE), np.int64)
    if DIFFERENCES in meta:
        for difference in meta[DIFFERENCES]:
            parts[difference[side]] = PARTS.index(difference["kind"])
    else:
        parts[differs] = PARTS.index(change_type) if change_type in PARTS else UNKNOWN
    return parts


def project(things: Sequence[Mapping[str, Any]], view: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Where objects (as the ``meta`` of a rendered pair has them) are in an image of this camera, rendered at this
    height and width: float32 (N, 3), centre (x, y) and radius as shares of width, height and width."""
    if not things:
        return np.zeros((0, 3), np.float32)
    camera, (height, width) = View.of_record(view), size
    solids = [SceneObject(**thing) for thing in things]
    centres = np.array([(thing.x, thing.y, thing.half_height) for thing in solids])
    radii = np.array([[thing.radius] for thing in solids])
    middle, edge = (camera.project(points, width, height) for points in (centres, centres + radii * camera.axes[0]))
    x, y = middle.T / [[width], [height]]
    return np.stack([x, y, (edge - middle)[:, 0] / width], axis=1).astype(np.float32)


def _labels(thing: Mapping[str, Any]) -> list[int]:
    return [VALUES[name].index(thing[name]) for name in ATTRIBUTES]


def _label(kind: str | None) -> int:
    return CHANGE_TYPES.index(kind) if kind in CHANGE_TYPES else UNKNOWN


def _said_attributes(kind: str | None, captions: Sequence[str]) -> np.ndarray:
    """The attributes that captions name, (2, 4); of contradictions the first counts."""
    labels = np.full((2, 4), UNKNOWN)
    if kind is None or kind == NO_CHANGE:
        return labels
    sides = {"add": (1,), "drop": (0,)}.get(kind, (0, 1))
    for text in captions:
        said = read_object_claims(text)
        named = [(0, said.described or ()), (1, said.described or ()), (1, said.new_look)]
        for image, attributes in named:
            for name, value in attributes:
                column = ATTRIBUTES.index(name)
                replaced = image == 1 and name == kind and attributes is said.described
                if image in sides and not replaced and labels[image, column] == UNKNOWN:
                    labels[image, column] = VALUES[name].index(value)
    return labels
