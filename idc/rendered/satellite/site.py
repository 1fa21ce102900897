"""A site as drawn at two dates: its roads, buildings, land, trees and cars; and while it is laid out, which ground is
taken and what shall change. Lengths are metres, x to the right, y down, the origin at the upper left corner of the
image."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import cv2
import numpy as np

from idc.rendered.config import Work

Epochs = tuple[bool, bool]
"""Whether an object exists at the first date, at the second date."""
ALWAYS: Epochs = (True, True)
BUILT: Epochs = (False, True)
REMOVED: Epochs = (True, False)

Roof = Literal["hip", "gable", "flat"]
Cover = str
"""A name of the table of covers in :mod:`idc.rendered.satellite.canvas`."""


@dataclass(frozen=True)
class RoofBlock:
    """A rectangle that is turned.

    Attributes:
        x, y: centre.
        along, across: half lengths of its sides.
        turn: angle of the first side to the x axis, radians.
        eaves: height of its walls.
        roof: its form; the ridge of a gable runs along the first side.
    """

    x: float
    y: float
    along: float
    across: float
    turn: float
    eaves: float = 3.0
    roof: Roof = "hip"

    def corners(self, margin: float = 0.0) -> np.ndarray:
        """(4, 2); ``margin`` widens all sides."""
        c, s = np.cos(self.turn), np.sin(self.turn)
        a, b = self.along + margin, self.across + margin
        offsets = np.array([(-a, -b), (a, -b), (a, b), (-a, b)])
        return offsets @ np.array([(c, s), (-s, c)]) + (self.x, self.y)

    def at(self, along: float, across: float) -> tuple[float, float]:
        """A point by its offsets along the two sides."""
        c, s = np.cos(self.turn), np.sin(self.turn)
        return float(self.x + along * c - across * s), float(self.y + along * s + across * c)


@dataclass(frozen=True)
class Building:
    """Blocks under one roof.

    Attributes:
        blocks: of the whole building.
        added: the last so many blocks exist only at the second date.
        color: sRGB of the roof.
        pitch: rise of the roof for a metre.
        texture: seed of what is on its roof.
    """

    blocks: tuple[RoofBlock, ...]
    color: tuple[float, float, float]
    pitch: float
    texture: int
    epochs: Epochs = ALWAYS
    added: int = 0
    noun: str = "house"

    def standing(self, epoch: int) -> tuple[RoofBlock, ...]:
        """The blocks at a date."""
        if not self.epochs[epoch]:
            return ()
        return self.blocks[: len(self.blocks) - self.added] if epoch == 0 and self.added else self.blocks


@dataclass(frozen=True)
class Road:
    """A road along a line.

    Attributes:
        points: (n, 2).
        width: between the outer edges of its curbs.
        surface: ``asphalt``, ``concrete`` or ``dirt``.
        walks: a verge and a sidewalk on both sides.
        marks: lines of paint.
        circle: radius of the turning circle at its last point; 0 for none.
    """

    points: np.ndarray
    width: float
    surface: str
    shade: float = 0.0
    walks: bool = False
    marks: bool = False
    circle: float = 0.0
    epochs: Epochs = ALWAYS


@dataclass(frozen=True)
class Patch:
    """An area with one cover; ``rough`` is how far, in metres, noise shifts its edge."""

    polygon: np.ndarray
    cover: Cover
    shade: float = 0.0
    rough: float = 0.0
    turn: float = 0.0
    epochs: Epochs = ALWAYS
    layer: int = 0


@dataclass(frozen=True)
class SiteTree:
    x: float
    y: float
    radius: float
    height: float
    tint: float
    deciduous: bool
    epochs: Epochs = ALWAYS


@dataclass(frozen=True)
class Strip:
    """A thin line: a fence or wall (with a height), a track or a painted line (without)."""

    points: np.ndarray
    width: float
    color: tuple[float, float, float]
    height: float = 0.0
    strength: float = 1.0
    epochs: Epochs = ALWAYS


@dataclass(frozen=True)
class Car:
    x: float
    y: float
    turn: float
    color: tuple[float, float, float]
    long: float = 4.5
    epochs: Epochs = ALWAYS


@dataclass(frozen=True)
class Conditions:
    """Season, light and camera of one image.

    Attributes:
        dryness: of grass, 0 green to 1 straw.
        leaves: share of the foliage that deciduous trees have.
        sun: direction to which shadows fall, radians; ``height`` of the sun, radians.
        sky: share of the light that comes from the whole sky.
        gain, gamma, saturation, cast: of the picture.
        haze: share of white light over it; ``cloud`` seeds its form.
        blur: of the optics in pixels; noise of the sensor; quality of the JPEG compression before the download.
        shift: registration error, pixels (x, y).
    """

    dryness: float = 0.4
    leaves: float = 1.0
    crops: float = 0.5
    sun: float = -1.0
    sun_height: float = 0.9
    sky: float = 0.16
    gain: float = 1.0
    gamma: float = 1.0
    saturation: float = 0.85
    cast: tuple[float, float, float] = (1.0, 1.0, 1.0)
    haze: float = 0.0
    cloud: int = 0
    blur: float = 0.5
    sharpening: float = 0.3
    noise: float = 0.008
    quality: int = 85
    shift: tuple[float, float] = (0.0, 0.0)
    growth: float = 0.0


@dataclass
class Site:
    """Everything that is drawn, in the order of its layers, and what changes.

    Attributes:
        ground: cover of all that nothing else covers.
        texture: seed of the noise of the ground.
        works: truth: one entry per changed road or building.
        facts: what captions may name besides (see :mod:`idc.rendered.satellite.levir_sentences`).
    """

    width: float
    height: float
    ground: Cover = "meadow"
    texture: int = 0
    patches: list[Patch] = field(default_factory=list)
    roads: list[Road] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    buildings: list[Building] = field(default_factory=list)
    trees: list[SiteTree] = field(default_factory=list)
    cars: list[Car] = field(default_factory=list)
    conditions: tuple[Conditions, Conditions] = (Conditions(), Conditions())
    facts: dict[str, Any] = field(default_factory=dict)


REACH = 16.0
"""Metres around the image where things are laid out too."""
_FINE = 2.0
"""Cells a metre of the map of what is taken."""


class TakenGround:
    """A map of the ground that things stand on."""

    def __init__(self, width: float, height: float):
        size = (math.ceil((height + 2 * REACH) * _FINE), math.ceil((width + 2 * REACH) * _FINE))
        self.cells = np.zeros(size, np.uint8)

    def is_free(self, polygon: np.ndarray) -> bool:
        window, mask = self._drawn(polygon)
        return window is not None and not (self.cells[window] & mask).any()

    def is_free_at(self, x: float, y: float, radius: float) -> bool:
        column, row, r = (x + REACH) * _FINE, (y + REACH) * _FINE, radius * _FINE
        x0, x1 = max(int(column - r), 0), max(int(column + r) + 1, 0)
        y0, y1 = max(int(row - r), 0), max(int(row + r) + 1, 0)
        return not self.cells[y0:y1, x0:x1].any()

    def take(self, polygon: np.ndarray) -> None:
        window, mask = self._drawn(polygon)
        if window is not None:
            self.cells[window] |= mask

    def without(self, polygon: np.ndarray) -> TakenGround:
        """A map where a polygon is free."""
        other = TakenGround(0.0, 0.0)
        other.cells = self.cells.copy()
        window, mask = self._drawn(polygon)
        if window is not None:
            other.cells[window][mask > 0] = 0
        return other

    def take_line(self, points: np.ndarray, width: float) -> None:
        corners = np.round((points + REACH) * _FINE * 16).astype(np.int32)
        cv2.polylines(self.cells, [corners], False, 1, max(1, round(width * _FINE)), cv2.LINE_8, 4)

    def take_circle(self, centre: np.ndarray, radius: float) -> None:
        x, y = (float(value) for value in centre)
        cv2.circle(self.cells, (round((x + REACH) * _FINE), round((y + REACH) * _FINE)), round(radius * _FINE), 1, -1)

    def _drawn(self, polygon: np.ndarray) -> tuple[tuple[slice, slice] | None, np.ndarray]:
        at = (polygon + REACH) * _FINE
        x0, y0 = np.maximum(np.floor(at.min(0)).astype(int), 0)
        x1, y1 = np.ceil(at.max(0)).astype(int) + 1
        x1, y1 = min(x1, self.cells.shape[1]), min(y1, self.cells.shape[0])
        if x0 >= x1 or y0 >= y1:
            return None, self.cells
        mask = np.zeros((y1 - y0, x1 - x0), np.uint8)
        cv2.fillPoly(mask, [np.round((at - (x0, y0)) * 16).astype(np.int32)], 1, shift=4)
        return (slice(y0, y1), slice(x0, x1)), mask


@dataclass(frozen=True)
class Lot:
    """A piece of land along a street.

    Attributes:
        ground: (4, 2), the street side first.
        drive: (n, 2), from the garage to the street.
        street, side, order: number of the street, its side (-1, 1), and the position along it.
    """

    ground: np.ndarray
    drive: np.ndarray
    building: Building
    street: int
    side: int
    order: int


class UnusableSite(Exception):
    """A draw that does not meet the settings; another one may."""


@dataclass
class Plan:
    """A site that is being laid out.

    Attributes:
        taken: where nothing else can be: buildings and streets; ``land``: lots, streets and ponds; ``streets`` alone.
        surroundings: whether the land of what is built changes with it.
        forest: share of the site that is wood.
        cleared: land on which no tree is left when something is built.
        spots: large buildings.
    """

    site: Site
    taken: TakenGround
    land: TakenGround
    streets: TakenGround
    cleared: TakenGround
    rng: np.random.Generator
    work: Work | None
    surroundings: bool
    lots: list[Lot] = field(default_factory=list)
    forest: float = 0.0
    spots: list[Building] = field(default_factory=list)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return self.site.width, self.site.height


def is_in_view(plan: Plan, building: Building, share: float = 0.45) -> bool:
    """Whether enough of a building is in the image to be seen as one."""
    shares = (-0.9, -0.45, 0, 0.45, 0.9)
    points = np.array(
        [block.at(a * block.along, b * block.across) for block in building.blocks for a in shares for b in shares]
    )
    w, h = plan.size
    inside = (points[:, 0] > 0) & (points[:, 0] < w) & (points[:, 1] > 0) & (points[:, 1] < h)
    return bool(inside.mean() >= share)


def is_outside(plan: Plan, building: Building) -> bool:
    corners, (w, h) = np.concatenate([block.corners(1.0) for block in building.blocks]), plan.size
    low, high = corners.min(0), corners.max(0)
    return bool(high[0] < 0 or high[1] < 0 or low[0] > w or low[1] > h)


def outline(blocks: tuple[RoofBlock, ...], margin: float = 0.0) -> np.ndarray:
    """Convex hull of blocks, (n, 2)."""
    points = np.concatenate([block.corners(margin) for block in blocks]).astype(np.float32)
    return cv2.convexHull(points)[:, 0].astype(np.float64)


def scaled_polygon(polygon: np.ndarray, factor: float) -> np.ndarray:
    """A polygon, larger or smaller about the mean of its corners."""
    middle = polygon.mean(0)
    return (polygon - middle) * factor + middle


def rectangle(x: float, y: float, along_half: float, across_half: float, turn: float) -> np.ndarray:
    return RoofBlock(x, y, along_half, across_half, turn).corners()
