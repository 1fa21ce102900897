"""The colours of drawn images, and images in other colours: a theme, a restyled map, a plain picture that was red and
is green. Images are uint8 RGB (H, W, 3); a colour as a number is 0xFFRRGGBB."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.geometry import PixelBox, bounds_of
from idc.systems.objects.wording import colour_of, sampled

_CHANGED = 0.25
"""Smallest share of the pixels whose colour became another one everywhere."""
_EVERYWHERE = 0.9
"""Share of a colour's pixels that must have become the same other colour."""
_SEEN = 16
"""Pixels of a colour from which it can be said to have become another one: in a photograph each pixel has its own."""
_ROUNDING = 2
"""Levels in 255 by which colours differ that were converted in another way."""
_LISTED = 0.001
"""Smallest share of the pixels of a colour that is listed."""


class Colour(NamedTuple):
    """The most frequent colour of some pixels, and the share of them that have it."""

    code: int
    share: float = 1.0

    @property
    def rgb(self) -> np.ndarray:
        """Its channels, (1, 3), from 0 to 255."""
        return np.array([[self.code >> shift & 255 for shift in (16, 8, 0)]], np.float32)

    @property
    def name(self) -> str:
        """In words."""
        return colour_of(self.rgb / 255)

    @property
    def hex(self) -> str:
        """As in style sheets."""
        return f"#{self.code & 0xFFFFFF:06x}"


def same_colour(colour: Colour, other: Colour) -> bool:
    """Whether they are one, perhaps converted in another way."""
    return bool(np.abs(colour.rgb - other.rgb).max() <= _ROUNDING)


class RecolouredPixels(NamedTuple):
    """Colours before and after, the number of pixels, and the box around them."""

    before: Colour
    after: Colour
    pixels: int
    box: PixelBox


class Recolouring(NamedTuple):
    """The image before in the colours of the image after, and what became another colour, the largest first."""

    before: np.ndarray
    colours: list[RecolouredPixels]


def codes_of(image: np.ndarray) -> np.ndarray:
    """The colour of each pixel (H, W) as a number."""
    return cv2.cvtColor(image, cv2.COLOR_RGB2BGRA).view(np.uint32)[..., 0]


def main_colour(pixels: np.ndarray) -> Colour:
    """The most frequent colour of pixels (N, 3), of which there is at least one."""
    codes, counts = np.unique(codes_of(sampled(pixels)[None]), return_counts=True)
    return Colour(int(codes[counts.argmax()]), float(counts.max() / counts.sum()))


def names_of(first: Colour, second: Colour) -> tuple[str, str]:
    """Two colours in words, or in hex where the words are the same."""
    return (first.name, second.name) if first.name != second.name else (first.hex, second.hex)


def recoloured(before: np.ndarray, after: np.ndarray, pixels: int) -> Recolouring:
    """What became another colour wherever it was, of parts (H, W, 3) of images of this number of pixels."""
    first, second = codes_of(before), codes_of(after)
    if (first != second).sum() < _CHANGED * pixels:
        return Recolouring(before, [])
    colours, index, counts = np.unique(first, return_inverse=True, return_counts=True)
    pairs, pair_counts = np.unique(
        index.reshape(first.shape).astype(np.uint64) << np.uint64(32) | second, return_counts=True
    )
    numbers = (pairs >> np.uint64(32)).astype(int)
    # Of each colour the last pair, which is its most frequent one.
    last = np.lexsort((pair_counts, numbers))[np.cumsum(np.bincount(numbers)) - 1]
    best = pairs[last].astype(np.uint32)
    clear = (pair_counts[last] >= _EVERYWHERE * counts) & (counts >= _SEEN)
    became = clear & (best != colours)
    listed = np.flatnonzero(became & (counts >= _LISTED * pixels))
    # Of a gradient each colour has few pixels: nothing could be said of what would count as explained here.
    if counts[listed].sum() < _CHANGED * pixels:
        return Recolouring(before, [])
    # Blends of two colours, at edges, become the blends of what those became.
    source, target = (codes.view(np.uint8).reshape(-1, 4)[:, 2::-1].astype(float) for codes in (colours, best))
    terms, weights = np.column_stack([source, np.ones(len(source))]), np.sqrt(counts * clear)[:, None]
    target[~clear] = (terms @ np.linalg.lstsq(terms * weights, target * weights, rcond=None)[0])[~clear]
    repainted = target.round().clip(0, 255).astype(np.uint8)[index.reshape(first.shape)]
    repainted[first == second] = before[first == second]
    large = listed[np.argsort(-counts[listed], kind="stable")].tolist()
    codes, others, boxes = colours.tolist(), best.tolist(), [bounds_of(first == colours[at]) for at in large]
    return Recolouring(
        repainted,
        [
            RecolouredPixels(Colour(codes[at]), Colour(others[at]), int(counts[at]), box)
            for at, box in zip(large, boxes, strict=True)
        ],
    )
