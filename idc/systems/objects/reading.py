"""Words on images, read by rapidocr, where it is installed (the extra ``text``; its models are inside its wheel), and
those that differ in parts of two drawn images, up to a bound: reading is the slowest part of a comparison.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np

from idc.systems.objects.geometry import PixelBox, around, box_iou, boxes_overlap, shifted_box, slices_of
from idc.systems.objects.recolouring import codes_of

_LINE = 48
"""Height at which the reader takes a line."""
_BLANK, _IN_NUMBER, _LIKE_BLANKS = 0.2, 0.3, 0.8
"""A gap is a blank that the reader left out if it is wider than the usual one between letters by this share of the
letters' height, the second one before a digit of a number, and has this share of the line's usual blank. In 17 fonts
letters have up to 0.16, the digits around a `1` or a full stop up to 0.27, and blanks, but for one in twenty, 0.2."""
_INK = 0.3
"""Share of the contrast from which a column of pixels has ink."""
_READ = 0.8
"""Smallest mean confidence of a line: less has what is read into textures."""
_ALIKE = str.maketrans("01i25|", "ollzsl")
"""Characters that the reader takes for others of the same shape (after lower case)."""
_MOST_READ = 10
"""Clusters in which words are read, the largest first ..."""
_MOST_LINES = 20
"""... and lines, of both images together: a fiftieth of a second each ..."""
_MOST_PIXELS = 1_200_000
"""... and pixels in which lines are looked for: a third of a second for a million."""
_ENLARGED = ((24, 3.0), (60, 2.0))
"""Parts up to this height, in pixels, are enlarged this much for reading."""
_NAMING_HEIGHT, _MOST_NAMING, _SMALLEST_NAME = 120, 900_000, 8
"""Pixels from the top of an element in which the words that name it are, and those of all such parts of a pair; height
and width of the smallest one."""
_SHORTENED = 0.3
"""Intersection over union of the boxes of a word and of what is left of it, or replaces it."""
_MARGIN = 12
"""Pixels around what is read."""
_AT_BORDER = 3
"""Pixels by which boxes of words are not exact."""
_THINNEST = 100
"""Largest ratio of the sides of an image that the reader takes: a thinner one becomes nothing when it reduces it."""
_MOST_EXTENDED = (160, 24)
"""Pixels by which a cluster is extended at most, across and down, to the whole of a word of which a part differs."""
_SMALLEST_LETTER = 3
"""Pixels that a cluster has at least in either direction for words to be in it."""


class Word(NamedTuple):
    """A word that was read; ``corners`` (4, 2) in pixels, from the top left clockwise; ``confidence`` in [0, 1]."""

    text: str
    corners: np.ndarray
    confidence: float = 1.0

    @property
    def key(self) -> str:
        """Equal for two readings of the same word."""
        return word_key(self.text)

    @property
    def box(self) -> PixelBox:
        """The pixels of its quadrilateral."""
        return box_of(self.corners)


def reads_text() -> bool:
    """Whether the extra is installed."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def lines_on(image: np.ndarray) -> list[np.ndarray]:
    """Lines of text, their corners (4, 2) from the top left clockwise."""
    height, width = image.shape[:2]
    thinnest = -(-max(height, width) // _THINNEST)
    image = cv2.copyMakeBorder(image, 0, max(0, thinnest - height), 0, max(0, thinnest - width), cv2.BORDER_REPLICATE)
    result = _reader()(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), use_det=True, use_cls=False, use_rec=False)
    return [] if result.boxes is None else [np.asarray(box, np.float32) for box in result.boxes]


def words_on_line(image: np.ndarray, line: np.ndarray) -> list[Word]:
    """The words of a line, of which the corners (4, 2) are given, from left to right."""
    patch = flattened(image, line, _LINE)
    result = _reader()(
        cv2.cvtColor(patch, cv2.COLOR_RGB2BGR), use_det=False, use_cls=False, use_rec=True, return_word_box=True
    )
    text, info = result.txts[0], result.word_results[0]
    columns = np.array([column for word in info.word_cols for column in word])
    if not text or result.scores[0] < _READ or not len(columns):  # letters of some scripts have no columns
        return []
    lengths = [len(part) for part in text.split()]
    starts = np.zeros(len(columns), bool)
    starts[np.cumsum([0, *lengths[:-1]])] = True
    letters = [pair for pair in zip(text, info.confs, strict=True) if not pair[0].isspace()]
    centres = (columns + 0.5) / info.line_txt_len
    starts[1:] |= _has_wide_gap(patch, "".join(letter for letter, _ in letters), centres, starts[1:])
    words = []
    for at in np.split(np.arange(len(letters)), np.flatnonzero(starts)[1:]):
        part = "".join(letters[number][0] for number in at)
        if any(map(str.isalnum, part)):
            # Half a column wider than the centres of the first and the last character.
            ends = np.array([columns[at[0]] - 0.5, *[columns[at[-1]] + 1.5] * 2, columns[at[0]] - 0.5])[:, None]
            corners = line[[0, 0, 3, 3]] + ends / info.line_txt_len * (line[[1, 1, 2, 2]] - line[[0, 0, 3, 3]])
            words.append(Word(part, corners, float(np.mean([letters[number][1] for number in at]))))
    return words


def _has_wide_gap(patch: np.ndarray, letters: str, centres: np.ndarray, blank: np.ndarray) -> np.ndarray:
    """Between which letters of a line, uint8 RGB (H, W, 3), the gap is that of a blank, bool (N - 1,). ``centres`` (N,)
    are shares of its width, and ``blank`` (N - 1,) is where the reader saw one."""
    if blank.all():
        return blank
    grey = cv2.cvtColor(patch, cv2.COLOR_RGB2GRAY).astype(np.float32)
    contrast = np.abs(grey - np.median(grey))
    ink = contrast > _INK * np.percentile(contrast, 99)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink.astype(np.uint8))
    top, bottom = stats[:, 1], stats[:, 1] + stats[:, 3]
    other_lines = ((top == 0) & (bottom < _LINE / 2)) | ((bottom == _LINE) & (top > _LINE / 2))
    ink &= ~other_lines[labels]
    inked = np.flatnonzero(ink.any(axis=0))
    if not len(inked):  # what was read is in another line
        return blank
    on_ink = inked[np.abs(inked[:, None] - centres * patch.shape[1]).argmin(axis=0)]
    gaps = np.array([np.diff(inked[(inked >= a) & (inked <= b)], prepend=a).max() for a, b in pairwise(on_ink)])
    least = np.array(
        [
            # Between two letters the reader sees blanks, and before these signs there is none.
            np.inf if letter in ".,:;" or (letter + other).isalpha()
            else _IN_NUMBER if letter.isdigit() and other in "0123456789.,:" else _BLANK
            for other, letter in pairwise(letters)
        ]
    )  # fmt: skip
    least = np.median(gaps[~blank]) + least * np.ptp(np.flatnonzero(ink.any(axis=1)))
    return gaps >= np.maximum(least, _LIKE_BLANKS * np.median(gaps[blank]) if blank.any() else 0)


@lru_cache(maxsize=1)
def _reader() -> Any:
    """The reader, loaded once: half a second."""
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            # Threads spin while they wait: two took 0.12 processor seconds for what one does in 0.06.
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "Det.limit_side_len": 32,  # lines are detected at the size that parts are cut at
        }
    )


def box_of(corners: np.ndarray) -> PixelBox:
    """The pixels of a quadrilateral (4, 2)."""
    x, y = corners.T
    return max(int(x.min()), 0), max(int(y.min()), 0), int(np.ceil(x.max())), int(np.ceil(y.max()))


def word_key(words: str) -> str:
    """Equal for two readings of the same words."""
    return words.lower().strip(string.punctuation).translate(_ALIKE)


def cut_out(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A part of an image at a size; the matrix leads from its pixels to the image's."""
    height, width = size
    corners = np.array([[[0, 0], [width, 0], [width, height], [0, height]]], float)
    bounds = cv2.perspectiveTransform(corners, matrix)[0]
    # Only the surroundings are filtered, not the whole of a large image.
    x, y = (max(0, int(low) - 4) for low in bounds.min(0))
    right, bottom = (int(high) + 5 for high in bounds.max(0))
    part = image[y:bottom, x:right]
    if not part.size:
        return np.zeros((height, width, *image.shape[2:]), image.dtype)
    reduction = float(
        max(np.linalg.norm(bounds[1] - bounds[0]) / width, np.linalg.norm(bounds[3] - bounds[0]) / height)
    )
    if reduction > 1.5:
        part = cv2.GaussianBlur(part, (0, 0), reduction / 3)  # a smaller part has not the detail of the image
    moved = np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1.0]]) @ matrix
    flags = (cv2.INTER_CUBIC if reduction < 1 else cv2.INTER_LINEAR) | cv2.WARP_INVERSE_MAP
    return cv2.warpPerspective(part, moved, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def flattened(image: np.ndarray, quad: np.ndarray, height: int, border: int = 0) -> np.ndarray:
    """A quadrilateral as a rectangle of a height, with a border of pixels around it."""
    across, down = (
        float(np.linalg.norm(quad[a] - quad[b], axis=1).max()) for a, b in (([1, 2], [0, 3]), ([3, 2], [0, 1]))
    )
    width = max(height // 2, round(height * across / max(down, 1.0)))
    ends = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32) + border
    matrix = cv2.getPerspectiveTransform(ends, quad.astype(np.float32))
    return cut_out(image, matrix, (height + 2 * border, width + 2 * border))


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
    """What may still be read of a pair, and the number of parts that were left out for it. ``one_sided``: which rows
    and columns of both images one of them alone has: words across them are of neither."""

    def __init__(self, reads_text: bool, one_sided: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        self.reads_text, self.skipped, self.named = reads_text, 0, 0
        self._one_sided = one_sided
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

    def name(self, image: np.ndarray, box: PixelBox, height: int = _NAMING_HEIGHT) -> list[Word]:
        """The words by which an element is named, those in so many pixels at its top; none where too much was read
        already."""
        box = around((*box[:3], min(box[3], box[1] + height)), 3, image.shape)
        self.named += (box[2] - box[0]) * (box[3] - box[1])
        if not self.reads_text or self.named > _MOST_NAMING or min(box[2] - box[0], box[3] - box[1]) < _SMALLEST_NAME:
            return []
        bounds = self.skipped, self.lines, self.pixels  # of what differs
        self.lines, self.pixels = _MOST_LINES, _MOST_PIXELS
        [words] = self.words([image], box, lambda area: True)
        self.skipped, self.lines, self.pixels = bounds
        return words

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
                word
                for area, line in lines
                if area[3] <= limit
                for each in words_on_line(part, line)
                if not _is_cut(image, (word := each._replace(corners=original(each.corners))).box)
                and not (len(images) > 1 and self._is_patched(word.box))
            ]
            for image, part, lines in zip(images, parts, sides, strict=True)
        ]
        boxes = [word.box for side in words for word in side if wanted(word.box)]
        # Two words begin or end together, or one is in the place of the other one.
        return [[word for word in side if any(box_iou(word.box, box) > _SHORTENED for box in boxes)] for side in words]

    def _is_patched(self, box: PixelBox) -> bool:
        """Whether a word's box has rows or columns that one image alone has."""
        if self._one_sided is None:
            return False
        rows, columns = self._one_sided
        return bool(rows[box[1] : box[3]].any() or columns[box[0] : box[2]].any())


def _is_cut(image: np.ndarray, box: PixelBox) -> bool:
    """Whether the image's border goes through a word, whose box is at it."""
    left, top, right, bottom = around(box, _AT_BORDER, image.shape)
    part = codes_of(image[top:bottom, left:right])
    at_border = top == 0, bottom == image.shape[0], left == 0, right == image.shape[1]
    edges = part[0], part[-1], part[:, 0], part[:, -1]
    return any(near and bool((edge != edge[0]).any()) for near, edge in zip(at_border, edges, strict=True))


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
