"""The sRGB curve."""

from __future__ import annotations

import numpy as np


def to_srgb(linear: np.ndarray) -> np.ndarray:
    """The sRGB curve on [0, 1]; larger values are clipped."""
    linear = np.clip(linear, 0.0, 1.0)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def from_srgb(value: np.ndarray) -> np.ndarray:
    """The inverse of :func:`to_srgb`."""
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
