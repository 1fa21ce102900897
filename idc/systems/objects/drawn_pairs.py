"""Which pairs are compared pixel by pixel, for what they are.

Images are uint8 RGB (H, W, 3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from idc.systems.objects.canvas import PairCanvas, canvas_of
from idc.systems.objects.frames import is_dark
from idc.systems.objects.pixel_changes import codes_of, is_lossy
from idc.systems.objects.wording import sampled

_FLAT, _FREQUENT = 0.3, 0.6
"""Smallest shares of a drawn image's pixels that are equal to those to the right and below, and that have one of its 16
most frequent colours. Frames of films, which are smooth where they are compressed, have up to 0.67 and 0.49; maps 0.31
and 0.66."""
_FLAT_PARTS, _FEW_COLOURS, _EQUAL = (0.15, 0.25), 0.1, 0.25
"""A screen with photographs has this share of flat pixels, the first one if its number of colours is no larger share of
that of its pixels (gradients), and this share of blocks that are exactly equal on both images; edits of photographs are
not flat, and frames of one camera have at most 0.02 of such blocks."""
_SCALED = 0.02
"""Sizes that differ by the same factor, up to this, are those of one picture that was enlarged or reduced."""


def exact_canvas(before: np.ndarray, after: np.ndarray, counted: np.ndarray | None = None) -> PairCanvas | None:
    """The canvas of two images that are compared pixel by pixel, for what they are: drawn ones, or screens with
    photographs of which parts are exactly equal; else None. A compressed or enlarged copy of the other one is compared
    as a photograph. ``counted``: as of :func:`canvas_of`."""
    looks = [_look(image) for image in (before, after)]
    usual = not any(map(is_dark, (before, after)))  # a dark photograph has few levels: it is as flat as a drawing
    drawn = usual and all(look.flat >= _FLAT and look.frequent >= _FREQUENT for look in looks)
    if not drawn and any(look.flat < _FLAT_PARTS[int(look.colours > _FEW_COLOURS)] for look in looks):
        return None
    factors = np.divide(before.shape[:2], after.shape[:2])
    if min(abs(factors - 1)) > _SCALED and abs(factors[0] / factors[1] - 1) < _SCALED:
        return None
    canvas = canvas_of(before, after)  # whatever counts: what does not is made equal, and would decide
    if not drawn and canvas.equal < _EQUAL and not canvas.repainted.colours:
        return None
    if is_lossy(canvas.repainted.before, canvas.after):
        return None
    return canvas if counted is None else canvas_of(before, after, counted)


def is_flat(image: np.ndarray) -> bool:
    """Whether a part of an image is drawn, and no picture in it."""
    look = _look(image)
    return look.flat >= _FLAT or look.colours <= _FEW_COLOURS


class _Look(NamedTuple):
    """Shares of an image's pixels: equal to those to the right and below; of the 16 most frequent colours. Number of
    colours as a share of that of pixels."""

    flat: float
    frequent: float
    colours: float


def _look(image: np.ndarray) -> _Look:
    codes = codes_of(image)
    flat = (codes[:-1, :-1] == codes[1:, :-1]) & (codes[:-1, :-1] == codes[:-1, 1:])
    counts = np.sort(np.unique(sampled(codes.ravel()), return_counts=True)[1])
    return _Look(
        float(flat.mean()) if flat.size else 1.0, counts[-16:].sum() / counts.sum(), len(counts) / counts.sum()
    )
