"""Which pairs are compared pixel by pixel, for what they are, and both images of one on a canvas, line by line: nothing
is stretched. Equal rows are found first, as by `diff` in texts; rows between them are paired, or are a strip that one
image alone has. So are columns.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import product, zip_longest
from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.comparison import is_turned
from idc.systems.objects.frames import is_dark
from idc.systems.objects.geometry import PixelBox, box_area, slices_of
from idc.systems.objects.pixel_changes import is_lossy
from idc.systems.objects.recolouring import Recolouring, codes_of, recoloured
from idc.systems.objects.wording import sampled, where_of

_FLAT, _FREQUENT = 0.3, 0.6
"""Smallest shares of a drawn image's pixels that are equal to those to the right and below, and that have one of its 16
most frequent colours. Frames of films, which are smooth where they are compressed, have up to 0.67 and 0.49; maps 0.31
and 0.66."""
_FLAT_PARTS, _FEW_COLOURS, _EQUAL = (0.15, 0.25), 0.1, 0.25
"""A screen with photographs has this share of flat pixels, the first one if its number of colours is no larger share of
that of its pixels (gradients), and this share of blocks that are exactly equal on both images; edits of photographs are
not flat, and frames of one camera have at most 0.02 of such blocks."""
_EDITED, _RETOUCHED = 0.5, 0.9
"""Shares of equal blocks from which two images are a page whose photographs are the same, if what differs is drawn, and
a photograph or page of which a few words may differ. Where a photograph was edited, at most 0.12 of what differs is
flat."""
_BLOCK = 16
"""Side of these blocks."""
_SEEN_AGAIN = 0.8
"""Share of equal blocks below which the same page may be seen from elsewhere: turned, nothing on it is at its place."""
_SCALED = 0.02
"""Sizes that differ by the same factor, up to this, are those of one picture that was enlarged or reduced."""
_CONTEXT = 40
"""Equal rows that are kept above and below different ones, for the words there and what moved there."""
_MOST_PIXELS = 4_000_000
"""Pixels of the rows that are compared: two fifths of a second for a million."""
_ELSEWHERE = 0.5
"""Share of the pixels of two images of one height that differ from which equal rows are looked for at other heights."""
Lines = tuple[np.ndarray, np.ndarray]
"""For each line of the canvas its number in the image before and after, -1 where it has none."""


class ExtraStrip(NamedTuple):
    """Rows (``axis`` 0) or columns (1) that one image alone has (``side`` 0 before, 1 after): its box there, the
    line of the other image before which it would be, and the number of pixels by which what follows moved, 0 where
    nothing does."""

    side: int
    axis: int
    box: PixelBox
    at: int
    moved: int


class PairCanvas(NamedTuple):
    """Both images on one canvas.

    Attributes:
        before, after: uint8 RGB (H, W, 3); equal where one image has nothing.
        repainted: the image before in the colours of the one after, where these changed everywhere.
        lines: of the rows and of the columns.
        sizes: (height, width) of the images.
        strips: the largest first.
        left_out: number of different rows that are not on the canvas, which holds those that differ most.
        equal: share of the blocks of both images that are equal.
    """

    before: np.ndarray
    after: np.ndarray
    repainted: Recolouring
    lines: tuple[Lines, Lines]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    strips: list[ExtraStrip]
    left_out: int
    equal: float

    @property
    def pixels(self) -> int:
        """Number of pixels of the image before."""
        return math.prod(self.sizes[0])

    @property
    def one_sided(self) -> tuple[np.ndarray, np.ndarray]:
        """Which rows and columns one image alone has."""
        rows, columns = (np.minimum(*lines) < 0 for lines in self.lines)
        return rows, columns

    def on(self, side: int, box: PixelBox) -> PixelBox:
        """A box of the canvas on the image before (``side`` 0) or after (1); empty where it has nothing there."""
        ends = []
        for lines, low, high in ((self.lines[1], box[0], box[2]), (self.lines[0], box[1], box[3])):
            numbers = lines[side][low:high]
            inside = numbers[numbers >= 0]
            first = int(inside[0]) if len(inside) else int(np.max(lines[side][:low], initial=-1)) + 1
            ends.append((first, int(inside[-1]) + 1 if len(inside) else first))
        return ends[0][0], ends[1][0], ends[0][1], ends[1][1]

    def of_after(self, box: PixelBox) -> PixelBox | None:
        """A box of the image after on the canvas; None where that holds nothing of it."""
        rows, columns = (
            np.flatnonzero((lines[1] >= low) & (lines[1] < high))
            for lines, low, high in ((self.lines[0], box[1], box[3]), (self.lines[1], box[0], box[2]))
        )
        if not len(rows) or not len(columns):
            return None
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1

    def where(self, box: PixelBox) -> str:
        """The position of a box of the canvas on the image after, in words."""
        return where_of(self.on(1, box), self.sizes[1])

    def over_after(self, values: np.ndarray) -> np.ndarray:
        """Values (H, W) of the canvas over the image after, float32, 1 on its strips and where a strip is gone."""
        result = np.zeros(self.sizes[1], np.float32)
        rows, columns = (lines[1] for lines in self.lines)
        result[np.ix_(rows[rows >= 0], columns[columns >= 0])] = values[np.ix_(rows >= 0, columns >= 0)]
        for strip in self.strips:
            seam = slice(max(strip.at - 1, 0), strip.at + 1)
            result[slices_of(strip.box) if strip.side else (slice(None), seam) if strip.axis else seam] = 1
        return result


def exact_canvas(
    before: np.ndarray,
    after: np.ndarray,
    region_of_interest: np.ndarray | None = None,
    looks: Sequence[DrawnLook] | None = None,
) -> PairCanvas | None:
    """The canvas of two images that are compared pixel by pixel, for what they are: drawn ones, or screens with
    photographs of which parts are exactly equal; else None. A compressed or enlarged copy of the other one is compared
    as a photograph. ``region_of_interest``: as of :func:`canvas_of`; ``looks``: of both, where they are known."""
    looks = looks or [drawn_look(image) for image in (before, after)]
    few = all(look.flat >= _FLAT and look.frequent >= _FREQUENT for look in looks)
    drawn = few and not any(map(is_dark, (before, after)))  # a dark photograph has few levels, as a drawing
    flat = are_pages(looks)
    if not drawn and not flat and not _is_edited_page(before, after):
        return None
    factors = np.divide(before.shape[:2], after.shape[:2])
    if min(abs(factors - 1)) > _SCALED and abs(factors[0] / factors[1] - 1) < _SCALED:
        return None
    canvas = canvas_of(before, after)  # whatever counts: what does not is made equal, and would decide
    if canvas.equal < _SEEN_AGAIN and is_turned(before, after):
        return None
    alike = drawn or canvas.equal >= _EQUAL or (few and canvas.repainted.colours)
    if not alike or is_lossy(canvas.repainted.before, canvas.after, canvas.pixels):
        return None
    return canvas if region_of_interest is None else canvas_of(before, after, region_of_interest)


def _is_edited_page(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether most of two images is exactly equal, and around what differs both are drawn, whatever photographs are
    elsewhere."""
    if before.shape != after.shape:
        return False
    codes = [codes_of(image) for image in (before, after)]
    different = codes[0] != codes[1]
    if not different.any() or _equal_blocks(different) < _EDITED:
        return False
    near = cv2.dilate(different.astype(np.uint8), np.ones((2 * _BLOCK + 1, 2 * _BLOCK + 1), np.uint8))[1:, 1:] > 0
    return min(float(_is_even(code)[near].mean()) for code in codes) >= _FLAT


def _is_even(codes: np.ndarray) -> np.ndarray:
    """Which pixels are equal to those to the right and below, bool (H - 1, W - 1)."""
    return (codes[:-1, :-1] == codes[1:, :-1]) & (codes[:-1, :-1] == codes[:-1, 1:])


def are_pages(looks: Iterable[DrawnLook]) -> bool:
    """Whether images that look so are screens, whatever photographs are on them."""
    return all(look.flat >= _FLAT_PARTS[int(look.colours > _FEW_COLOURS)] for look in looks)


def is_retouched(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether little of two images of one size is not exactly equal."""
    return before.shape == after.shape and 1 > _equal_blocks(codes_of(before) != codes_of(after)) >= _RETOUCHED


def is_flat(image: np.ndarray) -> bool:
    """Whether a part of an image is drawn, and no picture in it."""
    look = drawn_look(image)
    return look.flat >= _FLAT or look.colours <= _FEW_COLOURS


class DrawnLook(NamedTuple):
    """Shares of an image's pixels: equal to those to the right and below; of the 16 most frequent colours. Number of
    colours as a share of that of pixels."""

    flat: float
    frequent: float
    colours: float


def drawn_look(image: np.ndarray) -> DrawnLook:
    """Of an image, uint8 RGB (H, W, 3)."""
    codes = codes_of(image)
    flat = _is_even(codes)
    counts = np.sort(np.unique(sampled(codes.ravel()), return_counts=True)[1])
    total = counts.sum()
    return DrawnLook(float(flat.mean()) if flat.size else 1.0, counts[-16:].sum() / total, len(counts) / total)


def canvas_of(before: np.ndarray, after: np.ndarray, region_of_interest: np.ndarray | None = None) -> PairCanvas:
    """The canvas of two images. ``region_of_interest``: bool (H, W) over the image after, where differences count; None
    for all."""
    lines, images = _paired_lines(before, after), (before, after)
    rows, columns = lines
    strips = [
        strip
        for axis, side in product((0, 1), repeat=2)
        for strip in _strips(lines[axis], axis, side, images[side])
        if region_of_interest is None or not side or region_of_interest[slices_of(strip.box)].any()
    ]
    first, second = (image[rows[side]][:, columns[side]] for side, image in enumerate(images))
    missing = [(rows[side] < 0)[:, None] | (columns[side] < 0) for side in (0, 1)]
    if region_of_interest is not None:
        missing[0] |= ~region_of_interest[np.ix_(rows[1], columns[1])] & ~missing[1]
    np.copyto(second, first, where=missing[1][..., None])
    np.copyto(first, second, where=missing[0][..., None])
    different = codes_of(first) != codes_of(second)
    kept, left_out = _kept_rows(different)
    first, second = first[kept], second[kept]
    sizes = (before.shape[0], before.shape[1]), (after.shape[0], after.shape[1])
    return PairCanvas(
        first, second, recoloured(first, second, sizes[0][0] * sizes[0][1]),
        ((rows[0][kept], rows[1][kept]), columns), sizes,
        sorted(strips, key=lambda strip: -box_area(strip.box)), left_out, _equal_blocks(different),
    )  # fmt: skip


def _equal_blocks(different: np.ndarray) -> float:
    """Share of the blocks without a different pixel."""
    whole = different[: len(different) // _BLOCK * _BLOCK, : different.shape[1] // _BLOCK * _BLOCK]
    if not whole.size:
        return 1 - float(different.mean())
    return 1 - float(whole.reshape(len(whole) // _BLOCK, _BLOCK, -1, _BLOCK).any(axis=(1, 3)).mean())


def _kept_rows(different: np.ndarray) -> tuple[np.ndarray, int]:
    """Which rows are kept: those that differ and their context, the parts that differ most first; and how many that
    differ are not."""
    counts = different.sum(axis=1)
    near = cv2.dilate((counts > 0).astype(np.uint8)[:, None], np.ones((2 * _CONTEXT + 1, 1), np.uint8))
    near[0] |= not near.any()
    parts = cv2.connectedComponents(near)[1].ravel()
    order = np.argsort(-np.bincount(parts, counts)[parts], kind="stable")
    left_out = order[max(1, _MOST_PIXELS // different.shape[1]) :]
    kept = near.ravel() > 0
    kept[left_out] = False
    return kept, int((counts[left_out] > 0).sum())


def _paired_lines(before: np.ndarray, after: np.ndarray) -> tuple[Lines, Lines]:
    """The rows and columns of both images on their canvas, all of them."""
    first, second = codes_of(before), codes_of(after)
    (height, width), (other_height, other_width) = first.shape, second.shape
    columns = np.arange(width), np.arange(width)
    if width != other_width:
        columns = _aligned(first.T, second.T) if height == other_height else _placed(first, second)
    both = (columns[0] >= 0) & (columns[1] >= 0)
    first, second = first[:, columns[0][both]], second[:, columns[1][both]]
    same = np.arange(height), np.arange(height)
    if height == other_height and (share := (first != second).mean()) <= _ELSEWHERE:
        return same, columns
    rows = _aligned(first, second)
    paired = (rows[0] >= 0) & (rows[1] >= 0)
    equal = (first[rows[0][paired]] == second[rows[1][paired]]).sum() / max(first.size, 1)
    return (same if height == other_height and 1 - equal > _ELSEWHERE * share else rows), columns


def _placed(first: np.ndarray, second: np.ndarray) -> Lines:
    """The columns of codes (H, W) and (G, V): the narrower ones at the left, in the middle or at the right, wherever
    most rows are equal."""
    widths = first.shape[1], second.shape[1]
    excess, least = widths[0] - widths[1], min(widths)

    def equal_rows(starts: tuple[int, int]) -> float:
        keys = [_line_keys(side[:, at : at + least]) for side, at in zip((first, second), starts, strict=True)]
        return float(np.isin(keys[0], keys[1]).mean())

    starts = max(((max(at, 0), max(-at, 0)) for at in (0, excess // 2, excess)), key=equal_rows)
    columns = np.arange(max(widths))
    numbers = [columns - start for start in reversed(starts)]
    before, after = (np.where((at >= 0) & (at < width), at, -1) for at, width in zip(numbers, widths, strict=True))
    return before, after


def _line_keys(codes: np.ndarray) -> np.ndarray:
    """A number for each row (H, W): the same for equal ones, and by chance alone for others."""
    weights = np.random.default_rng(0).integers(1 << 63, size=codes.shape[1], dtype=np.uint64)
    return np.array([np.dot(row.astype(np.uint64), weights) for row in codes], np.uint64)


def _aligned(first: np.ndarray, second: np.ndarray) -> Lines:
    """The rows of codes (H, W) and (G, W): equal ones, and between them as many pairs as both have, at that end
    at which they agree better, before or after those that one of them alone has."""
    keys = (_line_keys(codes).tolist() for codes in (first, second))
    numbers: list[tuple[int, int]] = []
    for _, top, bottom, other_top, other_bottom in SequenceMatcher(None, *keys).get_opcodes():
        rows, others = range(top, bottom), range(other_top, other_bottom)
        least = min(len(rows), len(others))
        at_top = first[rows[:least]] == second[others[:least]]
        at_bottom = first[rows[len(rows) - least :]] == second[others[len(others) - least :]]
        if at_bottom.sum() > at_top.sum():
            numbers += [*zip_longest(rows[::-1], others[::-1], fillvalue=-1)][::-1]
        else:
            numbers += zip_longest(rows, others, fillvalue=-1)
    before, after = np.array(numbers, int).reshape(-1, 2).T
    return before, after


def _strips(lines: Lines, axis: int, side: int, image: np.ndarray) -> list[ExtraStrip]:
    numbers, others = lines[side], lines[1 - side]
    alone, strips = np.flatnonzero(others < 0), []
    for run in filter(len, np.split(alone, np.flatnonzero(np.diff(alone) > 1) + 1)):
        low, high = int(numbers[run[0]]), int(numbers[run[-1]]) + 1
        box = (low, 0, high, image.shape[0]) if axis else (0, low, image.shape[1], high)
        follows = ((numbers >= 0) & (others >= 0))[run[-1] :].any()
        at = int(np.max(others[: run[0]], initial=-1)) + 1
        strips.append(ExtraStrip(side, axis, box, at, len(run) if follows else 0))
    return strips
