"""Letters on the sides of cubes, drawn with the typeface that Pillow brings along."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

STENCIL = 64
"""Edge of a stencil, pixels."""

_HEIGHT, _STROKE = 0.66, 0.025
"""Height of a letter and width of what is added around its strokes, as shares of the side."""


@lru_cache(maxsize=64)
def letter_stencil(letter: str) -> np.ndarray:
    """float32 (64, 64) in [0, 1]: how much of each point of a side is painted, from its upper left corner."""
    stroke = round(_STROKE * STENCIL)
    font = ImageFont.load_default(size=_HEIGHT * STENCIL / 0.7)  # a capital of this typeface is 0.7 of its size high
    image = Image.new("L", (STENCIL, STENCIL))
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = draw.textbbox((0, 0), letter, font=font, stroke_width=stroke)
    corner = ((STENCIL - left - right) / 2, (STENCIL - top - bottom) / 2)
    draw.text(corner, letter, fill=255, font=font, stroke_width=stroke)
    return np.asarray(image, np.float32) / 255
