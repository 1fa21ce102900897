"""Drawn images in other colours: a theme, a restyled map, a plain picture that was red and is green."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from idc.systems.objects.geometry import PixelBox, bounds_of
from idc.systems.objects.pixel_changes import codes_of

_CHANGED = 0.25
"""Smallest share of the pixels whose colour became another one everywhere."""
_EVERYWHERE = 0.9
"""Share of a colour's pixels that must have become the same other colour."""
_SEEN = 16
"""Pixels of a colour from which it can be said to have become another one: in a photograph each pixel has its own."""
_LISTED = 0.001
"""Smallest share of the pixels of a colour that is listed."""


class RecolouredPixels(NamedTuple):
    """Colours 0xRRGGBB before and after, the number of pixels, and the box around them."""

    before: int
    after: int
    pixels: int
    box: PixelBox


class Recolouring(NamedTuple):
    """The image before in the colours of the image after, and what became another colour, the largest first."""

    before: np.ndarray
    colours: list[RecolouredPixels]


def recoloured(before: np.ndarray, after: np.ndarray, pixels: int) -> Recolouring:
    """What became another colour wherever it was, of parts (H, W, 3), uint8 RGB, of images of this number of pixels."""
    first, second = codes_of(before), codes_of(after)
    nothing = Recolouring(before, [])
    if (first != second).sum() < _CHANGED * pixels:
        return nothing
    colours, index, counts = np.unique(first, return_inverse=True, return_counts=True)
    pairs, pair_counts = np.unique(
        index.ravel().astype(np.uint64) << np.uint64(32) | second.ravel(), return_counts=True
    )
    order = np.argsort(pair_counts, kind="stable")
    best, most = np.zeros(len(colours), np.uint32), np.zeros(len(colours), int)
    numbers = (pairs >> np.uint64(32)).astype(int)[order]
    best[numbers], most[numbers] = (
        pairs[order].astype(np.uint32),
        pair_counts[order],
    )  # of equal indices the last counts
    clear = (most >= _EVERYWHERE * counts) & (counts >= _SEEN)
    became = clear & (best != colours)
    if counts[became].sum() < _CHANGED * pixels:
        return nothing
    # Blends of two colours, at edges, become the blends of what those became.
    source, target = (codes.view(np.uint8).reshape(-1, 4)[:, :3].astype(float) for codes in (colours, best))
    terms, weights = np.column_stack([source, np.ones(len(source))]), np.sqrt(counts * clear)[:, None]
    target[~clear] = (terms @ np.linalg.lstsq(terms * weights, target * weights, rcond=None)[0])[~clear]
    large = [at for at in np.argsort(-counts, kind="stable") if became[at] and counts[at] >= _LISTED * pixels]
    became_codes = [int.from_bytes(rgb.astype(np.uint8).tobytes()) for rgb in target[large]]
    codes = [int.from_bytes(rgb.astype(np.uint8).tobytes()) for rgb in source[large]]
    colours_of_large = [
        RecolouredPixels(code, other, int(counts[at]), bounds_of(first == colours[at]))
        for code, other, at in zip(codes, became_codes, large, strict=True)
    ]
    repainted = target.round().clip(0, 255).astype(np.uint8)[index.reshape(first.shape)]
    repainted[first == second] = before[first == second]
    return Recolouring(repainted, colours_of_large)
