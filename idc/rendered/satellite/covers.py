"""Reflectance of the ground's covers, from two colours and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from idc.rendered.look import from_srgb
from idc.rendered.satellite.canvas import GroundNoise, Window
from idc.rendered.satellite.site import Conditions

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
