"""Screens and documents: images that are drawn, of any sizes. Nothing is stretched and no light is evened out: what one
image alone has is a strip, colours may have changed everywhere, every cluster of different pixels is a region, and
content that moved is said to have moved.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Candidate, Claim, ClaimKind, Description, Region
from idc.systems.objects.canvas import Canvas, Strip, canvas_of
from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    box_area,
    box_iou,
    boxes_overlap,
    shifted_box,
    slices_of,
)
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
from idc.systems.objects.recolouring import RecolouredPixels, Recolouring, recoloured
from idc.systems.objects.text import lines_on, words_of
from idc.systems.objects.wording import MIXED, colour_of, quoted, sampled, where_of, with_article, words_clause

IDENTICAL = "The two images are identical."
ONLY_RENDERING = "No visible change: the images are the same up to anti-aliasing and compression."
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
_SAID = 0.01
"""Share of the picture from which another colour is said, ..."""
_WHOLE = 0.95
"""... and from which it is that of the whole."""
_STRIPS = "row", "column"
"""What a strip of rows or columns is called in claims."""
_PLAIN_STRIP = 0.995
"""Share of a strip's pixels from which it has the colour."""
_MOST_QUOTED = 12
"""Words of a strip that are quoted."""
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
_OF_LETTERS = 0.25
"""Share of the different pixels of words that have the colour of the letters; blends at their edges have many."""
_SHORTENED = 0.3
"""Intersection over union of the boxes of a word and of what is left of it, or replaces it."""
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
    """Different pixels near each other: their box, their number among the labels (H, W) of all clusters, and their
    position in words."""

    box: PixelBox
    number: int
    labels: np.ndarray
    where: str

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


def is_exact_pair(before: np.ndarray, after: np.ndarray, canvas: Canvas | None = None) -> bool:
    """Whether two images are compared pixel by pixel, for what they are: drawn ones, or screens with photographs of
    which parts are exactly equal. A compressed or enlarged copy of the other one is compared as a photograph."""
    looks = [_look(image) for image in (before, after)]
    drawn = all(look.flat >= _FLAT and look.frequent >= _FREQUENT for look in looks)
    if not drawn and any(look.flat < _FLAT_PARTS[int(look.colours > _FEW_COLOURS)] for look in looks):
        return False
    factors = np.divide(before.shape[:2], after.shape[:2])
    if min(abs(factors - 1)) > _SCALED and abs(factors[0] / factors[1] - 1) < _SCALED:
        return False
    canvas = canvas or canvas_of(before, after)
    if not drawn and canvas.equal < _EQUAL and not recoloured(canvas.before, canvas.after, canvas.pixels).colours:
        return False
    return not is_lossy(canvas.before, canvas.after)


class _Look(NamedTuple):
    """Shares of an image's pixels: equal to those to the right and below; of the 16 most frequent colours. Number of
    colours as a share of that of pixels."""

    flat: float
    frequent: float
    colours: float


def _look(image: np.ndarray) -> _Look:
    codes = codes_of(image)
    flat = (codes[:-1, :-1] == codes[1:, :-1]) & (codes[:-1, :-1] == codes[:-1, 1:])
    counts = np.sort(np.unique(sampled(codes.ravel(), _SAMPLE), return_counts=True)[1])
    return _Look(
        float(flat.mean()) if flat.size else 1.0, counts[-16:].sum() / counts.sum(), len(counts) / counts.sum()
    )


def exact_changes(
    before: np.ndarray,
    after: np.ndarray,
    counted: np.ndarray | None = None,
    read_text: bool = True,
    canvas: Canvas | None = None,
) -> Description:
    """Compare two images of any sizes pixel by pixel.

    Args:
        counted: bool (H, W) over the image after, the part in which differences count; None for all.
        read_text: whether words are read, by the extra ``text``.
        canvas: of these images, where it was made before.

    Returns:
        The most telling claims first, and the largest of the regions, parts of the image after that differ; the change
        map is 0 where the pixels are equal or differ as two renderings do.
    """
    started = time.thread_time()
    images = before, after
    canvas = canvas or canvas_of(before, after, counted)
    before, after = canvas.before, canvas.after
    repainted = recoloured(before, after, canvas.pixels)
    different = different_pixels(repainted.before, after)
    reading = Reading() if read_text else None
    strips = [_strip_claim(images[strip.side], strip, reading) for strip in canvas.strips[:_MOST_LISTED]]
    said = _recolouring_claims(repainted, canvas)
    if not different.any() and not said and not strips:
        return _description(
            IDENTICAL if (before == after).all() else ONLY_RENDERING, canvas.over_after(different), [], []
        )
    moves = whole_moves(repainted.before, after, different)
    unmoved, moves = unmoved_pixels(repainted.before, after, different, moves)
    labels, boxes = clusters_of(unmoved)
    moves = together(moves)
    traces = np.bincount(labels.ravel(), minlength=len(boxes) + 1) <= _TRACE
    clusters = [
        _Cluster(box, number, labels, canvas.where(box))
        for number, box in enumerate(boxes, 1)
        if not (traces[number] and any(_touches(box, move) for move in moves))
    ]
    clusters.sort(key=lambda cluster: -box_area(cluster.box))
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
        said += _move_claims(move, row, canvas)
    said = [*strips, *((_on_images(claim, canvas), clause) for claim, clause in said)]
    said.sort(key=lambda entry: _rank(entry[0]))
    boxes = [*(colour.box for colour in repainted.colours), *(cluster.box for cluster in listed)]
    boxes += [move.after for move in moves]
    different |= codes_of(repainted.before) != codes_of(before)
    regions = [_region(box, canvas, different) for box in boxes if different[slices_of(box)].any()]
    # The faintest difference is to be seen on a map.
    difference = np.where(different, 0.25 + 0.75 * largest_channel(cv2.absdiff(before, after)) / np.float32(255), 0)
    sentence = _sentence([clause for _, clause in said if clause], len(clusters) - len(listed))
    if reading is not None and reading.skipped:
        sentence += f" Not all words were read ({reading.skipped} part{'s' * (reading.skipped > 1)})."
    if canvas.left_out:
        sentence += f" {canvas.left_out} more rows of pixels differ, and were not compared."
    doubt = None
    if len(listed) < min(len(clusters), _MOST_LISTED):
        doubt = f"the comparison was ended after {_SECONDS:g} s, before all parts that differ were described"
    regions.sort(key=lambda region: -region.share)
    return _description(sentence, canvas.over_after(difference), [claim for claim, _ in said], regions, doubt)


def _on_images(claim: Claim, canvas: Canvas) -> Claim:
    """A claim with boxes of the canvas, with those of the images."""
    boxes = (claim.box_before, claim.box_after)
    first, second = (None if box is None else canvas.on(side, box) for side, box in enumerate(boxes))
    return replace(claim, box_before=first, box_after=second)


def _strip_claim(image: np.ndarray, strip: Strip, reading: Reading | None) -> tuple[Claim, str]:
    """Rows or columns that one image alone has."""
    box, is_new = strip.box, bool(strip.side)
    colour = _colour(image[slices_of(box)].reshape(-1, 3))
    words: list[_Word] = []
    if colour.share < 1 and reading is not None:
        [words] = reading.words([image], box, lambda area: True)
    text, where = _quoted(words[:_MOST_QUOTED]), where_of(box, image.shape[:2])
    if box[strip.axis == 0] == 0:
        where = "on the left" if strip.axis else "at the top"
    elif box[3 - strip.axis] == image.shape[strip.axis]:
        where = "on the right" if strip.axis else "at the bottom"
    look = f"{colour.name} " if colour.share >= _PLAIN_STRIP else ""
    clause = f"a {look}strip of {_measured(box)}".replace("a orange", "an orange")
    clause += f' with the words "{text}{" ..." if len(words) > _MOST_QUOTED else ""}"' if text else ""
    clause += f" was {'added' if is_new else 'removed'} {where}"
    if strip.moved:
        rest, way = ("to the right", ("left", "right")) if strip.axis else ("below", ("up", "down"))
        clause += f", and everything {rest} moved {way[is_new]} by {strip.moved} px"
    confidence = min((word.confidence for word in words), default=1.0)
    boxes, texts = ((None, box), (None, text)) if is_new else ((box, None), (text, None))
    return Claim("appeared" if is_new else "gone", _STRIPS[strip.axis], 1, where, *boxes, confidence, *texts), clause


def _recolouring_claims(repainted: Recolouring, canvas: Canvas) -> list[tuple[Claim, str]]:
    """What became another colour wherever it was."""
    groups: dict[tuple[str, str], list[RecolouredPixels]] = {}
    for colour in repainted.colours:
        groups.setdefault(_names(_Colour(colour.before, 1.0), _Colour(colour.after, 1.0)), []).append(colour)
    claims = []
    for names, colours in groups.items():
        share, box = (
            sum(colour.pixels for colour in colours) / canvas.pixels,
            around_all([each.box for each in colours]),
        )
        if share >= _WHOLE:
            clause = f"the whole picture changed from {names[0]} to {names[1]}"
        else:
            clause = f"what was {names[0]}, {100 * share:.0f} % of the picture, became {names[1]}"
        if share >= _SAID:
            claims.append((Claim("changed", "region", 1, canvas.where(box), box, box, 1.0, *names), clause))
    return claims


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


def _move_claims(move: Move, row: list[tuple[PixelBox, _Words]], canvas: Canvas) -> list[tuple[Claim, str]]:
    """The claim of a move, after that of the row which made it, if there is one."""
    dx, dy = np.subtract(canvas.on(1, move.after)[:2], canvas.on(0, move.before)[:2]).tolist()
    claim = Claim("moved", "region", 1, canvas.where(move.after), move.before, move.after, 1.0)
    directions = [(abs(dx), "right" if dx > 0 else "left"), (abs(dy), "down" if dy > 0 else "up")]
    way = "moved " + " and ".join(f"{direction} by {length} px" for length, direction in directions if length)
    if not row:
        return [(claim, f"a region of {_measured(move.after)} {claim.where} {way}")]
    is_new, box = dy > 0, around_all([box for box, _ in row])
    words = [word for _, read in sorted(row, key=lambda entry: entry[0][0]) for word in read[is_new]]
    text, where = _quoted(words), canvas.where(box)
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
    box, where = cluster.box, cluster.where
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
    of_letters = min(colour.share for colour in colours) >= _OF_LETTERS
    if of_letters and colours[0] != colours[1] and not {colours[0].code, colours[1].code} & grounds:
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
    box, where = cluster.box, cluster.where
    first, second = (_colour(image[slices_of(box)][cluster.mask]) for image in (before, after))
    plain = first.share >= _PLAIN and second.share >= _PLAIN
    was_ground = first.share >= _ALL and first.code in _grounds(before, cluster)
    is_ground = second.share >= _ALL and second.code in _grounds(after, cluster)
    if not plain and was_ground == is_ground:  # a plain area over what was not one, or the other way round
        was_ground, is_ground = second.share >= _ALL, first.share >= _ALL
    region = f"a region of {_measured(box)} {where}"
    thing = "line" if _is_line(cluster) else "border" if _is_border(cluster.mask) else "region"
    names: tuple[str | None, str | None] = _names(first, second) if plain else (None, None)
    if not plain and was_ground == is_ground:  # shades of a colour
        pixels = (sampled(image[slices_of(box)][cluster.mask], _SAMPLE) for image in (before, after))
        shades = [colour_of(values.astype(np.float32) / 255) for values in pixels]
        names = (shades[0], shades[1]) if shades[0] != shades[1] and MIXED not in shades else names
    background = plain and _FILLED <= cluster.mask.mean() < 1
    if was_ground == is_ground or background:
        kind: ClaimKind = "changed"
        if thing != "region":
            clause = f"the {thing} of {region}"
        else:
            clause = f"the background of {region}" if background else region
        clause += f" changed from {names[0]} to {names[1]}" if names[0] else " changed"
    else:
        kind = "appeared" if was_ground else "gone"
        present = second if was_ground else first
        colour = present.name if present.share >= (0.2 if thing != "region" else _PLAIN) else ""
        if colour in {_Colour(code, 1.0).name for code in _grounds((before, after)[was_ground], cluster)}:
            colour = f"#{present.code:06x}"  # and not that of what is around it
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


def _region(box: PixelBox, canvas: Canvas, different: np.ndarray) -> Region:
    part = slices_of(box)
    mask = different[part]
    pixels = (sampled(image[part][mask], _SAMPLE) for image in (canvas.before, canvas.after))
    names = [colour_of(colours.astype(np.float32) / 255) for colours in pixels]
    share = float(mask.sum() / max(np.prod(canvas.sizes[1]), 1))
    return Region(canvas.on(1, box), share, canvas.where(box), *names)


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
        """The words in a box of both images that are wanted, and those that are in their place on the other image.
        Where that is too much, of the lines at the top, the same ones of both: a line that is read on one of them alone
        would be gone."""
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
        boxes = [area for lines in sides for area, _ in lines if wanted(area)]
        sides = [[entry for entry in lines if any(boxes_overlap(entry[0], box) for box in boxes)] for lines in sides]
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
        boxes = [area for side in words for area, _ in side if wanted(area)]
        return [
            [
                _Word(word.text, word.key, area, word.confidence)
                for area, word in side if any(_in_place(area, box) for box in boxes)
            ]
            for side in words
        ]  # fmt: skip


def _in_place(box: PixelBox, other: PixelBox) -> bool:
    """Whether two words begin or end together, or one is in the place of the other one."""
    return box_iou(box, other) > _SHORTENED


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
