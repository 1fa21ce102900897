"""The words that differ in parts of two drawn images, up to a bound for each pair.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.geometry import PixelBox, around, box_iou, boxes_overlap, shifted_box, slices_of
from idc.systems.objects.recolouring import codes_of
from idc.systems.objects.text import Word, box_of, lines_on, words_on_line

_MOST_READ = 10
"""Clusters in which words are read, the largest first ..."""
_MOST_LINES = 20
"""... and lines, of both images together: a fiftieth of a second each ..."""
_MOST_PIXELS = 1_200_000
"""... and pixels in which lines are looked for: a third of a second for a million."""
_ENLARGED = ((24, 3.0), (60, 2.0))
"""Parts up to this height, in pixels, are enlarged this much for reading."""
_SHORTENED = 0.3
"""Intersection over union of the boxes of a word and of what is left of it, or replaces it."""
_MARGIN = 12
"""Pixels around what is read."""
_MOST_EXTENDED = (160, 24)
"""Pixels by which a cluster is extended at most, across and down, to the whole of a word of which a part differs."""
_SMALLEST_LETTER = 3
"""Pixels that a cluster has at least in either direction for words to be in it."""


class DrawnWords(NamedTuple):
    """What is read in a cluster before and after: words with a pixel that differs."""

    before: list[Word]
    after: list[Word]

    def changed(self) -> tuple[list[Word], list[Word]]:
        """The words that the other image has not, or less often; none if only the gaps were read otherwise."""
        keys = [[word.key for word in words] for words in self]
        if "".join(keys[0]) == "".join(keys[1]):
            return [], []
        return _without(self.before, keys[1]), _without(self.after, keys[0])


class WordReader:
    """What may still be read of a pair, and the number of parts that were left out for it."""

    def __init__(self, reads_text: bool) -> None:
        self.reads_text, self.skipped = reads_text, 0
        self.clusters, self.lines, self.pixels = _MOST_READ, _MOST_LINES, _MOST_PIXELS

    def words_of(self, before: np.ndarray, after: np.ndarray, box: PixelBox, mask: np.ndarray) -> DrawnWords:
        """The words with a pixel of a cluster, which is a mask (h, w) of a box; none where no letter fits in."""
        nothing = DrawnWords([], [])
        if not self.reads_text or min(mask.shape) < _SMALLEST_LETTER:
            return nothing
        if min(self.clusters, self.lines, self.pixels) <= 0:
            self.skipped += 1
            return nothing
        self.clusters -= 1

        def differs(area: PixelBox) -> bool:
            return bool(mask[slices_of(shifted_box(area, -box[0], -box[1]))].any())

        words = DrawnWords(*self.words((before, after), _box_of_words(before, after, box), differs))
        texts = ["".join(filter(str.isalnum, "".join(word.text for word in side))) for side in words]
        is_icon = max(map(len, texts)) < 2 and not any(map(str.isdigit, texts))  # one that looks like a letter
        return nothing if is_icon else words

    def words(
        self, images: Sequence[np.ndarray], box: PixelBox, wanted: Callable[[PixelBox], bool]
    ) -> list[list[Word]]:
        """The words in a box of both images that are wanted, and those that are in their place on the other image.
        Where that is too much, of the lines at the top, the same ones of both: a line that is read on one of them alone
        would be gone."""
        if not self.reads_text:
            return [[] for _ in images]
        left, top, right, bottom = box
        scale = next((scale for height, scale in _ENLARGED if bottom - top <= height), 1.0)
        end = min(bottom, top + int(self.pixels / (2 * scale**2 * (right - left))))
        self.pixels -= int(2 * scale**2 * (right - left) * (end - top))
        limit = bottom + _MARGIN if end == bottom else end - _MARGIN
        if limit <= top:
            self.skipped += 1
            return [[] for _ in images]

        def original(corners: np.ndarray) -> np.ndarray:
            return (corners - _MARGIN) / scale + (left, top)

        parts = [
            # In its own colour around: letters at the edge are read better.
            cv2.copyMakeBorder(
                cv2.resize(image[top:end, left:right], None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC),
                *(_MARGIN,) * 4, cv2.BORDER_REPLICATE,
            )
            for image in images
        ]  # fmt: skip
        sides = [[(box_of(original(line)), line) for line in lines_on(part)] for part in parts]
        boxes = [area for lines in sides for area, _ in lines if wanted(area)]
        sides = [[entry for entry in lines if any(boxes_overlap(entry[0], box) for box in boxes)] for lines in sides]
        ends = sorted(area[3] for lines in sides for area, _ in lines)
        if len(ends) > self.lines:
            limit = min(limit, ends[self.lines] - 1)
        self.skipped += limit < bottom + _MARGIN
        self.lines -= min(len(ends), self.lines)
        words = [
            [
                word._replace(corners=original(word.corners))
                for area, line in lines
                if area[3] <= limit
                for word in words_on_line(part, line)
            ]
            for part, lines in zip(parts, sides, strict=True)
        ]
        boxes = [word.box for side in words for word in side if wanted(word.box)]
        return [[word for word in side if any(_in_place(word.box, box) for box in boxes)] for side in words]


def _in_place(box: PixelBox, other: PixelBox) -> bool:
    """Whether two words begin or end together, or one is in the place of the other one."""
    return box_iou(box, other) > _SHORTENED


def _without(words: list[Word], keys: list[str]) -> list[Word]:
    """The words whose keys are not among these, or less often."""
    left, remaining = Counter(keys), []
    for word in words:
        left[word.key] -= 1
        if left[word.key] < 0:
            remaining.append(word)
    return remaining


def _box_of_words(before: np.ndarray, after: np.ndarray, box: PixelBox) -> PixelBox:
    """The box, extended to whole letters and words: up and down to an even row, left and right to an even gap."""
    left, top, right, bottom = box
    height, width = before.shape[:2]
    x, y, end, low = around(box, max(_MOST_EXTENDED) + 1, before.shape)
    codes = [codes_of(image[y:low, x:end]) for image in (before, after)]

    def even(rows: slice, columns: slice) -> bool:
        here = slice(rows.start - y, rows.stop - y), slice(columns.start - x, columns.stop - x)
        return all((code[here] == code[here][0, 0]).all() for code in codes)

    for _ in range(_MOST_EXTENDED[1]):
        top -= top > 0 and not even(slice(top, top + 1), slice(left, right))
        bottom += bottom < height and not even(slice(bottom - 1, bottom), slice(left, right))
    gap = max(3, (bottom - top) // 3)
    for _ in range(_MOST_EXTENDED[0]):
        left -= left > 0 and not even(slice(top, bottom), slice(left, left + gap))
        right += right < width and not even(slice(top, bottom), slice(max(right - gap, x), right))
    return around((left, top, right, bottom), 3, (height, width))
