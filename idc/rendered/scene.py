"""A scene: its objects, what changes, and the views it is seen from. Pure numpy, no renderer.

Units: the ground is z = 0, objects stand on it around the origin; CLEVR's sizes. :mod:`idc.rendered.draw` draws
scenes, :mod:`idc.rendered.sentences` describes their changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from idc.rendered.differences import DIFFERENCES, DifferenceRecord, difference_fields, reversed_differences
from idc.rendered.look import Exposure, Look

Point = tuple[float, float, float]

FIELD_OF_VIEW = 49.0
"""Degrees across a 3:2 image (CLEVR's 35 mm lens); see :func:`tangents` for other shapes."""

IMAGES = ("default", "semantic", "nonsemantic")
"""The three images of a scene, by CLEVR-Change's names."""

Order = tuple[int, int]
"""A pair's before and after image, as indices into :data:`IMAGES`."""

CHANGED, UNCHANGED = (0, 1), (0, 2)

PAIRS: dict[str, Order] = {"s": CHANGED, "n": UNCHANGED}
"""End of the pair id -> order: CLEVR-Change's two pairs of a scene."""

ORDERED_PAIRS: dict[str, Order] = {
    **PAIRS,
    "sd": (1, 0),
    "nd": (2, 0),
    "sn": (1, 2),
    "dd": (0, 0),
    "ns": (2, 1),
    "ss": (1, 1),
}
"""All ordered pairs, named by the images' initials, and two images with themselves: every other one is changed."""


@dataclass(frozen=True)
class SceneObject:
    """One object: attributes, centre on the ground (scene units), turn about the vertical axis (radians), and the
    letter that is written on its sides, if any (cubes only)."""

    shape: str
    color: str
    material: str
    size: str
    radius: float
    x: float
    y: float
    turn: float
    text: str = ""

    @property
    def half_height(self) -> float:
        return self.radius / math.sqrt(2.0) if self.shape == "cube" else self.radius


@dataclass(frozen=True)
class Lamp:
    """A square area lamp that faces the origin: centre, half edge, radiance."""

    position: Point
    half_edge: float
    radiance: float


@dataclass(frozen=True)
class View:
    """A camera and the lamps of its image; ``zoom`` is the focal length over that of :data:`FIELD_OF_VIEW`."""

    origin: Point
    target: Point
    lamps: tuple[Lamp, ...]
    zoom: float = 1.0

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> View:
        """The camera of an entry of ``views`` in a pair's ``meta``, without lamps."""
        x, y, z = record["origin"]
        to_x, to_y, to_z = record["target"]
        return cls((x, y, z), (to_x, to_y, to_z), (), float(record.get("zoom", 1.0)))

    def record(self) -> dict[str, Any]:
        """The camera as JSON-able values; ``zoom`` only if it is not 1."""
        plain = {"origin": _rounded(self.origin), "target": _rounded(self.target)}
        return plain if self.zoom == 1 else {**plain, "zoom": round(self.zoom, 4)}

    def tangents(self, width: int, height: int) -> tuple[float, float]:
        """Half extents of the image plane at distance 1, (horizontal, vertical)."""
        tan_x, tan_y = tangents(width, height)
        return tan_x / self.zoom, tan_y / self.zoom

    def project(self, points: np.ndarray, width: int, height: int) -> np.ndarray:
        """Where points of the scene show in an image of this size.

        Args:
            points: (..., 3), scene units, in front of the camera.

        Returns:
            (..., 2): x to the right and y down from the upper left corner, in pixels; a pixel's centre is at .5.
        """
        right, up, forward = self.axes
        tan_x, tan_y = self.tangents(width, height)
        offset = np.asarray(points, float) - np.array(self.origin)
        ahead = offset @ forward
        x, y = offset @ right / (ahead * tan_x), offset @ up / (ahead * tan_y)
        return np.stack([(x + 1) / 2 * width, (1 - y) / 2 * height], -1)

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
    """Half extents of the image plane at distance 1, (horizontal, vertical), at zoom 1.

    The product of the two is the same for every shape of image, so that the same objects fit.
    """
    half = np.tan(np.radians(FIELD_OF_VIEW / 2))
    area = half * half / 1.5
    horizontal = float(np.sqrt(area * width / height))
    return horizontal, horizontal * height / width


class PairScene(NamedTuple):
    """Two images of a scene and what changes between them.

    Attributes:
        before, after: the objects of the images; one that stays as it is is equal in both.
        views: of both images.
        differences: what changed, with the indices of its objects in ``before`` and ``after``, as ``meta`` has it.
    """

    before: tuple[SceneObject, ...]
    after: tuple[SceneObject, ...]
    views: Sequence[View]
    differences: Sequence[DifferenceRecord]

    @property
    def change_type(self) -> str | None:
        """The kind of the only difference, ``none`` without one, None if there are several."""
        if len(self.differences) > 1:
            return None
        return str(self.differences[0]["kind"]) if self.differences else "none"


@dataclass(frozen=True)
class Scene:
    """The content of the images of one index.

    Attributes:
        before: the objects of the default and the nonsemantic image.
        after: the objects of the semantic image.
        differences: what changes from ``before`` to ``after``; a list of one in scenes of three images.
        views: default, semantic, and of scenes with a single change nonsemantic.
        look: what the images share besides their objects.
        exposures: of the images.
        ids: for each image, int16 (H, W): -1 background, else index in the image's list of objects.
    """

    before: tuple[SceneObject, ...]
    after: tuple[SceneObject, ...]
    differences: Sequence[DifferenceRecord]
    views: tuple[View, ...]
    look: Look
    exposures: tuple[Exposure, ...]
    ids: tuple[np.ndarray, ...]

    def things(self, image: int) -> tuple[SceneObject, ...]:
        """The objects of an image (index into :data:`IMAGES`)."""
        return self.after if image == 1 else self.before

    def pair(self, order: Order = CHANGED) -> PairScene:
        """Two images, and the differences in this order."""
        before, after = order
        differences = self.differences if after == 1 else reversed_differences(self.differences)
        return PairScene(
            self.things(before),
            self.things(after),
            (self.views[before], self.views[after]),
            () if (before == 1) == (after == 1) else differences,
        )

    def changed_pixels(self, order: Order = CHANGED) -> tuple[np.ndarray, np.ndarray]:
        """bool (H, W) of both images: visible pixels of the objects that are not the same in the other one."""
        things = [self.things(image) for image in order]
        before, after = (
            np.isin(self.ids[image], [index for index, thing in enumerate(shown) if thing not in other])
            for image, shown, other in zip(order, things, things[::-1], strict=True)
        )
        return before, after

    def viewpoint_iou(self, order: Order = CHANGED) -> float:
        """Similarity of the viewpoints of two images, in [0, 1].

        The mean, over the objects that did not change, of the intersection over union of the object's visible pixels in
        the two images; 1 means that the camera did not move. With no unchanged object, 1.
        """
        before, after = (self.things(image) for image in order)
        ids_before, ids_after = (self.ids[image] for image in order)
        values = []
        for i, thing in enumerate(before):
            if thing in after:
                a, b = ids_before == i, ids_after == after.index(thing)
                values.append(np.count_nonzero(a & b) / np.count_nonzero(a | b))
        return float(np.mean(values)) if values else 1.0

    def record(self, order: Order = CHANGED) -> dict[str, Any]:
        """The scene graphs and views of two images as JSON-able values; of a scene of two images also its differences
        and distractors.

        ``types``: OmniDiff's names of the kinds that have one. ``changeflag``: 1 with a difference, else 0, as several
        have no change type. ``distractors``: ``camera`` and ``lamps``, the way of the camera and the longest way of a
        lamp (scene units), and ``brightness``, the lamps' power after over that before.
        """
        pair = self.pair(order)
        first, second = pair.views
        record: dict[str, Any] = {
            "before": [_plain(t) for t in pair.before],
            "after": [_plain(t) for t in pair.after],
            "views": [first.record(), second.record()],
        }
        if len(self.views) > 2:
            return record
        ways = [_distance(a.position, b.position) for a, b in zip(first.lamps, second.lamps, strict=True)]
        power = [sum(lamp.radiance * lamp.half_edge**2 for lamp in view.lamps) for view in pair.views]
        distractors = {
            "camera": round(_distance(first.origin, second.origin), 4),
            "lamps": round(max(ways), 4),
            "brightness": round(power[1] / power[0], 4),
        }
        return {**record, **difference_fields(pair.differences), "distractors": distractors}


def reversed_record(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The ``meta`` of a rendered pair, with one change or several, for its images in reverse order."""
    swapped = {**meta, "before": meta["after"], "after": meta["before"], "views": meta["views"][::-1]}
    if DIFFERENCES in meta:
        swapped |= difference_fields(reversed_differences(meta[DIFFERENCES]))
        swapped["distractors"] = {**meta["distractors"], "brightness": round(1 / meta["distractors"]["brightness"], 4)}
    return swapped


def _plain(thing: SceneObject) -> dict[str, Any]:
    """The object's fields; ``text`` only if something is written on it."""
    plain = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(thing).items()}
    return plain if thing.text else {k: v for k, v in plain.items() if k != "text"}


def _rounded(values: Point) -> list[float]:
    return [round(v, 4) for v in values]


def _distance(a: Point, b: Point) -> float:
    return float(np.linalg.norm(np.subtract(a, b)))
