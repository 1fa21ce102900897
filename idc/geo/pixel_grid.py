"""Where the pixels of a decoded pair are on the ground. Imports no rasterio."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PixelGrid(NamedTuple):
    """The grid that both images of a pair have.

    Attributes:
        transform: a, b, c, d, e, f: a pixel's column and row become x = a column + b row + c, y = d column + e row + f.
        crs: WKT of the coordinate system.
        valid: where both images have data, bool (H, W).
    """

    transform: tuple[float, float, float, float, float, float]
    crs: str
    valid: np.ndarray
