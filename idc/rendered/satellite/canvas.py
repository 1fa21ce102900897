"""The canvas that a site is drawn on: its scale, windows and masks on it, smooth noise over it, and the reflectance of
the ground's covers, from two colours and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np

from idc.rendered.look import from_srgb
from idc.rendered.satellite.site import Building, Conditions, Road, RoofBlock

MARGIN = 12.0
"""Metres around the image that are drawn too."""

Window = tuple[slice, slice]
Masked = tuple[Window, np.ndarray]
"""A window of the canvas and a mask of its size."""


@dataclass(frozen=True)
class Canvas:
    """``scale`` canvas pixels are a metre; the image's corner is at ``margin`` canvas pixels."""

    width: int
    height: int
    scale: float
    margin: int
    supersampling: int

    @classmethod
    def of(cls, width: int, height: int, metres_per_pixel: float, supersampling: int) -> Canvas:
        """The canvas of an image of a size in pixels."""
        margin = math.ceil(MARGIN / metres_per_pixel) * supersampling
        size = (width * supersampling + 2 * margin, height * supersampling + 2 * margin)
        return cls(*size, supersampling / metres_per_pixel, margin, supersampling)

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """Canvas coordinates of points in metres."""
        return np.asarray(points, np.float64) * self.scale + self.margin

    def window(self, points: np.ndarray, reach: float) -> Window | None:
        """The part of the canvas within ``reach`` metres of the points' bounding box; None if it is outside."""
        at, border = self.pixels(points), reach * self.scale + 1
        (low_x, low_y), (high_x, high_y) = at.min(0), at.max(0)
        x0, y0 = max(math.floor(low_x - border), 0), max(math.floor(low_y - border), 0)
        x1, y1 = min(math.ceil(high_x + border) + 1, self.width), min(math.ceil(high_y + border) + 1, self.height)
        return None if x0 >= x1 or y0 >= y1 else (slice(y0, y1), slice(x0, x1))

    def offsets(self, window: Window, x: float, y: float) -> tuple[np.ndarray, np.ndarray]:
        """Metres of a window's pixel centres from a point: (1, w) and (h, 1)."""
        left, top = x * self.scale + self.margin - 0.5, y * self.scale + self.margin - 0.5
        columns = (np.arange(window[1].start, window[1].stop, dtype=np.float32) - np.float32(left)) / np.float32(
            self.scale
        )
        rows = (np.arange(window[0].start, window[0].stop, dtype=np.float32) - np.float32(top)) / np.float32(self.scale)
        return columns[None, :], rows[:, None]

    def local(self, window: Window, block: RoofBlock) -> tuple[np.ndarray, np.ndarray]:
        """Metres along the two sides of a block from its centre."""
        dx, dy = self.offsets(window, block.x, block.y)
        c, s = np.float32(math.cos(block.turn)), np.float32(math.sin(block.turn))
        return dx * c + dy * s, dy * c - dx * s

    def reduce(self, field: np.ndarray) -> np.ndarray:
        """The image's part of a canvas at the image's size, by averaging."""
        m = self.margin
        inner = field[m : self.height - m, m : self.width - m]
        size = (inner.shape[1] // self.supersampling, inner.shape[0] // self.supersampling)
        return cv2.resize(inner, size, interpolation=cv2.INTER_AREA)

    def polygon(self, points: np.ndarray, reach: float = 0.0) -> Masked | None:
        """uint8 mask of a polygon in metres, in a window that is ``reach`` metres wider than it."""
        window = self.window(points, reach)
        if window is None:
            return None
        mask = np.zeros(_size(window), np.uint8)
        corners = (self.pixels(points) - (window[1].start, window[0].start) - 0.5) * 16
        cv2.fillPoly(mask, [np.round(corners).astype(np.int32)], 1, shift=4)
        return window, mask

    def line(self, points: np.ndarray, width: float, reach: float = 0.0) -> Masked | None:
        """uint8 mask of a line."""
        window = self.window(points, width / 2 + reach)
        if window is None:
            return None
        mask = np.zeros(_size(window), np.uint8)
        corners = (self.pixels(points) - (window[1].start, window[0].start) - 0.5) * 16
        thickness = max(1, round(width * self.scale))
        cv2.polylines(mask, [np.round(corners).astype(np.int32)], False, 1, thickness, cv2.LINE_8, 4)
        return window, mask

    def road(self, road: Road, wider: float = 0.0) -> Masked | None:
        """uint8 mask of a road, or of what is ``wider``."""
        masked = self.line(road.points, road.width + wider, road.circle)
        if masked is not None and road.circle:
            window, mask = masked
            x, y = np.round(self.pixels(road.points[-1]) - (window[1].start, window[0].start) - 0.5).astype(int)
            cv2.circle(mask, (int(x), int(y)), round((road.circle + wider / 2) * self.scale), 1, -1)
        return masked

    def building(self, building: Building, epoch: int) -> np.ndarray:
        """uint8 canvas, 1 where the building is at a date."""
        mask = np.zeros((self.height, self.width), np.uint8)
        for block in building.standing(epoch):
            window = self.window(block.corners(), 0.5)
            if window is not None:
                u, v = self.local(window, block)
                mask[window] |= ((abs(u) < block.along) & (abs(v) < block.across)).astype(np.uint8)
        return mask


class GroundNoise:
    """Smooth random fields over a canvas, mean 0 and deviation about 1, the same at both dates."""

    def __init__(self, canvas: Canvas, seed: int):
        self._canvas = canvas
        self._rng = np.random.default_rng((seed, 17))
        self.broad = self._field(26.0) * 0.8 + self._field(10.0) * 0.6
        self.middle = self._field(4.5) * 0.75 + self._field(2.2) * 0.65
        fine = self._field(0.8)
        self.grain = self._rng.standard_normal((canvas.height, canvas.width), np.float32)
        self.fine = fine * 0.7 + cv2.blur(self.grain, (3, 3)) * 2.1
        self.leaves = self._field(1.8) * 0.65 + fine * 0.75

    def _field(self, metres: float) -> np.ndarray:
        """A field whose features are about so large."""
        canvas = self._canvas
        cell = max(metres * canvas.scale, 1.0)
        size = (math.ceil(canvas.height / cell) + 3, math.ceil(canvas.width / cell) + 3)
        small = self._rng.standard_normal(size, np.float32) * np.float32(1.4)
        dx, dy = self._rng.random(2)
        matrix = np.array(((1 / cell, 0, dx + 0.5), (0, 1 / cell, dy + 0.5)), np.float32)
        flags = (cv2.INTER_CUBIC if cell > 3 else cv2.INTER_LINEAR) | cv2.WARP_INVERSE_MAP
        return cv2.warpAffine(small, matrix, (canvas.width, canvas.height), flags=flags, borderMode=cv2.BORDER_REFLECT)


def _size(window: Window) -> tuple[int, int]:
    return window[0].stop - window[0].start, window[1].stop - window[1].start


Color = tuple[float, float, float]


def srgb(*values: float) -> np.ndarray:
    """Linear RGB, float32, of an sRGB colour of 0 to 255."""
    return from_srgb(np.array(values) / 255).astype(np.float32)


def color_of(*values: float) -> Color:
    """:func:`srgb` as a tuple of numbers."""
    red, green, blue = (float(value) for value in srgb(*values))
    return red, green, blue


@dataclass(frozen=True)
class _Look:
    """Darkest and lightest colour when moist and when dry (None: the same), and how much of broad, middle and fine
    noise and of grain decides between them."""

    green: tuple[np.ndarray, np.ndarray]
    dry: tuple[np.ndarray, np.ndarray] | None
    broad: float
    middle: float
    fine: float
    grain: float


def _look(dark: Color, light: Color, dry: tuple[Color, Color] | None, *weights: float) -> _Look:
    return _Look((srgb(*dark), srgb(*light)), None if dry is None else (srgb(*dry[0]), srgb(*dry[1])), *weights)


_LOOKS = {
    "lawn": _look((58, 72, 44), (84, 92, 60), ((94, 86, 64), (114, 104, 80)), 0.35, 0.30, 0.30, 0.08),
    "meadow": _look((66, 76, 52), (102, 104, 76), ((106, 94, 74), (134, 120, 96)), 0.45, 0.22, 0.40, 0.13),
    "dry": _look((98, 96, 72), (128, 120, 94), ((118, 104, 84), (146, 132, 108)), 0.45, 0.20, 0.42, 0.13),
    "soil": _look((152, 136, 110), (196, 180, 150), None, 0.55, 0.26, 0.25, 0.07),
    "sand": _look((182, 168, 138), (212, 200, 170), None, 0.55, 0.22, 0.2, 0.06),
    "mud": _look((92, 84, 74), (124, 113, 98), None, 0.5, 0.28, 0.32, 0.09),
    "concrete": _look((184, 179, 167), (202, 197, 186), None, 0.3, 0.2, 0.25, 0.06),
    "asphalt": _look((76, 76, 78), (94, 93, 93), None, 0.4, 0.25, 0.2, 0.08),
    "gravel": _look((142, 136, 124), (172, 165, 152), None, 0.4, 0.3, 0.3, 0.1),
    "crop": _look((64, 82, 50), (92, 106, 66), ((106, 94, 76), (136, 122, 98)), 0.3, 0.18, 0.35, 0.1),
    "water": _look((42, 56, 55), (54, 68, 64), None, 0.6, 0.08, 0.03, 0.015),
}


def cover(
    name: str, noise: GroundNoise, window: Window, conditions: Conditions, shade: float, turn: float, scale: float
) -> np.ndarray:
    """Linear RGB (h, w, 3) of a window as if all of it had one cover.

    Args:
        shade: makes it lighter and drier, or darker and greener.
        turn: direction of furrows, radians; 0 for none.
        scale: canvas pixels a metre.
    """
    look = _LOOKS[name]
    broad, middle, fine = noise.broad[window], noise.middle[window], noise.fine[window]
    tone = look.broad * broad + look.middle * middle + look.fine * fine
    if turn and name in ("crop", "mud"):
        tone = tone + 0.4 * _furrows(window, turn, scale)
    share = (0.5 + 0.5 * np.tanh(0.8 * tone))[..., None]
    low, high = look.green
    if look.dry is not None:
        wanted = conditions.crops if name == "crop" else conditions.dryness
        drier = np.clip(wanted + 0.9 * shade + 0.2 * broad + 0.08 * middle, 0, 1)[..., None]
        low, high = low + (look.dry[0] - low) * drier, high + (look.dry[1] - high) * drier
    bright = 1 + shade + look.grain * (noise.grain[window] + 0.6 * fine)
    return ((low + (high - low) * share) * np.clip(bright, 0.3, 2)[..., None]).astype(np.float32)


def _furrows(window: Window, turn: float, scale: float) -> np.ndarray:
    columns = np.arange(window[1].start, window[1].stop, dtype=np.float32)[None, :] / np.float32(scale)
    rows = np.arange(window[0].start, window[0].stop, dtype=np.float32)[:, None] / np.float32(scale)
    across = rows * np.float32(math.cos(turn)) - columns * np.float32(math.sin(turn))
    return np.sin(across * np.float32(2 * math.pi / 2.4)) + np.sin(across * np.float32(2 * math.pi / 7.1))


def roof_stains(noise: GroundNoise, window: Window) -> np.ndarray:
    """Relative deviations of the reflectance of roofs and pavements."""
    return (
        0.05 * noise.broad[window] + 0.04 * noise.middle[window] + 0.04 * noise.fine[window]
        + 0.025 * noise.grain[window]
    )  # fmt: skip
