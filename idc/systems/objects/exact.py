"""Screens and documents: two images of one size most of whose pixels are equal. Nothing is aligned and no light is
evened out; every cluster of different pixels is a region, and content that moved is said to have moved.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Candidate, Claim, ClaimKind, Description, Region, equal_outside
from idc.systems.objects.geometry import PixelBox, around, around_all, box_area, boxes_overlap, shifted_box, slices_of
from idc.systems.objects.pixel_changes import (
    Move,
    clusters_of,
    codes_of,
    different_pixels,
    is_lossy,
    largest_channel,
    together,
    unmoved_pixels,
    whole_moves,
)
from idc.systems.objects.text import lines_on, words_of
from idc.systems.objects.wording import colour_of, quoted, sampled, where_of, with_article, words_clause

IDENTICAL = "The two images are identical."
ONLY_RENDERING = "No visible change: the images are the same up to anti-aliasing and compression."
_MOST_DIFFERENT = 0.5
"""Share of the pixels that may differ: a row that is added to a page of text moves everything below."""
_FLAT = 0.5
"""Share of the pixels of a drawn image that are equal to those to the right and below. Photographs of fixed cameras, of
which three quarters of the pixels can be equal (compressed films), have 0.02 to 0.4 then."""
_NAMED = 3
"""Number of claims that the sentence says."""
_MOST_LISTED = 200
"""Clusters that are described, the largest first; the others are counted."""
_SECONDS = 6.0
"""Computing time of a pair after which no further cluster is described."""
_MOST_READ = 12
"""Clusters in which words are read, the largest first ..."""
_MOST_LINES = 24
"""... and lines, of both images together: a fiftieth of a second each ..."""
_MOST_PIXELS = 1_200_000
"""... and pixels in which lines are looked for: a third of a second for a million."""
_SAMPLE = 20_000
"""Pixels from which a colour is taken at most."""
_LINE = 4
"""Largest thickness of a line or border, in pixels."""
_PLAIN = 0.6
"""Share of a cluster's pixels that must have a colour for it to be that of the cluster."""
_ROW = 8
"""Smallest shift, in pixels, that is one by an added or removed row."""
_ENLARGED = ((24, 3.0), (60, 2.0))
"""Parts up to this height, in pixels, are enlarged this much for reading."""
_MARGIN = 12
"""Pixels around what is read."""
_MOST_EXTENDED = (160, 24)
"""Pixels by which a cluster is extended at most, across and down, to the whole of a word of which a part differs."""
_FILLED = 0.7
"""Share of a box that differs where the ground behind its content does."""
_ALL = 0.9
"""Share of a cluster's pixels that must have the colour around it for nothing to be there."""
_SMALLEST_LETTER = 3
"""Pixels that a cluster has at least in either direction for words to be in it."""
_TRACE = 6
"""Pixels that a move may leave at its edges."""


class _Cluster(NamedTuple):
    """Different pixels near each other: their box, and their number among the labels (H, W) of all clusters."""

    box: PixelBox
    number: int
    labels: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """Which pixels of the box they are; computed each time, since boxes may overlap and be large."""
        return np.asarray(self.labels[slices_of(self.box)] == self.number)


class _Word(NamedTuple):
    text: str
    key: str
    box: PixelBox
    confidence: float


class _Words(NamedTuple):
    """What is read in a cluster before and after: words with a pixel that differs."""

    before: list[_Word]
    after: list[_Word]

    def changed(self) -> tuple[list[_Word], list[_Word]]:
        """The words that the other image has not, or less often; none if only the gaps were read otherwise."""
        keys = [[word.key for word in words] for words in self]
        if "".join(keys[0]) == "".join(keys[1]):
            return [], []
        return _without(self.before, keys[1]), _without(self.after, keys[0])


def is_exact_pair(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether two images of one size are drawn ones, most of whose pixels are exactly equal, and none is a compressed
    copy of the other."""
    if before.shape != after.shape:
        return False
    different = (before != after).any(axis=-1)
    if different.mean() > _MOST_DIFFERENT:
        return False
    flat = (after[:-1, :-1] == after[1:, :-1]).all(axis=-1) & (after[:-1, :-1] == after[:-1, 1:]).all(axis=-1)
    return bool(flat.size and flat.mean() >= _FLAT and not is_lossy(before, after))


def exact_changes(
    before: np.ndarray, after: np.ndarray, counted: np.ndarray | None = None, read_text: bool = True
) -> Description:
    """Compare two images of one size, else ValueError, pixel by pixel.

    Args:
        counted: bool (H, W), the part in which differences count; None for all.
        read_text: whether words are read, by the extra ``text``.

    Returns:
        The most telling claims first, and the largest of the regions, parts of the image after that differ; the change
        map is 0 where the pixels are equal or differ as two renderings do.
    """
    if before.shape != after.shape:
        sizes = " and ".join(f"{image.shape[1]} x {image.shape[0]}" for image in (before, after))
        raise ValueError(f"mode=exact compares images of the same size, got {sizes}; use mode=photographs, or auto")
    started = time.thread_time()
    before = equal_outside(before, after, counted)
    different = different_pixels(before, after)
    if not different.any():
        return _description(IDENTICAL if (before == after).all() else ONLY_RENDERING, different, [], [])
    moves = whole_moves(before, after, different)
    unmoved, moves = unmoved_pixels(before, after, different, moves)
    labels, boxes = clusters_of(unmoved)
    moves = together(moves)
    traces = np.bincount(labels.ravel(), minlength=len(boxes) + 1) <= _TRACE
    clusters = [
        _Cluster(box, number, labels)
        for number, box in enumerate(boxes, 1)
        if not (traces[number] and any(_touches(box, move) for move in moves))
    ]
    clusters.sort(key=lambda cluster: -box_area(cluster.box))
    reading = Reading() if read_text else None
    said: list[tuple[Claim, str]] = []
    rows: dict[Move, list[tuple[PixelBox, _Words]]] = {move: [] for move in moves}
    listed: list[_Cluster] = []
    for cluster in clusters[:_MOST_LISTED]:
        if time.thread_time() - started > _SECONDS:
            break
        words = _read(before, after, cluster, reading)
        move = next((move for move in moves if _is_row(cluster.box, move)), None)
        if move is None:
            said += _cluster_claims(before, after, cluster, words)
        else:
            rows[move].append((cluster.box, words))
        listed.append(cluster)
    for move, row in rows.items():
        said += _move_claims(move, row, different.shape)
    said.sort(key=lambda entry: _rank(entry[0]))
    boxes = [cluster.box for cluster in listed] + [move.after for move in moves]
    regions = sorted(
        (_region(box, before, after, different) for box in boxes if different[slices_of(box)].any()),
        key=lambda region: -region.share,
    )
    # The faintest difference is to be seen on a map.
    difference = np.where(different, 0.25 + 0.75 * largest_channel(cv2.absdiff(before, after)) / np.float32(255), 0)
    sentence = _sentence([clause for _, clause in said if clause], len(clusters) - len(listed))
    if reading is not None and reading.skipped:
        sentence += f" Words were not read in {reading.skipped} of the smaller parts."
    doubt = None
    if len(listed) < min(len(clusters), _MOST_LISTED):
        doubt = f"the comparison was ended after {_SECONDS:g} s, before all parts that differ were described"
    return _description(sentence, difference, [claim for claim, _ in said], regions, doubt)


def _description(
    sentence: str,
    difference: np.ndarray,
    claims: Sequence[Claim],
    regions: Sequence[Region],
    doubt: str | None = None,
) -> Description:
    confidence = min((claim.confidence for claim in claims), default=1.0)
    return Description(
        (Candidate(sentence, math.log(confidence)),), change_map=difference.astype(np.float32),
        regions=tuple(regions), claims=tuple(claims), objects_text=sentence, doubt=doubt,
    )  # fmt: skip


def _touches(box: PixelBox, move: Move) -> bool:
    """Whether a box is at the edge of what moved, or in it."""
    return any(boxes_overlap(around(box, 2, (1 << 20, 1 << 20)), moved) for moved in (move.before, move.after))


def _is_row(box: PixelBox, move: Move) -> bool:
    """Whether a box is in the band by which everything below moved."""
    dx, dy = move.by
    if dx or abs(dy) < _ROW:
        return False
    bottom = max(move.before[1], move.after[1])
    return box[1] >= bottom - abs(dy) - 4 and box[3] <= bottom + 4 and box[0] < move.after[2] and move.after[0] < box[2]


def _move_claims(move: Move, row: list[tuple[PixelBox, _Words]], size: tuple[int, ...]) -> list[tuple[Claim, str]]:
    """The claim of a move, after that of the row which made it, if there is one."""
    (dx, dy), size = move.by, (size[0], size[1])
    claim = Claim("moved", "region", 1, where_of(move.after, size), move.before, move.after, 1.0)
    directions = [(abs(dx), "right" if dx > 0 else "left"), (abs(dy), "down" if dy > 0 else "up")]
    way = "moved " + " and ".join(f"{direction} by {length} px" for length, direction in directions if length)
    if not row:
        return [(claim, f"a region of {_measured(move.after)} {claim.where} {way}")]
    is_new, box = dy > 0, around_all([box for box, _ in row])
    words = [word for _, read in sorted(row, key=lambda entry: entry[0][0]) for word in read[is_new]]
    text, where = _quoted(words), where_of(box, size)
    confidence = min((word.confidence for word in words), default=1.0)
    kind: ClaimKind = "appeared" if is_new else "gone"
    quoted_words = f' with the words "{text}"' if text else ""
    clause = f"a row{quoted_words} was {'added' if is_new else 'removed'} {where}, and everything below {way}"
    boxes = (None if is_new else box, box if is_new else None)
    row_claim = Claim(kind, "row", 1, where, *boxes, confidence, None if is_new else text, text if is_new else None)
    return [(row_claim, clause), (claim, "")]


def _cluster_claims(before: np.ndarray, after: np.ndarray, cluster: _Cluster, words: _Words) -> list[tuple[Claim, str]]:
    """The claims of a cluster: of its words, and of the rest where that is the larger part."""
    claims = []
    rest = cluster.mask.copy()
    filled = rest.mean() >= _FILLED and not any(words.changed())
    if (words.before or words.after) and not filled:
        claims.append(_words_claim(before, after, cluster, words))
        for word in words.before + words.after:
            rest[slices_of(shifted_box(word.box, -cluster.box[0], -cluster.box[1]))] = False
    if not claims or rest.sum() > _PLAIN * cluster.mask.sum():
        claims.append(_look_claim(before, after, cluster))
    return claims


def _words_claim(before: np.ndarray, after: np.ndarray, cluster: _Cluster, words: _Words) -> tuple[Claim, str]:
    """Other words, or the same in another look."""
    box, where = cluster.box, where_of(cluster.box, before.shape[:2])
    gone, new = words.changed()
    if gone or new:
        kind: ClaimKind = "replaced" if gone and new else "gone" if gone else "appeared"
        first, second = _quoted(gone), _quoted(new)
        confidence = min(word.confidence for word in gone + new)
        claim = Claim(kind, "words", 1, where, box if gone else None, box if new else None, confidence, first, second)
        return claim, words_clause(claim)
    text = f'the words "{_quoted(words.before)}" {where}'
    colours = [_colour(image[slices_of(box)][cluster.mask]) for image in (before, after)]
    grounds = _grounds(before, cluster) | _grounds(after, cluster)
    if colours[0] != colours[1] and not {colours[0].code, colours[1].code} & grounds:
        names = _names(*colours)
        claim = Claim("changed", "words", 1, where, box, box, 1.0, *names)
        return claim, f"{text} changed from {names[0]} to {names[1]}"
    heights = [np.median([word.box[3] - word.box[1] for word in read]) for read in words]
    look = "became larger" if heights[1] > 1.1 * heights[0] else "changed in look"
    look = "became smaller" if heights[0] > 1.1 * heights[1] else look
    return Claim("changed", "words", 1, where, box, box, 1.0), f"{text} {look}"


class _Colour(NamedTuple):
    """The most frequent colour of some pixels, and the share of them that have it."""

    code: int
    share: float

    @property
    def name(self) -> str:
        """In words."""
        rgb = [self.code >> shift & 255 for shift in (16, 8, 0)]
        return colour_of(np.array([rgb], np.float32) / 255)


def _colour(pixels: np.ndarray) -> _Colour:
    pixels = sampled(pixels, _SAMPLE)
    codes, counts = np.unique(pixels.astype(np.int64) @ (1 << 16, 1 << 8, 1), return_counts=True)
    return _Colour(int(codes[counts.argmax()]), float(counts.max() / counts.sum()))


def _names(first: _Colour, second: _Colour) -> tuple[str, str]:
    """Two colours in words, or in hex where the words are the same."""
    if first.name != second.name:
        return first.name, second.name
    return f"#{first.code:06x}", f"#{second.code:06x}"


def _grounds(image: np.ndarray, cluster: _Cluster) -> set[int]:
    """The colour around a cluster, and that between its pixels: what shows where nothing is."""
    outer = around(cluster.box, 3, image.shape[:2])
    outside = np.ones((outer[3] - outer[1], outer[2] - outer[0]), bool)
    outside[slices_of(shifted_box(cluster.box, -outer[0], -outer[1]))] = False
    parts = [image[slices_of(outer)][outside], image[slices_of(cluster.box)][~cluster.mask]]
    return {_colour(part).code for part in parts if len(part)}


def _look_claim(before: np.ndarray, after: np.ndarray, cluster: _Cluster) -> tuple[Claim, str]:
    """What differs in a cluster without words: a line, a border, a plain background or anything else."""
    box, where = cluster.box, where_of(cluster.box, before.shape[:2])
    first, second = (_colour(image[slices_of(box)][cluster.mask]) for image in (before, after))
    plain = first.share >= _PLAIN and second.share >= _PLAIN
    was_ground = first.share >= _ALL and first.code in _grounds(before, cluster)
    is_ground = second.share >= _ALL and second.code in _grounds(after, cluster)
    region = f"a region of {_measured(box)} {where}"
    thing = "line" if _is_line(cluster) else "border" if _is_border(cluster.mask) else "region"
    names: tuple[str | None, str | None] = _names(first, second) if plain else (None, None)
    background = plain and _FILLED <= cluster.mask.mean() < 1
    if was_ground == is_ground or background:
        kind: ClaimKind = "changed"
        if thing != "region":
            clause = f"the {thing} of {region}"
        else:
            clause = f"the background of {region}" if background else region
        clause += f" changed from {names[0]} to {names[1]}" if plain else " changed"
    else:
        kind = "appeared" if was_ground else "gone"
        present = second if was_ground else first
        colour = present.name if present.share >= (0.2 if thing != "region" else _PLAIN) else ""
        names = (None, colour or None) if was_ground else (colour or None, None)
        if thing != "region":
            clause = f"{region} {'got a' if was_ground else 'lost its'} {colour} {thing}".replace("  ", " ")
        else:
            what = f"{with_article(colour)} area" if colour else "something"
            clause = f"{what} of {_measured(box)} {'appeared' if was_ground else 'is gone'} {where}"
    boxes = (None if kind == "appeared" else box, None if kind == "gone" else box)
    return Claim(kind, thing, 1, where, *boxes, 1.0, *names), clause


def _is_line(cluster: _Cluster) -> bool:
    left, top, right, bottom = cluster.box
    return min(right - left, bottom - top) <= _LINE and max(right - left, bottom - top) >= 3 * _LINE


def _is_border(mask: np.ndarray) -> bool:
    """Whether the pixels are along all four sides, and nowhere else; a broken line is one too."""
    if min(mask.shape) < 3 * _LINE:
        return False
    inside = mask[_LINE:-_LINE, _LINE:-_LINE].sum()
    sides = [strip.any(axis=0) for turned in (mask, mask.T) for strip in (turned[:_LINE], turned[-_LINE:])]
    return bool(inside <= 0.05 * mask.sum() and all(side.mean() >= 0.4 for side in sides))


def _region(box: PixelBox, before: np.ndarray, after: np.ndarray, different: np.ndarray) -> Region:
    part = slices_of(box)
    mask = different[part]
    names = [colour_of(sampled(image[part][mask], _SAMPLE).astype(np.float32) / 255) for image in (before, after)]
    return Region(box, float(mask.sum() / different.size), where_of(box, different.shape[:2]), *names)


def _rank(claim: Claim) -> tuple[bool, float]:
    """Readings first, then the largest."""
    is_reading = claim.object in ("row", "words") and claim.kind != "changed"
    return not is_reading, -max(box_area(box) for box in (claim.box_before, claim.box_after) if box is not None)


def _measured(box: PixelBox) -> str:
    return f"{box[2] - box[0]} x {box[3] - box[1]} px"


def _without(words: list[_Word], keys: list[str]) -> list[_Word]:
    """The words whose keys are not among these, or less often."""
    left, remaining = Counter(keys), []
    for word in words:
        left[word.key] -= 1
        if left[word.key] < 0:
            remaining.append(word)
    return remaining


def _quoted(words: list[_Word]) -> str | None:
    return quoted(word.text for word in words) or None


def _sentence(clauses: list[str], unlisted: int) -> str:
    text = "; ".join(clauses[:_NAMED])
    if not clauses:
        return f"The images differ in {unlisted} parts, which are not listed."
    if more := len(clauses[_NAMED:]) + unlisted:
        text += f"; and {more} more" + (f", of which {unlisted} are not listed" if unlisted else "")
    return f"{text[:1].upper()}{text[1:]}."


class Reading:
    """What may still be read of a pair, and the number of clusters that were left out for it."""

    def __init__(self) -> None:
        self.clusters, self.lines, self.pixels, self.skipped = _MOST_READ, _MOST_LINES, _MOST_PIXELS, 0

    def words(
        self, images: Sequence[np.ndarray], box: PixelBox, wanted: Callable[[PixelBox], bool]
    ) -> list[list[_Word]]:
        """The words in a box of both images, of lines with a part that is wanted; where that is too much, of the lines
        at the top, the same ones of both: a line that is read on one of them alone would be gone."""
        left, top, right, bottom = box
        scale = next((scale for height, scale in _ENLARGED if bottom - top <= height), 1.0)
        end = min(bottom, top + int(self.pixels / (2 * scale**2 * (right - left))))
        self.pixels -= int(2 * scale**2 * (right - left) * (end - top))
        limit = bottom + _MARGIN if end == bottom else end - _MARGIN
        if limit <= top:
            self.skipped += 1
            return [[], []]

        def original(corners: np.ndarray) -> PixelBox:
            x, y = ((np.reshape(corners, (-1, 2)) - _MARGIN) / scale + (left, top)).T
            return max(int(x.min()), 0), max(int(y.min()), 0), int(np.ceil(x.max())), int(np.ceil(y.max()))

        parts = [
            # In its own colour around: letters at the edge are read better.
            cv2.copyMakeBorder(
                cv2.resize(image[top:end, left:right], None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC),
                *(_MARGIN,) * 4, cv2.BORDER_REPLICATE,
            )
            for image in images
        ]  # fmt: skip
        sides = [[(original(line), line) for line in lines_on(part)] for part in parts]
        sides = [[(area, line) for area, line in lines if wanted(area)] for lines in sides]
        ends = sorted(area[3] for lines in sides for area, _ in lines)
        if len(ends) > self.lines:
            limit = min(limit, ends[self.lines] - 1)
        self.skipped += limit < bottom + _MARGIN
        self.lines -= min(len(ends), self.lines)
        words = [
            [
                (original(word.corners), word)
                for area, line in lines
                if area[3] <= limit
                for word in words_of(part, line)
            ]
            for part, lines in zip(parts, sides, strict=True)
        ]
        return [
            [_Word(word.text, word.key, area, word.confidence) for area, word in side if wanted(area)] for side in words
        ]


def _read(before: np.ndarray, after: np.ndarray, cluster: _Cluster, reading: Reading | None) -> _Words:
    """The words in a cluster that have a different pixel, before and after."""
    if reading is None or _is_line(cluster) or min(np.subtract(cluster.box[2:], cluster.box[:2])) < _SMALLEST_LETTER:
        return _Words([], [])
    if min(reading.clusters, reading.lines, reading.pixels) <= 0:
        reading.skipped += 1
        return _Words([], [])
    reading.clusters -= 1
    mask, (left, top, _, _) = cluster.mask, cluster.box

    def differs(area: PixelBox) -> bool:
        return bool(mask[slices_of(shifted_box(area, -left, -top))].any())

    box = _box_of_words(before, after, cluster.box)
    sides = reading.words((before, after), box, differs)
    texts = ["".join(filter(str.isalnum, "".join(word.text for word in words))) for words in sides]
    if max(map(len, texts)) < 2 and not any(map(str.isdigit, texts)):
        return _Words([], [])  # an icon that looks like a letter
    return _Words(*sides)


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
