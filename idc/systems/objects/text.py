"""Words on two photographs that became others, appeared, or are gone. They are read only in parts that differ: lines of
text are detected there on both images, and those whose letters differ are read and compared by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import permutations, product
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Claim, ClaimKind
from idc.systems.objects.geometry import Box, box_area, box_cover, box_iou, warped_box, warped_to
from idc.systems.objects.reading import Word, cut_out, flattened, lines_on, word_key, words_on_line
from idc.systems.objects.wording import quoted, where_of

_SIDE = 2048
"""Longer side at which parts that differ are looked for: 12 of 4000 pixels, a small letter, are 6 there."""
_WINDOW = 12
"""Side of the windows that are compared there."""
_TRACE = 0.04
"""Smallest difference of a window, in local contrast: a faint sign has 0.2 of it."""
_GAP = 12
"""Windows that differ are one part up to this distance: the letters of a line are."""
_PIXELS = 300_000
"""Size to which a larger part is reduced: 0.08 seconds of a core."""
_MOST_PARTS = 300
"""Parts that are looked at, those that differ most first: joining them is quadratic."""
_SHARED = 0.5
"""Share of a change's box inside that of a longer one from which it is the same: boxes of lines overlap a little."""
_BUDGET = 1_000_000
"""Number of pixels that are read on an image, of the parts that differ most first: letters are in strong contrast."""
_ENLARGED = 3.0
"""Largest enlargement of a part: letters of 9 pixels are read at 27."""
_SHORT_SIDE = 256
"""Parts with at least this short side are not enlarged."""
_MARGIN = 16
"""Smallest margin around a part, where its line may continue."""
_SURE = 0.9
"""Smallest mean confidence of a word that is quoted."""
_SURER, _ALIKE = 0.99, 0.75
"""The same where one may be the other misread, and the share of the letters from which it may."""
_SHORTEST = 3
"""Smallest number of letters and digits that appear, are gone, or are quoted without the words beside them."""
_QUOTED = 6
"""Number of words that a claim quotes."""
_LETTER = 24
"""Height at which the pixels of a word are compared."""
_SHIFT = 3
"""Displacements of a word that do not count, at that height."""
_MISREAD = 0.06
"""Share of a word's contrast up to which its letters are the same, however they are read: in noise, blur, compression
and other light equal words differ by at most 0.043, a digit among others by 0.084 and more."""
_NO_LETTER = 0.3
"""Share from which a word is not there on the other image ..."""
_BLURRED = 3.0
"""... with this blur of both, at that height: it may be too blurred on one of them to be read."""
_OTHER_WINDOW = 0.15
"""Share of the contrast from which a part differs."""


_UNCUT = 0.8
"""Share of the letters of words that are left of them if they were cut at an end."""


class WordChange(NamedTuple):
    """Words of one position before and after, empty where there are none; None: of both, what they were and are is not
    sure. ``box`` is in pixels of the image after."""

    before: str | None
    after: str | None
    box: Box
    confidence: float


def word_claims(
    before: np.ndarray, after: np.ndarray, warp: np.ndarray | None = None, region_of_interest: np.ndarray | None = None
) -> list[Claim]:
    """The words that became others at their position, appeared, or are gone, from top to bottom.

    Args:
        before, after: uint8 RGB (H, W, 3), of any sizes, of the same view.
        warp: homography from pixels of the image after to those of the image before; by default none moved.
        counted: bool (H, W) over the image after; words whose centre is not counted are left out.
    """
    warp = np.eye(3) if warp is None else warp
    size = after.shape[:2]
    changes: list[WordChange] = []
    budget = float(_BUDGET)
    for box in _joined([_inside(box, size) for box in _parts(before, after, warp)[:_MOST_PARTS]]):
        area, short_side = max(1.0, box_area(box)), max(1.0, min(box[2] - box[0], box[3] - box[1]))
        scale = min(_ENLARGED, max(1.0, _SHORT_SIDE / short_side), (_PIXELS / area) ** 0.5)
        if scale**2 * area <= budget:
            budget -= scale**2 * area
            changes += _changes_in(before, after, warp, box, scale)
    changes = _without_moved(_once(changes))
    if region_of_interest is not None:
        centres = [
            _corners(change.box).mean(axis=0).clip(0, np.subtract(size[::-1], 1)).astype(int) for change in changes
        ]
        changes = [change for change, (x, y) in zip(changes, centres, strict=True) if region_of_interest[y, x]]
    changes.sort(key=lambda change: change.box[1])
    return [_claim(change, warp, before.shape[:2], size) for change in changes]


def _claim(change: WordChange, warp: np.ndarray, size_before: tuple[int, int], size: tuple[int, int]) -> Claim:
    kind: ClaimKind = "changed" if change.before is None else "replaced"
    kind = "appeared" if change.before == "" else "gone" if change.after == "" else kind
    return Claim(
        kind, "words", max(1, *(len((words or "").split()) for words in (change.before, change.after))),
        where_of(change.box, size),
        None if kind == "appeared" else _pixels(warped_box(change.box, warp, size_before), size_before),
        None if kind == "gone" else _pixels(change.box, size),
        round(change.confidence, 4), _shortened(change.before), _shortened(change.after),
    )  # fmt: skip


def _shortened(words: str | None) -> str | None:
    parts = (words or "").split()
    return " ".join(parts[:_QUOTED]) + " ..." * (len(parts) > _QUOTED) or None


def _parts(before: np.ndarray, after: np.ndarray, warp: np.ndarray) -> list[Box]:
    """Boxes on the image after in which small windows differ from the image before, at the displacement, of a pixel, at
    which they agree best; those that differ most first."""
    second, scale = _reduced(after)
    first, scale_before = _reduced(before)
    scales = np.diag([*scale_before, 1.0]) @ warp @ np.diag([1 / scale[0], 1 / scale[1], 1.0])
    aligned, inside = warped_to(first, scales, second.shape)
    first, second = _contrast(aligned), _contrast(second)
    side = (_WINDOW, _WINDOW)
    energy = np.maximum(cv2.blur(first**2, side), cv2.blur(second**2, side))
    padded = cv2.copyMakeBorder(second, 1, 1, 1, 1, cv2.BORDER_REPLICATE)
    height, width = first.shape
    difference = np.full_like(first, np.inf)
    for y in range(3):
        for x in range(3):
            displaced = first - padded[y : y + height, x : x + width]
            np.minimum(difference, cv2.blur(displaced**2, side), out=difference)
    usual = float(np.median(difference[::4, ::4]))
    mask = (difference > _OTHER_WINDOW * energy + 4 * usual + _TRACE**2) & inside
    joined = cv2.dilate(mask.astype(np.uint8), np.ones((_GAP // 2 + 1, _GAP + 1), np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8)
    peaks = np.zeros(len(stats), np.float32)
    np.maximum.at(peaks, labels[mask], difference[mask])
    boxes = stats[np.argsort(-peaks[1:], kind="stable") + 1, :4].astype(float)
    boxes[:, 2:] += boxes[:, :2]
    boxes /= [*scale, *scale]
    # With as much of the surroundings as a word may extend to both sides.
    margins = np.maximum(_MARGIN, (boxes[:, 2:] - boxes[:, :2]).min(axis=1))[:, None] * [[-8, -0.5, 8, 0.5]]
    return [(float(left), float(top), float(right), float(bottom)) for left, top, right, bottom in boxes + margins]


def _reduced(image: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """The brightness, float32 in [0, 1], at the size of :data:`_SIDE`, and the scales of its width and height."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    scale = min(1.0, _SIDE / max(grey.shape))
    height, width = (max(2, round(scale * length)) for length in grey.shape)
    if scale < 1:
        grey = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    return grey.astype(np.float32) / 255, (grey.shape[1] / image.shape[1], grey.shape[0] / image.shape[0])


def _contrast(grey: np.ndarray) -> np.ndarray:
    """The brightness as a share of its local mean, whatever the light."""
    mean = cv2.blur(grey, (31, 31))
    return (grey - mean) / (mean + 0.1)


def _changes_in(before: np.ndarray, after: np.ndarray, warp: np.ndarray, box: Box, scale: float) -> list[WordChange]:
    left, top, right, bottom = box
    height, width = (max(16, round(scale * length)) for length in (bottom - top, right - left))
    to_after = np.array([[(right - left) / width, 0, left], [0, (bottom - top) / height, top], [0, 0, 1]])
    images = [
        cut_out(image, matrix, (height, width)) for image, matrix in ((before, warp @ to_after), (after, to_after))
    ]
    greys = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32) for image in images]

    def difference(*quads: np.ndarray, blur: float = 0.0) -> float:
        return max(difference_of_letters(greys[0], greys[1], quad, blur) for quad in quads)

    ends = 2.0, width - 2.0  # a word that is cut by the border of the part is not known
    first, second = (lines_on(image) for image in images)
    changes = []
    for pair in _positions(first, second):
        if difference(*pair[0], *pair[1]) <= _MISREAD:
            continue
        words, others = (
            [word for line in pair[at] or pair[1 - at] for word in words_on_line(image, line)]
            for at, image in enumerate(images)
        )
        detected = any(box_iou(_around([line]), _around([other])) > 0.5 for line in pair[0] for other in pair[1])
        change = _compared(words, others, detected, difference, ends)
        if change is not None:
            x, y = (np.array(change.box[at::2]) * to_after[at, at] + to_after[at, 2] for at in (0, 1))
            changes.append(change._replace(box=(float(x[0]), float(y[0]), float(x[1]), float(y[1]))))
    return changes


def _compared(
    first: list[Word],
    second: list[Word],
    detected: bool,
    difference: Callable[..., float],
    ends: tuple[float, float] = (-np.inf, np.inf),
) -> WordChange | None:
    """The words of one position, from the first to the last that differs.

    Args:
        detected: whether the same line was detected on both images.
        difference: of the letters in the quadrilaterals of words; none: they are the same, however read.
        ends: words beyond them, from left to right, are cut.
    """
    lines = first, second

    def same(word: Word, other: Word) -> bool:
        return word.key == other.key or difference(word.corners, other.corners) <= _MISREAD

    shorter = min(len(first), len(second))
    start = next((at for at in range(shorter) if not same(first[at], second[at])), shorter)
    end = next((at for at in range(shorter - start) if not same(first[-1 - at], second[-1 - at])), shorter - start)
    parts = [words[start : len(words) - end] for words in lines]
    quads = [word.corners for part in parts for word in part]
    keys = ["".join(filter(str.isalnum, "".join(word.key for word in part))) for part in parts]
    if not quads or keys[0] == keys[1]:
        return None
    letters = [sum(character.isalnum() for word in part for character in word.text) for part in parts]
    # A letter too few is more often misread than another one, and changes more pixels where it is not.
    if difference(*quads) <= _MISREAD if letters[0] == letters[1] else difference(*quads, blur=_BLURRED) <= _NO_LETTER:
        return None
    box = _around(quads)
    confidence = min(word.confidence for part in parts for word in part)
    if first and second:
        if min(letters) < _SHORTEST and max(map(len, lines)) <= _QUOTED:
            parts = list(lines)
        box = _around([word.corners for part in parts for word in part])
        if box[0] < ends[0] or box[2] > ends[1]:
            return None
        if confidence < _SURER and _may_be_same(keys):
            return None
        if confidence < _SURE:
            surest = max(float(np.mean([word.confidence for word in words])) for words in lines)
            return WordChange(None, None, box, surest) if detected and surest >= _SURE else None
    elif confidence < _SURE or max(letters) < _SHORTEST or detected or box[0] < ends[0] or box[2] > ends[1]:
        return None  # a texture, or letters on the other image that could not be read
    before, after = (quoted(word.text for word in part) for part in parts)
    return WordChange(before, after, box, confidence)


def _may_be_same(keys: Sequence[str]) -> bool:
    """Whether one of two keys may be the other one misread: most letters are the same, and all digits."""
    digits = [[character for character in key if character.isdigit()] for key in keys]
    return digits[0] == digits[1] and SequenceMatcher(None, keys[0], keys[1]).ratio() >= _ALIKE


def _once(changes: list[WordChange]) -> list[WordChange]:
    """Changes without those that were read in another part too, there shorter."""
    chosen: list[WordChange] = []
    for change in sorted(changes, key=lambda change: (change.before is None, change.box[0] - change.box[2])):
        if not any(box_cover(change.box, other.box) > _SHARED for other in chosen):
            chosen.append(change)
    return chosen


def _without_moved(changes: list[WordChange]) -> list[WordChange]:
    """Words that are at another position afterwards are neither gone nor new; their line may be cut on one image."""
    words = [[change.before or "", change.after or ""] for change in changes]
    for old, new in permutations(words, 2):
        if old[0] and new[1] and _cut_alike(old[0], new[1]):
            old[0] = new[1] = ""
    kept = []
    for change, left in zip(changes, words, strict=True):
        before, after = (said and rest for said, rest in zip((change.before, change.after), left, strict=True))
        if before != "" or after != "":
            kept.append(change._replace(before=before, after=after))
    return kept


def _cut_alike(words: str, others: str) -> bool:
    """Whether words are others, or most of them but for letters at an end: no digits."""
    shorter, longer = sorted((word_key(words), word_key(others)), key=len)
    digits, other_digits = (sum(map(str.isdigit, text)) for text in (words, others))
    return shorter in longer and len(shorter) >= _UNCUT * len(longer) and digits == other_digits


def _positions(first: list[np.ndarray], second: list[np.ndarray]) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """The lines (4, 2) of both images by position: those that overlap are of one, each side from left to right."""
    lines = [(0, line) for line in first] + [(1, line) for line in second]
    groups: list[list[tuple[int, np.ndarray]]] = []
    for line in lines:
        near = [group for group in groups if any(_one_row(line[1], other[1]) for other in group)]
        groups = [group for group in groups if not any(group is other for other in near)]
        groups.append([line, *(member for group in near for member in group)])
    sides = [[[line for side, line in group if side == at] for at in (0, 1)] for group in groups]
    for side_lines in (row for pair in sides for row in pair):
        side_lines.sort(key=lambda quad: float(quad[:, 0].min()))
    return [(pair[0], pair[1]) for pair in sides]


def _one_row(line: np.ndarray, other: np.ndarray) -> bool:
    """Whether two lines of about the same height overlap, by half of the height of the lower one."""
    (left, top), (right, bottom) = np.maximum(line.min(0), other.min(0)), np.minimum(line.max(0), other.max(0))
    lower, higher = sorted(np.ptp(quad[:, 1]) for quad in (line, other))
    return bool(right > left and bottom - top > 0.5 * lower and higher < 1.6 * lower)


def _inside(box: Box, size: tuple[int, int]) -> Box:
    return max(0.0, box[0]), max(0.0, box[1]), min(float(size[1]), box[2]), min(float(size[0]), box[3])


def _joined(boxes: list[Box]) -> list[Box]:
    """Boxes in their order, of which two are one where that is no larger than both, and is not reduced."""
    joined: list[Box] = []
    for box in boxes:
        at = len(joined)
        for number, other in enumerate(joined):
            union = _around([_corners(box), _corners(other)])
            if box_area(union) <= min(box_area(box) + box_area(other), _PIXELS):
                box, at = union, number
                break
        joined[at : at + 1] = [box]
    return joined


def _corners(box: Box) -> np.ndarray:
    return np.array(box, float).reshape(2, 2)


def _around(points: Sequence[np.ndarray]) -> Box:
    """The box around all points (N, 2)."""
    both = np.concatenate(points)
    (left, top), (right, bottom) = both.min(axis=0), both.max(axis=0)
    return float(left), float(top), float(right), float(bottom)


def _pixels(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    left, top, right, bottom = _inside(box, size)
    return int(left), int(top), int(np.ceil(right)), int(np.ceil(bottom))


def difference_of_letters(before: np.ndarray, after: np.ndarray, quad: np.ndarray, blur: float = 0.0) -> float:
    """The difference of two images (float32, (H, W)) in the window, as large as a letter, of a quadrilateral where they
    differ most: a share of the contrast, whatever their light, at the displacement at which the two agree best, with a
    blur of both."""
    first, second = (flattened(image, quad, _LETTER, _SHIFT) for image in (before, after))
    if blur:
        first, second = (cv2.GaussianBlur(patch, (0, 0), blur) for patch in (first, second))
    first = first[_SHIFT:-_SHIFT, _SHIFT:-_SHIFT]
    height, width = first.shape
    contrast = max(first.std(), second.std(), 1.0)
    best = np.inf
    for y, x in product(range(2 * _SHIFT + 1), repeat=2):
        pair = [
            (patch - patch.mean()) / max(patch.std(), contrast / 3)
            for patch in (first, second[y : y + height, x : x + width])
        ]
        windows = cv2.blur((pair[0] - pair[1]) ** 2 / 2, (_LETTER // 2, _LETTER))
        middle = windows[_LETTER // 2, _LETTER // 4 : max(width - _LETTER // 4, _LETTER // 4) + 1]
        best = min(best, float(middle.max()))
    return best
