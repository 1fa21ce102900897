"""A site as drawn at two dates: its roads, buildings, land, trees and cars. Lengths are metres, x to the right, y down,
the origin at the upper left corner of the image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Epochs = tuple[bool, bool]
"""Whether an object exists at the first date, at the second date."""
ALWAYS: Epochs = (True, True)
BUILT: Epochs = (False, True)
REMOVED: Epochs = (True, False)

Roof = Literal["hip", "gable", "flat"]
Cover = str
"""A name of the table of covers in :mod:`idc.rendered.satellite.covers`."""


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
