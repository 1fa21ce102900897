"""A scene: its objects, what changes, and the views it is seen from. Pure numpy, no renderer.

Units: the ground is z = 0, objects stand on it around the origin; CLEVR's sizes. :mod:`idc.data.rendered.draw` draws
scenes, :mod:`idc.data.rendered.captions` describes their changes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from idc.data.rendered.config import ChangeType

Point = tuple[float, float, float]

FIELD_OF_VIEW = 49.0
"""Degrees across a 3:2 image (CLEVR's 35 mm lens); see :func:`tangents` for other shapes."""

IMAGES = ("default", "semantic", "nonsemantic")
"""The three images of a scene, by CLEVR-Change's names."""


@dataclass(frozen=True)
class Thing:
    """One object: attributes, centre on the ground (scene units), turn about the vertical axis (radians)."""

    shape: str
    color: str
    material: str
    size: str
    radius: float
    x: float
    y: float
    turn: float

    @property
    def half_height(self) -> float:
        return self.radius / math.sqrt(2.0) if self.shape == "cube" else self.radius

    @property
    def footprint(self) -> float:
        """Radius of the circle on the ground that holds the object."""
        return self.radius


@dataclass(frozen=True)
class Lamp:
    """A square area lamp that faces the origin: centre, half edge, radiance."""

    position: Point
    half_edge: float
    radiance: float


@dataclass(frozen=True)
class View:
    """A camera and the lamps of its image."""

    origin: Point
    target: Point
    lamps: tuple[Lamp, ...]

    @cached_property
    def axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unit vectors to the right of, up from and into the image, each (3,)."""
        forward = np.subtract(self.target, self.origin)
        forward /= np.linalg.norm(forward)
        (right_x, right_y), _ = self.ground_axes
        right = np.array([right_x, right_y, 0.0])
        return right, np.cross(right, forward), forward

    @cached_property
    def ground_axes(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Unit vectors along the ground: to the right, and away from the camera."""
        x, y = self.target[0] - self.origin[0], self.target[1] - self.origin[1]
        length = math.hypot(x, y)
        return (y / length, -x / length), (x / length, y / length)


def tangents(width: int, height: int) -> tuple[float, float]:
    """Half extents of the image plane at distance 1, (horizontal, vertical).

    The product of the two is the same for every shape of image, so that the same objects fit.
    """
    half = np.tan(np.radians(FIELD_OF_VIEW / 2))
    area = half * half / 1.5
    horizontal = float(np.sqrt(area * width / height))
    return horizontal, horizontal * height / width


@dataclass(frozen=True)
class Change:
    """The difference between the default and the semantic image.

    Attributes:
        kind: the change type.
        before: the changed object in the default image, ``None`` if it is added.
        after: the same in the semantic image, ``None`` if it is dropped.
    """

    kind: ChangeType
    before: Thing | None
    after: Thing | None


@dataclass(frozen=True)
class Scene:
    """The content of the three images of one index.

    Attributes:
        before: the objects of the default and the nonsemantic image.
        after: the objects of the semantic image; the i-th one is the i-th of ``before`` unless added or dropped.
        change: the difference between them.
        views: default, semantic, nonsemantic.
        ids: for each image, int16 (H, W): -1 background, else position in the image's list of objects.
    """

    before: tuple[Thing, ...]
    after: tuple[Thing, ...]
    change: Change
    views: tuple[View, View, View]
    ids: tuple[np.ndarray, np.ndarray, np.ndarray]

    def things(self, image: int) -> tuple[Thing, ...]:
        """The objects of an image (index into :data:`IMAGES`)."""
        return self.after if image == 1 else self.before

    def changed_pixels(self, image: int) -> np.ndarray:
        """bool (H, W): visible pixels of the changed object in an image."""
        thing = self.change.after if image == 1 else self.change.before
        if thing is None:
            return np.zeros(self.ids[image].shape, bool)
        return self.ids[image] == self.things(image).index(thing)

    def viewpoint_iou(self, image: int) -> float:
        """Similarity of the viewpoints of an after image and the default one, in [0, 1].

        The mean, over the objects that did not change, of the intersection over union of the object's visible
        pixels in the default image and in the other one; 1 means that the camera did not move. With no unchanged
        object, 1.
        """
        values = []
        for i, thing in enumerate(self.before):
            if image == 1 and thing not in self.after:
                continue
            j = self.things(image).index(thing)
            a, b = self.ids[0] == i, self.ids[image] == j
            values.append(np.count_nonzero(a & b) / np.count_nonzero(a | b))
        return float(np.mean(values)) if values else 1.0

    def record(self) -> dict[str, Any]:
        """The scene graph as JSON-able values, without the pixels."""
        return {
            "before": [_plain(t) for t in self.before],
            "after": [_plain(t) for t in self.after],
            "views": [{"origin": _rounded(v.origin), "target": _rounded(v.target)} for v in self.views],
        }


def _plain(thing: Thing) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(thing).items()}


def _rounded(values: Point) -> list[float]:
    return [round(v, 4) for v in values]
