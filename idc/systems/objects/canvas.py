"""Two drawn images of any sizes on one canvas, line by line: nothing is stretched. Equal rows are found first, as by
`diff` in texts; rows between them are paired, or are a strip that one image alone has. So are columns.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import product
from typing import NamedTuple

import numpy as np

from idc.systems.objects.geometry import PixelBox, box_area, slices_of
from idc.systems.objects.pixel_changes import codes_of
from idc.systems.objects.recolouring import Recolouring, recoloured
from idc.systems.objects.wording import where_of

_CONTEXT = 40
"""Equal rows that are kept above and below different ones, for the words there and what moved there."""
_MOST_PIXELS = 4_000_000
"""Pixels of the rows that are compared: two fifths of a second for a million."""
_ELSEWHERE = 0.5
"""Share of the pixels of two images of one height that differ from which equal rows are looked for at other heights."""
_BLOCK = 16
"""Side of the blocks that are equal or not."""
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
        """Number of the pixels of the image before."""
        return self.sizes[0][0] * self.sizes[0][1]

    def on(self, side: int, box: PixelBox) -> PixelBox:
        """A box of the canvas on the image before (``side`` 0) or after (1); empty where it has nothing there."""
        ends = []
        for lines, low, high in ((self.lines[1], box[0], box[2]), (self.lines[0], box[1], box[3])):
            numbers = lines[side][low:high]
            inside = numbers[numbers >= 0]
            first = int(inside[0]) if len(inside) else int(np.max(lines[side][:low], initial=-1)) + 1
            ends.append((first, int(inside[-1]) + 1 if len(inside) else first))
        return ends[0][0], ends[1][0], ends[0][1], ends[1][1]

    def where(self, box: PixelBox) -> str:
        """The position of a box of the canvas on the image after, in words."""
        return where_of(self.on(1, box), self.sizes[1])

    def over_after(self, values: np.ndarray) -> np.ndarray:
        """Values (H, W) of the canvas over the image after, 1 on its strips and where a strip is gone."""
        result = np.zeros(self.sizes[1], np.float32)
        rows, columns = (lines[1] for lines in self.lines)
        result[np.ix_(rows[rows >= 0], columns[columns >= 0])] = values[np.ix_(rows >= 0, columns >= 0)]
        for strip in self.strips:
            seam = slice(max(strip.at - 1, 0), strip.at + 1)
            result[slices_of(strip.box) if strip.side else (slice(None), seam) if strip.axis else seam] = 1
        return result


def canvas_of(before: np.ndarray, after: np.ndarray, counted: np.ndarray | None = None) -> PairCanvas:
    """The canvas of two images. ``counted``: bool (H, W) over the image after, the part in which differences count;
    None for all."""
    lines, images = paired_lines(before, after), (before, after)
    rows, columns = lines
    strips = [
        strip
        for axis, side in product((0, 1), repeat=2)
        for strip in _strips(lines[axis], axis, side, images[side])
        if counted is None or not side or counted[slices_of(strip.box)].any()
    ]
    first, second = (image[rows[side]][:, columns[side]] for side, image in enumerate(images))
    missing = [(rows[side] < 0)[:, None] | (columns[side] < 0) for side in (0, 1)]
    if counted is not None:
        missing[0] |= ~counted[np.ix_(rows[1], columns[1])] & ~missing[1]
    np.copyto(second, first, where=missing[1][..., None])
    np.copyto(first, second, where=missing[0][..., None])
    different = codes_of(first) != codes_of(second)
    kept, left_out = _kept_rows(different)
    whole = different[: len(different) // _BLOCK * _BLOCK, : different.shape[1] // _BLOCK * _BLOCK]
    blocks = whole.reshape(len(whole) // _BLOCK, _BLOCK, -1, _BLOCK).any(axis=(1, 3)) if whole.size else different
    on_canvas = ((rows[0][kept], rows[1][kept]), columns)
    sizes = (before.shape[0], before.shape[1]), (after.shape[0], after.shape[1])
    first, second = first[kept], second[kept]
    return PairCanvas(
        first,
        second,
        recoloured(first, second, before.shape[0] * before.shape[1]),
        on_canvas,
        sizes,
        sorted(strips, key=lambda strip: -box_area(strip.box)),
        left_out,
        1 - float(blocks.mean()),
    )


def _kept_rows(different: np.ndarray) -> tuple[np.ndarray, int]:
    """Which rows are kept: those that differ and their context, the most different ones first; and how many that differ
    are not."""
    counts = different.sum(axis=1)
    rows = np.flatnonzero(counts)
    kept, room, left_out = np.zeros(len(counts), bool), max(1, _MOST_PIXELS // max(different.shape[1], 1)), 0
    runs = [run for run in np.split(rows, np.flatnonzero(np.diff(rows) > _CONTEXT) + 1) if len(run)]
    for run in sorted(runs, key=lambda run: -int(counts[run].sum())):
        end = min(int(run[-1]) + 1, int(run[0]) + max(room, 0))
        kept[run[0] : end] = True
        left_out += int((run >= end).sum())
        room -= end - int(run[0]) + 2 * _CONTEXT
    context = np.convolve(kept, np.ones(2 * _CONTEXT + 1), mode="same") > 0 if len(kept) else kept
    kept[0] |= not kept.any()
    return kept | (context[: len(kept)] & (counts == 0)), left_out


def paired_lines(before: np.ndarray, after: np.ndarray) -> tuple[Lines, Lines]:
    """The rows and columns of both images on their canvas, all of them."""
    first, second = codes_of(before), codes_of(after)
    (height, width), (other_height, other_width) = first.shape, second.shape
    columns = np.arange(width), np.arange(width)
    if width != other_width and height == other_height:
        columns = _aligned(first.T, second.T)
    elif width != other_width:
        # The narrower one at the left, in the middle or at the right, wherever most rows are equal.
        excess, least = width - other_width, min(width, other_width)
        starts = [(max(at, 0), max(-at, 0)) for at in (0, excess // 2, excess)]
        shares = [
            np.isin(_line_keys(first[:, a : a + least]), _line_keys(second[:, b : b + least])).mean() for a, b in starts
        ]
        a, b = starts[int(np.argmax(shares))]
        inner = np.full(max(width, other_width), -1)
        inner[max(a, b) : max(a, b) + least] = np.arange(least)
        columns = (np.arange(width), inner) if excess > 0 else (inner, np.arange(other_width))
    both = (columns[0] >= 0) & (columns[1] >= 0)
    first, second = first[:, columns[0][both]], second[:, columns[1][both]]
    same = np.arange(height), np.arange(height)
    if height == other_height and (share := (first != second).mean()) <= _ELSEWHERE:
        return same, columns
    rows = _aligned(first, second)
    paired = (rows[0] >= 0) & (rows[1] >= 0)
    equal = (first[rows[0][paired]] == second[rows[1][paired]]).sum() / max(first.size, 1)
    return (same if height == other_height and 1 - equal > _ELSEWHERE * share else rows), columns


def _line_keys(codes: np.ndarray) -> np.ndarray:
    """A number for each row (H, W): the same for equal ones, and by chance alone for others."""
    weights = np.random.default_rng(0).integers(1 << 63, size=codes.shape[1], dtype=np.uint64)
    return np.array([np.dot(row.astype(np.uint64), weights) for row in codes], np.uint64)


def _aligned(first: np.ndarray, second: np.ndarray) -> Lines:
    """The rows of codes (H, W) and (G, W): equal ones, and between them as many pairs as both have, at that end
    at which they agree better, before or after those that one of them alone has."""
    keys = _line_keys(first), _line_keys(second)
    numbers: tuple[list[int], list[int]] = ([], [])
    for _, *ends in SequenceMatcher(None, keys[0].tolist(), keys[1].tolist()).get_opcodes():
        rows = [list(range(ends[2 * side], ends[2 * side + 1])) for side in (0, 1)]
        least, most = sorted(map(len, rows))
        pairs = [(rows[0][:least], rows[1][:least]), (rows[0][len(rows[0]) - least :], rows[1][len(rows[1]) - least :])]
        agree = [(first[here] == second[there]).sum() for here, there in pairs]
        for side in (0, 1):
            alone = [-1] * (most - len(rows[side]))
            numbers[side].extend([*alone, *rows[side]] if agree[1] > agree[0] else [*rows[side], *alone])
    return np.array(numbers[0], int), np.array(numbers[1], int)


def _strips(lines: Lines, axis: int, side: int, image: np.ndarray) -> list[ExtraStrip]:
    numbers, others = lines[side], lines[1 - side]
    alone, strips = np.flatnonzero(others < 0), []
    for run in np.split(alone, np.flatnonzero(np.diff(alone) > 1) + 1):
        if len(run):
            low, high = int(numbers[run[0]]), int(numbers[run[-1]]) + 1
            box = (low, 0, high, image.shape[0]) if axis else (0, low, image.shape[1], high)
            follows = ((numbers >= 0) & (others >= 0))[run[-1] :].any()
            strips.append(
                ExtraStrip(side, axis, box, int(np.max(others[: run[0]], initial=-1)) + 1, len(run) if follows else 0)
            )
    return strips
