"""Words on two images that became others, appeared, or are gone. Read by rapidocr, where it is installed (the extra
``text``; its models are inside its wheel).

The reader is the slowest part of a comparison: only parts that differ are read, at the image's own size or enlarged.
There lines of text are detected on both images, those whose letters differ are read on both, and the readings of one
position are compared."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Claim
from idc.cores import usable_cores
from idc.systems.objects.alignment import warped_to
from idc.systems.objects.wording import where_of

Box = tuple[float, float, float, float]

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
_BUDGET = 1_000_000
"""Number of pixels that are read on an image, of the smallest parts first: signs are smaller than what else moves."""
_ENLARGED = 3.0
"""Largest enlargement of a part: letters of 9 pixels are read at 27."""
_SHORT_SIDE = 256
"""Parts with at least this short side are not enlarged."""
_MARGIN = 16
"""Smallest margin around a part, where its line may continue."""
_LINE = 48
"""Height at which the reader takes a line."""
_READ = 0.6
"""Smallest confidence of what was read at all, ..."""
_SURE = 0.9
"""... and of words that are quoted."""
_SHORTEST = 3
"""Smallest number of letters and digits that appear, are gone, or are quoted without the words beside them."""
_QUOTED = 6
"""Number of words that a claim quotes."""
_ALIKE = str.maketrans("01i25|", "ollzsl")
"""Characters that the reader takes for others of the same shape (after lower case)."""
_LETTER = 24
"""Height at which the pixels of a word are compared."""
_SHIFT = 3
"""Displacements of a word that do not count, at that height."""
_OTHER_LETTER = 0.3
"""Share of a word's contrast from which a window as large as a letter differs: equal words in noise, blur and
compression stay below it, other letters do not."""


class Word(NamedTuple):
    """A word that was read; ``box`` is (left, top, right, bottom) in pixels, ``confidence`` in [0, 1]."""

    text: str
    box: Box
    confidence: float = 1.0

    @property
    def key(self) -> str:
        """Equal for two readings of the same word."""
        return _key(self.text)


class Change(NamedTuple):
    """Words of one position before and after, empty where there are none; None: of both, what they were and are is not
    sure. ``box`` is in pixels of the image after."""

    before: str | None
    after: str | None
    box: Box
    confidence: float


def reads_text() -> bool:
    """Whether the extra is installed."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def word_claims(
    before: np.ndarray,
    after: np.ndarray,
    warp: np.ndarray | None = None,
    counted: np.ndarray | None = None,
    where: Sequence[Box] | None = None,
) -> list[Claim]:
    """The words that became others at their position, appeared, or are gone, from top to bottom.

    Args:
        before, after: uint8 RGB (H, W, 3), of any sizes, of the same view.
        warp: homography from pixels of the image after to those of the image before; by default none moved.
        counted: bool (H, W) over the image after; words whose centre is not counted are left out.
        where: boxes on the image after; words that touch them are read. By default all parts that differ are.
    """
    warp = np.eye(3) if warp is None else warp
    size = after.shape[:2]
    boxes = _parts(before, after, warp) if where is None else [_with_line(box) for box in where]
    changes, budget = [], _BUDGET if where is None else np.inf
    for box in sorted(_joined([_inside(box, size) for box in boxes]), key=_area):
        limit = _PIXELS if where is None else _BUDGET
        scale = min(_ENLARGED, max(1.0, _SHORT_SIDE / _short_side(box)), (limit / _area(box)) ** 0.5)
        budget -= scale**2 * _area(box)
        if budget < 0:
            break
        changes += _changes_in(before, after, warp, box, scale)
    changes = [
        change
        for change in _without_moved(changes)
        if (where is None or any(_touch(change.box, box) for box in where))
        and (counted is None or counted[_centre(change.box, size)])
    ]
    return [
        _claim(change, warp, before.shape[:2], size) for change in sorted(changes, key=lambda change: change.box[1])
    ]


def text_sentence(before: np.ndarray, after: np.ndarray, warp: np.ndarray | None = None) -> str:
    """The clauses of all claims; empty if there are none."""
    clauses = [words_clause(claim) for claim in word_claims(before, after, warp)]
    return f"{'; '.join(clauses).capitalize()}." if clauses else ""


def words_clause(claim: Claim) -> str:
    """A claim on words as a clause, without capital and stop."""
    if claim.before is None and claim.after is None:
        return f"the words {claim.where} changed"
    several = any(" " in words for words in (claim.before, claim.after) if words)
    words = " became ".join(f'"{words}"' for words in (claim.before, claim.after) if words)
    subject = f"the word{'s' if several else ''} {words}"
    if claim.kind == "replaced":
        return f"{subject} {claim.where}"
    verb = "are" if several else "is"
    return f"{subject} {verb} {'now' if claim.kind == 'appeared' else 'no longer'} {claim.where}"


def _claim(change: Change, warp: np.ndarray, size_before: tuple[int, int], size: tuple[int, int]) -> Claim:
    corners = np.array(change.box, float).reshape(2, 2)[[[0, 0], [1, 0], [1, 1], [0, 1]], [[0, 1]] * 4]
    moved = cv2.perspectiveTransform(corners[None], np.asarray(warp, float))[0]
    boxes = [_pixels(box, shape) for box, shape in ((_around([moved]), size_before), (change.box, size))]
    kind = "changed" if change.before is None else "replaced"
    if change.before == "":
        kind, boxes[0] = "appeared", None
    elif change.after == "":
        kind, boxes[1] = "gone", None
    count = max(1, *(len((words or "").split()) for words in (change.before, change.after)))
    return Claim(
        kind=kind,
        object="words",
        count=count,
        where=where_of(change.box, size),
        box_before=boxes[0],
        box_after=boxes[1],
        confidence=round(change.confidence, 4),
        before=_shortened(change.before),
        after=_shortened(change.after),
    )


def _shortened(words: str | None) -> str | None:
    if not words:
        return None
    parts = words.split()
    return " ".join(parts[:_QUOTED]) + (" ..." if len(parts) > _QUOTED else "")


def _parts(before: np.ndarray, after: np.ndarray, warp: np.ndarray) -> list[Box]:
    """Boxes on the image after in which small windows differ from the image before, at the displacement, of a pixel, at
    which they agree best."""
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
    mask = (difference > 2 * _OTHER_LETTER * energy / 2 + 4 * usual + _TRACE**2) & inside
    joined = cv2.dilate(mask.astype(np.uint8), np.ones((_GAP // 2 + 1, _GAP + 1), np.uint8))
    boxes = cv2.connectedComponentsWithStats(joined, connectivity=8)[2][1:, :4].astype(float)
    return [
        _with_margin(
            (x / scale[0], y / scale[1], (x + w) / scale[0], (y + h) / scale[1]), 0.25 * h / scale[1] + _MARGIN
        )
        for x, y, w, h in boxes
    ]


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


def _changes_in(before: np.ndarray, after: np.ndarray, warp: np.ndarray, box: Box, scale: float) -> list[Change]:
    """The changes inside a part, which is read at a scale."""
    left, top, right, bottom = box
    height, width = (max(16, round(scale * length)) for length in (bottom - top, right - left))
    to_after = np.array([[(right - left) / width, 0, left], [0, (bottom - top) / height, top], [0, 0, 1]])
    images = [_cut(image, matrix, (height, width)) for image, matrix in ((before, warp @ to_after), (after, to_after))]
    greys = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32) for image in images]
    first, second = (_lines(image) for image in images)
    changes = []
    for pair in _positions(first, second):
        if not _differ(greys, _around([line for lines in pair for line in lines])):
            continue
        words = [
            [word for line in lines or others for word in _read(image, line)]
            for image, lines, others in zip(images, pair, pair[::-1], strict=True)
        ]
        change = _compared(*words, tuple(map(bool, pair)), lambda box: _differ(greys, box))
        if change is not None:
            x, y = (np.array(change.box[at::2]) * to_after[at, at] + to_after[at, 2] for at in (0, 1))
            changes.append(change._replace(box=(float(x[0]), float(y[0]), float(x[1]), float(y[1]))))
    return changes


def _compared(
    first: list[Word], second: list[Word], detected: tuple[bool, bool], differ: Callable[[Box], bool]
) -> Change | None:
    """The words of one position, from the first to the last that differs.

    Args:
        detected: whether a line was detected there before, and after.
        differ: whether pixels in a box do; words of which they do not are the same, however they are read.
    """
    all_words = first, second

    def same(word: Word, other: Word) -> bool:
        return word.key == other.key or not differ(_around([_corners(word.box), _corners(other.box)]))

    shorter = min(len(first), len(second))
    start = next((at for at in range(shorter) if not same(first[at], second[at])), shorter)
    end = next((at for at in range(shorter - start) if not same(first[-1 - at], second[-1 - at])), shorter - start)
    parts = [words[start : len(words) - end] for words in all_words]
    if not any(parts):
        return None
    box = _around([_corners(word.box) for part in parts for word in part])
    if not differ(box):
        return None
    confidence = min(word.confidence for part in parts for word in part)
    counts = [sum(character.isalnum() for word in part for character in word.text) for part in parts]
    if first and second:
        if max(counts) < 1:
            return None
        if min(counts) < _SHORTEST and max(map(len, all_words)) <= _QUOTED:
            parts = list(all_words)
        if confidence < _SURE:
            surest = max(float(np.mean([word.confidence for word in words])) for words in all_words)
            return Change(None, None, box, surest) if all(detected) and surest >= _SURE else None
    elif confidence < _SURE or max(counts) < _SHORTEST or all(detected):
        return None  # a texture, or letters on the other image that could not be read
    before, after = (" ".join(word.text for word in part) for part in parts)
    return Change(before, after, box, confidence)


def _without_moved(changes: list[Change]) -> list[Change]:
    """Words that are at another position afterwards are neither gone nor new."""
    befores, afters = (Counter(_key(change[at]) for change in changes if change[at]) for at in (0, 1))
    moved = befores & afters
    left = []
    for change in changes:
        before, after = ("" if words and moved[_key(words)] else words for words in change[:2])
        if before != "" or after != "":
            left.append(change._replace(before=before, after=after))
    return left


def _positions(first: list[np.ndarray], second: list[np.ndarray]) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """The lines (4, 2) of both images by position: those that overlap are of one, each side from left to right."""
    lines = [(0, line) for line in first] + [(1, line) for line in second]
    groups: list[list[tuple[int, np.ndarray]]] = []
    for line in lines:
        near = [group for group in groups if any(_one_row(line[1], other[1]) for other in group)]
        groups = [group for group in groups if not any(group is other for other in near)]
        groups.append([line, *(member for group in near for member in group)])
    return [
        tuple(sorted((line for side, line in group if side == at), key=lambda line: line[:, 0].min()) for at in (0, 1))
        for group in groups
    ]


def _one_row(line: np.ndarray, other: np.ndarray) -> bool:
    """Whether two lines overlap, by half of the height of the lower one."""
    (left, top), (right, bottom) = np.maximum(line.min(0), other.min(0)), np.minimum(line.max(0), other.max(0))
    return bool(right > left and bottom - top > 0.5 * min(np.ptp(line[:, 1]), np.ptp(other[:, 1])))


def _cut(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
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
    reduction = max(np.linalg.norm(bounds[1] - bounds[0]) / width, np.linalg.norm(bounds[3] - bounds[0]) / height)
    if reduction > 1.5:
        part = cv2.GaussianBlur(part, (0, 0), reduction / 3)  # a smaller part has not the detail of the image
    moved = np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1.0]]) @ matrix
    flags = (cv2.INTER_CUBIC if reduction < 1 else cv2.INTER_LINEAR) | cv2.WARP_INVERSE_MAP
    return cv2.warpPerspective(part, moved, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _lines(image: np.ndarray) -> list[np.ndarray]:
    """Lines of text, their corners (4, 2) from the top left clockwise."""
    result = _reader()(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), use_det=True, use_cls=False, use_rec=False)
    return [] if result.boxes is None else [np.asarray(box, np.float32) for box in result.boxes]


def _read(image: np.ndarray, line: np.ndarray) -> list[Word]:
    """The words of a line."""
    width, height = (max(np.linalg.norm(line[a] - line[b]), np.linalg.norm(line[c] - line[d]))
                     for a, b, c, d in ((0, 1, 3, 2), (0, 3, 1, 2)))  # fmt: skip
    shape = _LINE, max(_LINE // 2, round(_LINE * width / max(height, 1.0)))
    corners = np.array([[0, 0], [shape[1], 0], [shape[1], shape[0]], [0, shape[0]]], np.float32)
    patch = _cut(image, cv2.getPerspectiveTransform(corners, line), shape)
    result = _reader()(
        cv2.cvtColor(patch, cv2.COLOR_RGB2BGR), use_det=False, use_cls=False, use_rec=True, return_word_box=True
    )
    text, info = result.txts[0], result.word_results[0]
    if not text or result.scores[0] < _READ:
        return []
    columns = iter(column for word in info.word_cols for column in word)
    at = [None if character.isspace() else next(columns) for character in text]
    words, start = [], 0
    for end in [*(number for number, column in enumerate(at) if column is None), len(text)]:
        part = text[start:end]
        if any(map(str.isalnum, part)):
            # Half a column wider than the centres of the first and the last character.
            ends = np.array([at[start] - 0.5, at[end - 1] + 1.5]) / info.line_txt_len
            sides = [line[0] + (line[1] - line[0]) * end_[None] for end_ in ends[:, None]]
            lower = [line[3] + (line[2] - line[3]) * end_[None] for end_ in ends[:, None]]
            confidence = float(np.mean(info.confs[start:end]))
            words.append(Word(part, _around([np.concatenate([*sides, *lower])]), confidence))
        start = end + 1
    return words


@lru_cache(maxsize=1)
def _reader() -> Any:
    """The reader, loaded once: half a second."""
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "EngineConfig.onnxruntime.intra_op_num_threads": usable_cores(),
            "Det.limit_side_len": 32,  # lines are detected at the size that parts are cut at
        }
    )


def _differ(greys: Sequence[np.ndarray], box: Box) -> bool:
    """Whether two images have other letters in a box, whatever their light and sharpness: a window of a letter's size
    differs, at the displacement at which the two agree best."""
    return difference_of_words(*greys, box) > _OTHER_LETTER


def difference_of_words(before: np.ndarray, after: np.ndarray, box: Box) -> float:
    """The largest difference of such a window, as a share of the contrast; of float32 (H, W)."""
    left, top, right, bottom = box
    scale = _LETTER / max(bottom - top, 1.0)
    height, width = _LETTER, max(_LETTER, round(scale * (right - left)))
    matrix = np.array([[1 / scale, 0, left - _SHIFT / scale], [0, 1 / scale, top - _SHIFT / scale], [0, 0, 1]])
    size = (height + 2 * _SHIFT, width + 2 * _SHIFT)
    first = _cut(before, matrix, size)[_SHIFT:-_SHIFT, _SHIFT:-_SHIFT]
    second = _cut(after, matrix, size)
    contrast = max(first.std(), second.std(), 1.0)
    best = np.inf
    for y in range(2 * _SHIFT + 1):
        for x in range(2 * _SHIFT + 1):
            pair = [
                (patch - patch.mean()) / max(patch.std(), contrast / 3)
                for patch in (first, second[y : y + height, x : x + width])
            ]
            windows = cv2.blur((pair[0] - pair[1]) ** 2 / 2, (_LETTER // 2, _LETTER))
            best = min(best, float(windows[_LETTER // 2, _LETTER // 4 : -_LETTER // 4 + 1].max()))
    return best


def _key(words: str) -> str:
    return words.lower().strip(string.punctuation).translate(_ALIKE)


def _with_line(box: Box) -> Box:
    """A box with as much of its line as a word may have on both sides."""
    left, top, right, bottom = box
    height = max(bottom - top, _MARGIN)
    return left - 8 * height, top - height, right + 8 * height, bottom + height


def _with_margin(box: Box, margin: float) -> Box:
    return box[0] - margin, box[1] - margin, box[2] + margin, box[3] + margin


def _inside(box: Box, size: tuple[int, int]) -> Box:
    return max(0.0, box[0]), max(0.0, box[1]), min(float(size[1]), box[2]), min(float(size[0]), box[3])


def _joined(boxes: list[Box]) -> list[Box]:
    """Boxes, of which those that touch are one."""
    boxes, joined = list(boxes), []
    while boxes:
        box = boxes.pop()
        near = next((other for other in joined if _touch(box, other)), None)
        if near is None:
            joined.append(box)
        else:
            joined.remove(near)
            boxes.append(_around([_corners(box), _corners(near)]))
    return joined


def _touch(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _area(box: Box) -> float:
    return max(1.0, (box[2] - box[0]) * (box[3] - box[1]))


def _short_side(box: Box) -> float:
    return max(1.0, min(box[2] - box[0], box[3] - box[1]))


def _centre(box: Box, size: tuple[int, int]) -> tuple[int, int]:
    """Row and column of a box's centre, on an image of a size."""
    row, column = int((box[1] + box[3]) / 2), int((box[0] + box[2]) / 2)
    return min(max(row, 0), size[0] - 1), min(max(column, 0), size[1] - 1)


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
