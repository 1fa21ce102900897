"""Lines of streets, lots along them, and which ground is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np

from idc.rendered.satellite.site import Building, RoofBlock

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


def curve(
    rng: np.random.Generator, width: float, height: float, through: tuple[float, float], angle: float, bend: float
) -> np.ndarray:
    """A line across the site through a point, (n, 2); ``bend`` is its turn from one end to the other, radians."""
    half = 0.5 * math.hypot(width, height) + REACH
    steps = np.linspace(-half, half, max(int(2 * half / 3), 8))
    wave = 0.35 * bend * rng.uniform(-1, 1)
    turn = angle + bend * (steps / (2 * half)) + wave * np.sin(steps / half * math.pi * 1.3)
    delta = np.stack((np.cos(turn), np.sin(turn)), 1) * (steps[1] - steps[0])
    points = np.cumsum(delta, 0)
    middle = points[len(points) // 2]
    return points - middle + through


def branch(rng: np.random.Generator, main: np.ndarray, at: float, side: int, length: float, bend: float) -> np.ndarray:
    """A line that leaves another one at a share of its length, to one side."""
    start = int(at * (len(main) - 1))
    tangent = main[min(start + 1, len(main) - 1)] - main[max(start - 1, 0)]
    angle = math.atan2(tangent[1], tangent[0]) + side * math.pi / 2 + rng.uniform(-0.15, 0.15)
    steps = np.linspace(0, length, max(int(length / 3), 4))
    turn = angle + bend * (steps / length) ** 2
    delta = np.stack((np.cos(turn), np.sin(turn)), 1) * (steps[1] - steps[0])
    return np.concatenate((main[start : start + 1], main[start] + np.cumsum(delta[1:], 0)))


def along(points: np.ndarray, step: float, first: float = 0.0) -> list[tuple[np.ndarray, float]]:
    """Points of a line at equal distances, and its direction there."""
    length = np.concatenate(([0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))))
    at = np.arange(first, length[-1], step)
    here, ahead, behind = (
        np.stack([np.interp(at + shift, length, points[:, k]) for k in (0, 1)], 1) for shift in (0.0, 1.0, -1.0)
    )
    return [(point, math.atan2(dy, dx)) for point, (dx, dy) in zip(here, ahead - behind, strict=True)]


def house_blocks(
    rng: np.random.Generator, x: float, y: float, turn: float, wide: float, deep: float, style: str
) -> tuple[RoofBlock, ...]:
    """A main block and wings. ``turn`` is the direction of the street; the front is at negative ``across``."""
    eaves = float(rng.uniform(2.6, 3.4) if style != "villa" else rng.uniform(3.5, 5.5))
    gable = rng.random() < 0.3
    main = RoofBlock(x, y, wide / 2, deep * 0.36, turn, eaves, "gable" if gable else "hip")
    blocks = [main]
    side = 1 if rng.random() < 0.5 else -1
    garage_wide = wide * rng.uniform(0.19, 0.25)
    at = main.at(side * (wide / 2 - garage_wide), -deep * 0.22)
    blocks.append(RoofBlock(*at, garage_wide, deep * 0.30, turn, eaves - 0.2, "hip"))
    if rng.random() < 0.8:
        half = wide * rng.uniform(0.16, 0.24)
        at = main.at(-side * (wide / 2 - half) * rng.uniform(0.6, 1.0), deep * rng.uniform(0.16, 0.26))
        blocks.append(RoofBlock(*at, float(half), deep * 0.26, turn, eaves, "hip"))
    if rng.random() < 0.6:
        half = wide * rng.uniform(0.1, 0.15)
        at = main.at(-side * wide * rng.uniform(0.0, 0.25), -deep * rng.uniform(0.3, 0.36))
        blocks.append(RoofBlock(*at, float(half), deep * 0.12, turn, eaves - 0.1, "gable" if gable else "hip"))
    return tuple(blocks)


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
