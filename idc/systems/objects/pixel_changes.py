"""Which pixels of two screens differ, their clusters, and what moved without a change of any pixel.

Anti-aliasing of the same edge and the noise of compression do not count. Moved content is recognised by patches that
occur once in what differs of either image, as patience diff does with lines.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    bounds_of,
    box_area,
    boxes_overlap,
    shifted_box,
    slices_of,
)
from idc.systems.objects.recolouring import codes_of
from idc.systems.objects.wording import sampled

_JOINED = (14, 9)
"""Different pixels at most this far apart, across and down, are of one cluster: letters of a line, lines of a text."""
_LETTERS = (4, 2)
"""The same for parts that are compared with what moved: rows may move by different distances, after rounding."""
_FAINT = 8
"""Differences of at most this many levels in 255 count only where they are even: a plain colour that changed a little.
Rounding and compression are not even."""
_STRONG = 128
"""Differences of more levels are none of anti-aliasing of the same edge."""
_EVEN = 0.9
"""Length of a cluster's mean difference, as a share of the mean length, from which it is even."""
_NOISE, _NOISY, _SPREAD = 8, 0.14, 0.01
"""A pair is lossy if at least this share of the image differs, and of its different pixels this share by at most so
many levels and otherwise than the next pixel. Of JPEG copies of pages 0.16 and more do, of pages with as large a change
0.1 and less."""
_UNEVEN = 1
"""Levels by which half of the noise differs from its surroundings at least."""
_MOST_MOVED, _GROUNDS, _ON_GROUND = 0.25, 6, 0.03
"""Where no larger share of an image differs, the last share of the noise must be on one of so many colours, its most
frequent ones: of JPEG copies of pages 0.04 and more is, of photographs in pages that moved 0.03 and less, and
compression changes more of a photograph."""
_LOSSY = 80
"""Levels of brightness by which compressed letters may differ."""
_SMALLEST_EVEN = 16
"""Pixels of the smallest such area."""
_PATCH = (12, 8)
"""Width and height of the patches by which moved content is recognised: two small letters."""
_MOST_COPIES = 8
"""Number of equal patches of an image up to which their order tells them apart: the same word in several cells."""
_MIN_VOTES = 24
"""Patches that must have moved by the same distance."""
_MOST_MOVES = 12
"""Distances by which content may move."""
_PART = 0.4
"""Share of a cluster's pixels, not moved, above which what moved in it is a part of the change."""
_SAME = 0.6
"""Share of the pixels of a letter or a thing that must be equal where it is said to have moved."""
_FOLLOWS, _TRACE, _MOST_FOLLOWING = 0.95, 32, 300
"""The same of what is left near a move, up to so many pixels from what it covers or uncovers, and how many parts."""


class Move(NamedTuple):
    """Content of a box before that is in a box after; ``by`` is the distance right and down."""

    by: tuple[int, int]
    before: PixelBox
    after: PixelBox


def clusters_of(mask: np.ndarray, reach: tuple[int, int] = _JOINED) -> tuple[np.ndarray, list[PixelBox]]:
    """The clusters of a mask's pixels, joined where they are at most ``reach`` apart across and down, also by way of
    others: labels (H, W), 0 outside, and the box of each label from 1."""
    # Rectangles of this size, the lower right corner on a pixel, touch (diagonals included) up to this distance. The
    # border has room for those of pixels at the edge, so that every component is its pixels' box and a rectangle.
    across, down = reach[0] - 1, reach[1] - 1
    padded = cv2.copyMakeBorder(mask.astype(np.uint8), down, 0, across, 0, cv2.BORDER_CONSTANT)
    grown = cv2.dilate(padded, np.ones(reach[::-1], np.uint8), anchor=(0, 0))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(grown, connectivity=8)
    left, top, width, height = stats[1:, :4].T
    boxes = np.stack([left, top, left + width - across, top + height - down], axis=1).tolist()
    return labels[down:, across:] * mask, [(a, b, c, d) for a, b, c, d in boxes]


def anti_aliased(image: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether each pixel of an image is probably one of anti-aliasing, bool (H, W): by the rule of pixelmatch (Mapbox,
    ISC licence; Vysniauskas 2009). At most two of its neighbours are as bright, others are brighter and darker, and the
    brightest or the darkest one has three neighbours of its own colour, in both images."""
    light = image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    plain = _has_siblings(image) & _has_siblings(other)
    equal = np.zeros(light.shape, np.uint8)
    lowest, highest = np.full_like(light, np.inf), np.full_like(light, -np.inf)
    dark, bright = np.zeros_like(plain), np.zeros_like(plain)
    for neighbour, is_plain in zip(_neighbours(light), _neighbours(plain), strict=True):
        equal += neighbour == light
        np.copyto(dark, is_plain, where=neighbour < lowest)
        np.copyto(bright, is_plain, where=neighbour > highest)
        np.minimum(lowest, neighbour, out=lowest)
        np.maximum(highest, neighbour, out=highest)
    return np.asarray((equal <= 2) & (lowest < light) & (highest > light) & (dark | bright))


def _has_siblings(image: np.ndarray) -> np.ndarray:
    code = codes_of(image)
    equal = np.zeros(code.shape, np.uint8)
    for neighbour in _neighbours(code):
        equal += neighbour == code
    return equal > 2


def _neighbours(values: np.ndarray) -> Iterator[np.ndarray]:
    """The eight neighbours (H, W), one after the other; the edge's pixels are repeated beyond it."""
    padded = np.pad(values, 1, mode="edge")
    height, width = values.shape
    for y, x in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2)):
        yield padded[y : y + height, x : x + width]


def largest_channel(values: np.ndarray) -> np.ndarray:
    """The largest channel of each pixel: reductions over an axis of three are slow."""
    return np.maximum(np.maximum(values[..., 0], values[..., 1]), values[..., 2])


def is_lossy(before: np.ndarray, after: np.ndarray, pixels: int) -> bool:
    """Whether most pixels that differ do so as compression leaves them: faintly, and neighbours by another amount; of
    parts of images of this number of pixels."""
    change = after.astype(np.int16) - before
    distance = largest_channel(np.abs(change))
    step = largest_channel(np.abs(np.diff(change, axis=1, append=change[:, -1:])))
    different = distance > 0
    noisy = different & (distance <= _NOISE) & (step > 1)
    if different.mean() < _SPREAD or noisy.sum() < _NOISY * different.sum():
        return False
    uneven = np.abs(change - cv2.blur(change, (3, 3)))[noisy]
    if np.median(uneven) < _UNEVEN:  # a shadow
        return False
    on_grounds = [_on_grounds(image, noisy) for image in (before, after)]
    return different.sum() > _MOST_MOVED * pixels or float(np.mean(on_grounds)) >= _ON_GROUND


def _on_grounds(image: np.ndarray, mask: np.ndarray) -> float:
    """Share of a mask's pixels that have one of the image's most frequent colours."""
    codes = codes_of(image)
    values, counts = np.unique(sampled(codes.ravel()), return_counts=True)
    return float(np.isin(codes[mask], values[np.argsort(-counts)][:_GROUNDS]).mean())


def different_pixels(before: np.ndarray, after: np.ndarray, pixels: int) -> np.ndarray:
    """The pixels, bool (H, W), of parts of images of this number of pixels, that differ by more than anti-aliasing and
    noise: those of the clusters that differ faintly and evenly, or have a pixel that differs clearly and is none of
    anti-aliasing."""
    distance = largest_channel(cv2.absdiff(before, after))
    mask = distance > 0
    if not mask.any():
        return mask
    lossy = is_lossy(before, after, pixels)
    window = slices_of(around(bounds_of(mask), 3, mask.shape))
    first, second, mask, distance = before[window], after[window], mask[window], distance[window]
    if lossy:  # colours are compressed more than brightness
        distance = cv2.absdiff(*(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (first, second)))
    clear = mask & (distance > (_LOSSY if lossy else _FAINT))
    clear &= ~(anti_aliased(first, second) | anti_aliased(second, first)) | (distance > _STRONG)
    labels, boxes = clusters_of(mask)
    inside, count = labels[mask], len(boxes) + 1
    counts = np.bincount(labels[clear], minlength=count) > 0
    if not lossy:
        change = second[mask].astype(float) - first[mask]
        sums = [np.bincount(inside, channel, count) for channel in change.T]
        lengths = np.bincount(inside, np.linalg.norm(change, axis=1), count)
        faint = np.bincount(inside, distance[mask], count) <= _FAINT * np.bincount(inside, minlength=count)
        large = np.bincount(inside, minlength=count) >= _SMALLEST_EVEN
        counts |= (np.linalg.norm(sums, axis=0) >= _EVEN * lengths) & faint & large
    counts[0] = False
    result = np.zeros(before.shape[:2], bool)
    result[window] = mask & counts[labels]
    return result


def unmoved_pixels(
    before: np.ndarray, after: np.ndarray, different: np.ndarray
) -> tuple[np.ndarray, list[Move], tuple[np.ndarray, np.ndarray]]:
    """The different pixels that moves do not account for, bool (H, W), the moves, the largest first, and what they
    account for on the image before and after, bool (H, W).

    Left are those at which the image after has detail that came from nowhere, or that of the image before went nowhere;
    plain ground is covered and uncovered by what moves. Within a cluster most of which is left nothing moved: a letter
    that is in the old and in the new word did not.
    """
    codes, details = ([of(image) for image in (before, after)] for of in (codes_of, _detail))
    labels, boxes = clusters_of(different, _LETTERS)
    explained = [np.zeros_like(different) for _ in codes]
    moves: list[tuple[Move, int]] = []
    shares: list[tuple[tuple[int, int], int, PixelBox, np.ndarray]] = []
    for dx, dy in _distances(before, after, different):
        for side, (x, y) in enumerate(((dx, dy), (-dx, -dy))):
            shown = _shown_at(codes[side], codes[1 - side], (x, y))
            new = different & details[side] & ~explained[side]
            pixels, equal = (np.bincount(labels[mask], minlength=len(boxes) + 1) for mask in (new, new & shown))
            for number in np.flatnonzero((equal >= _SAME * pixels) & (pixels > 0)):
                window = slices_of(boxes[number - 1])
                inside = bounds_of((new & shown)[window] & (labels[window] == number))
                box = shifted_box(inside, *boxes[number - 1][:2])
                explained[side][slices_of(box)] |= shown[slices_of(box)]
                shares.append(((dx, dy), side, box, shown[slices_of(box)]))
                other = shifted_box(box, x, y)
                moves.append((Move((dx, dy), *((other, box) if side else (box, other))), int(number)))
    went, came = explained
    left = different & ((~came & ~went) | (~came & details[1]) | (~went & details[0]))
    wholes, whole_boxes = clusters_of(different)
    total, unmoved = (np.bincount(wholes[mask], minlength=len(whole_boxes) + 1) for mask in (different, left))
    changed = unmoved > _PART * total
    left |= changed[wholes]
    parts = np.zeros(len(boxes) + 1, bool)
    parts[labels[different]] = changed[wholes[different]]
    kept = [move for move, number in moves if not parts[number]]
    accounted = np.zeros_like(different), np.zeros_like(different)
    by_which = {move.by for move in kept}
    for by, side, box, shown in shares:
        if by in by_which:  # a letter in two words moved by a distance that is no other part's
            accounted[side][slices_of(box)] |= shown
    together = _together(kept)
    return left & ~_following((before, after), left, together), together, accounted


def _following(images: tuple[np.ndarray, np.ndarray], left: np.ndarray, moves: Sequence[Move]) -> np.ndarray:
    """Clusters of the pixels that are left, bool (H, W), near a move, that show nothing else than what it brings along
    on both images: their content, plain ground too, is at its distance on the other one but for the rounding of another
    rendering."""
    labels, boxes = clusters_of(left, _LETTERS)
    result = np.zeros_like(left)
    for number, box in sorted(enumerate(boxes, 1), key=lambda entry: -box_area(entry[1]))[:_MOST_FOLLOWING]:
        mask = labels[slices_of(box)] == number
        sides, outside = np.zeros((2, 2, *mask.shape), bool)
        for by, before, after in moves:
            reach = max(map(abs, by)) + _TRACE
            if boxes_overlap(around(around_all([before, after]), reach, left.shape), box):
                for side, sign in enumerate((1, -1)):
                    same, left_it = _shows(images[side], images[1 - side], box, (sign * by[0], sign * by[1]))
                    sides[side] |= same
                    outside[side] |= left_it
        shown, gone = ((each & mask).sum(axis=(1, 2)) for each in (sides, outside & ~sides))
        if min(shown + gone) >= _FOLLOWS * mask.sum():
            result[slices_of(box)] |= mask
    return result


def _shows(image: np.ndarray, other: np.ndarray, box: PixelBox, by: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Where the pixels of a box, bool (h, w), are at this distance on the other image, faint differences aside, and
    where that would be below it or on its right, pushed out of the picture."""
    (height, width), (dx, dy) = other.shape[:2], by
    left, top, right, bottom = box
    result, outside = np.zeros((2, bottom - top, right - left), bool)
    outside[max(0, height - dy - top) :] = True
    outside[:, max(0, width - dx - left) :] = True
    x, y = slice(max(left, -dx), min(right, width - dx)), slice(max(top, -dy), min(bottom, height - dy))
    if x.start < x.stop and y.start < y.stop:
        there = other[y.start + dy : y.stop + dy, x.start + dx : x.stop + dx]
        same = largest_channel(cv2.absdiff(image[y, x], there)) <= _FAINT
        result[y.start - top : y.stop - top, x.start - left : x.stop - left] = same
    return result, outside


def _equal_patches(before: np.ndarray, after: np.ndarray, different: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper left corners x, y (N, 2) after, and before, of patches that are equal, have detail and a different
    pixel, and occur as often in both images, a few times: the first one is then the first one, as in reading."""
    sides = []
    for image in (after, before):
        kernel = np.ones(_PATCH[::-1], np.uint8)
        detailed, near = (
            cv2.dilate(mask.astype(np.uint8), kernel, anchor=(0, 0)) > 0 for mask in (_detail(image), different)
        )
        y, x = np.nonzero((detailed & near)[: 1 - _PATCH[1], : 1 - _PATCH[0]])
        codes, numbers, counts = np.unique(_patch_keys(image)[y, x], return_inverse=True, return_counts=True)
        order = np.argsort(numbers, kind="stable")
        sides.append((codes, counts, np.stack([x, y], axis=1)[order], np.cumsum(counts) - counts))
    _, here, there = np.intersect1d(sides[0][0], sides[1][0], assume_unique=True, return_indices=True)
    (_, counts, corners, starts), (_, other_counts, others, other_starts) = sides
    as_often = (counts[here] == other_counts[there]) & (counts[here] <= _MOST_COPIES)
    repeats = counts[here[as_often]]
    ranks = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    firsts = (np.repeat(start[at[as_often]], repeats) for start, at in ((starts, here), (other_starts, there)))
    return tuple(points[first + ranks] for points, first in zip((corners, others), firsts, strict=True))  # type: ignore[return-value]


def _patch_keys(image: np.ndarray) -> np.ndarray:
    """A number for the patch at the right and below each pixel: the same for equal ones, and by chance alone for
    others. Sums of products of integers below 2 ** 53, which float64 has exactly."""
    rng = np.random.default_rng(0)
    colours = (codes_of(image) * np.uint32(0x9E3779B1) >> np.uint32(12)).astype(np.float64)
    across, down = (rng.integers(1 << 12, size=length).astype(np.float64) for length in _PATCH)
    return cv2.sepFilter2D(colours, cv2.CV_64F, across, down, anchor=(0, 0))


def _distances(before: np.ndarray, after: np.ndarray, different: np.ndarray) -> list[tuple[int, int]]:
    """The distances, right and down, by which most content moved; the most frequent first."""
    corners, others = _equal_patches(before, after, different)
    distances, votes = np.unique(corners - others, axis=0, return_counts=True)
    frequent = [at for at in np.argsort(-votes, kind="stable")[:_MOST_MOVES] if votes[at] >= _MIN_VOTES]
    return [(int(x), int(y)) for x, y in distances[frequent]]


def _shown_at(codes: np.ndarray, others: np.ndarray, by: tuple[int, int]) -> np.ndarray:
    """Where an image shows what the other one shows at this distance to the right and below, bool (H, W); by the codes
    of both."""
    height, width = codes.shape
    dx, dy = by
    result = np.zeros((height, width), bool)
    if abs(dx) < width and abs(dy) < height:
        here, there = (
            np.s_[max(-y, 0) : height - max(y, 0), max(-x, 0) : width - max(x, 0)] for x, y in ((dx, dy), (-dx, -dy))
        )
        result[here] = codes[here] == others[there]
    return result


def _together(moves: Iterable[Move]) -> list[Move]:
    """One move for all by the same distance, or by a pixel more or less, as rounding has it; the largest first."""
    result: list[Move] = []
    for move in sorted(moves, key=lambda move: -box_area(move.after)):
        near = (at for at, other in enumerate(result) if max(abs(np.subtract(other.by, move.by))) <= 1)
        if (at := next(near, None)) is None:
            result.append(move)
        else:
            boxes = [around_all([getattr(each, side) for each in (result[at], move)]) for side in ("before", "after")]
            result[at] = Move(result[at].by, *boxes)
    return result


def _detail(image: np.ndarray) -> np.ndarray:
    """Where a pixel differs from a neighbour."""
    kernel = np.ones((3, 3), np.uint8)
    return codes_of(cv2.dilate(image, kernel)) != codes_of(cv2.erode(image, kernel))
