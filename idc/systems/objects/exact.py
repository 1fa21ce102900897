"""Screens and documents: images that are drawn, of any sizes. Nothing is stretched and no light is evened out: what one
image alone has is a strip, colours may have changed everywhere, every cluster of different pixels is a region, and
content that moved is said to have moved.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Candidate, Claim, ClaimKind, Description, Region
from idc.captioning.counts import Counts, counted, left_out_sentence
from idc.systems.objects.canvas import ExtraStrip, PairCanvas
from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    box_area,
    boxes_overlap,
    shifted_box,
    slices_of,
)
from idc.systems.objects.known_words import KnownReader, KnownWords
from idc.systems.objects.pixel_changes import (
    Move,
    clusters_of,
    different_pixels,
    largest_channel,
    unmoved_pixels,
)
from idc.systems.objects.reading import DrawnWords, Word, WordReader
from idc.systems.objects.recolouring import Colour, RecolouredPixels, codes_of, main_colour, names_of
from idc.systems.objects.wording import MIXED, colour_of, quoted, sampled, where_of, with_article, words_clause

IDENTICAL = "The two images are identical."
ONLY_RENDERING = "No visible change: the images are the same up to anti-aliasing and compression."
_SAID, _WHOLE = 0.01, 0.95
"""Shares of the picture from which another colour is said, and is that of the whole."""
_ROUNDING = 2
"""Levels in 255 by which colours differ that were converted in another way."""
_STRIPS = "row", "column"
"""What a strip of rows or columns is called in claims."""
_PLAIN_STRIP = 0.995
"""Share of a strip's pixels from which it has the colour."""
_MOST_QUOTED = 12
"""Words of a strip, row or area that are quoted."""
_NAMED = 3
"""Number of claims that the sentence says."""
_MOST_LISTED = 200
"""Clusters that are described, the largest first; the others are counted."""
_SECONDS = 6.0
"""Computing time of a pair after which no further cluster is described."""
_LINE = 4
"""Largest thickness of a line or border, in pixels."""
_PLAIN = 0.6
"""Share of a cluster's pixels that must have a colour for it to be that of the cluster."""
_PLAIN_LINE = 0.2
"""The same of a line or border, which may be blended with its ground."""
_LARGER = 1.1
"""Ratio of the heights of the same words from which they became larger or smaller."""
_LIGHTER = 8
"""Grey levels by which parts of many colours became lighter or darker."""
_ROW = 8
"""Smallest shift, in pixels, that is one by an added or removed row."""
_FILLED = 0.7
"""Share of a box that differs where the ground behind its content does."""
_ALL = 0.9
"""Share of a cluster's pixels that must have the colour around it for nothing to be there."""
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


def exact_changes(
    before: np.ndarray,
    after: np.ndarray,
    canvas: PairCanvas,
    read_text: bool = True,
    counts: Counts | None = None,
    texts: KnownWords | None = None,
) -> Description:
    """Compare two images of any sizes pixel by pixel.

    Args:
        canvas: of these images, :func:`~idc.systems.objects.canvas.canvas_of`.
        read_text: whether words are read, by the extra ``text``.
        counts: what counts as a change.
        texts: the words, which are then not read.

    Returns:
        The most telling claims first, and the largest of the regions, parts of the image after that differ; the change
        map is 0 where the pixels are equal or differ as two renderings do.
    """
    started = time.thread_time()
    repainted = canvas.repainted
    different = different_pixels(repainted.before, canvas.after)
    reader = WordReader(read_text) if texts is None else KnownReader(texts.stayed, canvas)
    said = [_strip_claim((before, after)[strip.side], strip, reader) for strip in canvas.strips[:_MOST_LISTED]]
    unmoved, moves = unmoved_pixels(repainted.before, canvas.after, different)
    labels, boxes = clusters_of(unmoved)
    traces = np.bincount(labels.ravel(), minlength=len(boxes) + 1) <= _TRACE
    clusters = [
        _Cluster(box, number, labels, canvas.where(box))
        for number, box in enumerate(boxes, 1)
        if not (traces[number] and any(_touches(box, move) for move in moves))
    ]
    clusters.sort(key=lambda cluster: -box_area(cluster.box))
    rows: dict[Move, list[tuple[PixelBox, DrawnWords]]] = {move: [] for move in moves}
    changes, listed = _recolouring_claims(canvas), 0
    for cluster in clusters[:_MOST_LISTED]:
        if time.thread_time() - started > _SECONDS:
            break
        words = DrawnWords([], [])
        if not _is_line(cluster.box):
            words = reader.words_of(canvas.before, canvas.after, cluster.box, cluster.mask)
        move = next((move for move in moves if _is_row(cluster.box, move)), None)
        if move is None:
            changes += _cluster_claims(canvas, cluster, words)
        else:
            rows[move].append((cluster.box, words))
        listed += 1
    for move, row in rows.items():
        changes += _move_claims(move, row, canvas)
    said += [(_on_images(claim, canvas), clause) for claim, clause in changes]
    said += texts.changed if texts else []
    said.sort(key=lambda entry: _rank(entry[0]))
    said += texts.moved if texts else []
    claims, left_out = counted([claim for claim, _ in said], counts, after.shape, drawn=True)
    boxes = [colour.box for colour in repainted.colours] + [cluster.box for cluster in clusters[:listed]]
    boxes += [move.after for move in moves]
    if said:
        different |= codes_of(repainted.before) != codes_of(canvas.before)
    regions = [_region(box, canvas, different) for box in boxes if different[slices_of(box)].any()]
    # The faintest difference is to be seen on a map.
    distance = largest_channel(cv2.absdiff(canvas.before, canvas.after)) / np.float32(255)
    change_map = canvas.over_after(np.where(different, 0.25 + 0.75 * distance, 0))
    for claim, _ in texts.changed if texts else ():
        change_map[slices_of(claim.box_after or claim.box_before or (0, 0, 0, 0))] = 1
    clauses = [clause for claim, clause in said if clause and claim not in left_out]
    sentence = _sentence(clauses, len(clusters) - listed)
    if left_out:
        rest = left_out_sentence(left_out, [], counts, drawn=True)
        sentence = f"{sentence if claims else 'Nothing that counts changed.'} {rest}"
    if not said and not different.any():
        sentence = IDENTICAL if not distance.any() else ONLY_RENDERING
    if reader.skipped:
        sentence += f" Not all words were read ({reader.skipped} part{'s' * (reader.skipped > 1)})."
    if canvas.left_out:
        sentence += f" {canvas.left_out} more rows of pixels differ, and were not compared."
    doubt = None
    if listed < min(len(clusters), _MOST_LISTED):
        doubt = f"the comparison was ended after {_SECONDS:g} s, before all parts that differ were described"
    elif left_out and not claims and (len(clusters) > listed or reader.skipped):
        doubt = "not all parts that differ were read"
    confidence = min((claim.confidence for claim in claims), default=1.0)
    return Description(
        (Candidate(sentence, math.log(confidence)),),
        change_map=change_map,
        regions=tuple(sorted(regions, key=lambda region: -region.share)),
        claims=tuple(claims), objects_text=sentence, doubt=doubt,
    )  # fmt: skip


def _on_images(claim: Claim, canvas: PairCanvas) -> Claim:
    """A claim with boxes of the canvas, with those of the images."""
    boxes = (claim.box_before, claim.box_after)
    first, second = (None if box is None else canvas.on(side, box) for side, box in enumerate(boxes))
    return replace(claim, box_before=first, box_after=second)


def _strip_claim(image: np.ndarray, strip: ExtraStrip, reader: WordReader) -> tuple[Claim, str]:
    """Rows or columns that one image alone has."""
    box, is_new = strip.box, bool(strip.side)
    colour = main_colour(image[slices_of(box)].reshape(-1, 3))
    [words] = reader.words([image], box, lambda area: True) if colour.share < 1 else [[]]
    where = where_of(box, image.shape[:2])
    if box[strip.axis == 0] == 0:
        where = "on the left" if strip.axis else "at the top"
    elif box[3 - strip.axis] == image.shape[strip.axis]:
        where = "on the right" if strip.axis else "at the bottom"
    look = f"{colour.name} " if colour.share >= _PLAIN_STRIP else ""
    clause = f"{with_article(f'{look}strip')} of {_measured(box)}{_with(words)}"
    clause += f" was {'added' if is_new else 'removed'} {where}"
    if strip.moved:
        rest, way = ("to the right", ("left", "right")) if strip.axis else ("below", ("up", "down"))
        clause += f", and everything {rest} moved {way[is_new]} by {strip.moved} px"
    confidence = min((word.confidence for word in words), default=1.0)
    text = _quoted(words[:_MOST_QUOTED])
    return _one_sided(is_new, _STRIPS[strip.axis], where, box, confidence, text), clause


def _recolouring_claims(canvas: PairCanvas) -> list[tuple[Claim, str]]:
    """What became another colour wherever it was."""
    groups: dict[tuple[str, str], list[RecolouredPixels]] = {}
    for colour in canvas.repainted.colours:
        groups.setdefault(names_of(colour.before, colour.after), []).append(colour)
    claims = []
    for names, colours in groups.items():
        share = sum(colour.pixels for colour in colours) / math.prod(canvas.sizes[0])
        box = around_all([colour.box for colour in colours])
        clause = f"what was {names[0]}, {100 * share:.0f} % of the picture, became {names[1]}"
        if share >= _WHOLE:
            clause = f"the whole picture changed from {names[0]} to {names[1]}"
        if share >= _SAID and np.abs(colours[0].before.rgb - colours[0].after.rgb).max() > _ROUNDING:
            claims.append((Claim("changed", "region", 1, canvas.where(box), box, box, 1.0, *names), clause))
    return claims


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


def _move_claims(move: Move, row: list[tuple[PixelBox, DrawnWords]], canvas: PairCanvas) -> list[tuple[Claim, str]]:
    """The claim of a move, after that of the row which made it, if there is one."""
    dx, dy = np.subtract(canvas.on(1, move.after)[:2], canvas.on(0, move.before)[:2]).tolist()
    claim = Claim("moved", "region", 1, canvas.where(move.after), move.before, move.after, 1.0)
    directions = [(abs(dx), "right" if dx > 0 else "left"), (abs(dy), "down" if dy > 0 else "up")]
    way = "moved " + " and ".join(f"{direction} by {length} px" for length, direction in directions if length)
    if not row:
        return [(claim, f"a region of {_measured(move.after)} {claim.where} {way}")]
    is_new, box = dy > 0, around_all([box for box, _ in row])
    words = [word for _, read in sorted(row, key=lambda entry: entry[0][0]) for word in read[is_new]]
    where, confidence = canvas.where(box), min((word.confidence for word in words), default=1.0)
    clause = f"a row{_with(words)} was {'added' if is_new else 'removed'} {where}, and everything below {way}"
    return [(_one_sided(is_new, "row", where, box, confidence, _quoted(words)), clause), (claim, "")]


def _cluster_claims(canvas: PairCanvas, cluster: _Cluster, words: DrawnWords) -> list[tuple[Claim, str]]:
    """The claims of a cluster: of its words, and of the rest where that is the larger part."""
    rest = cluster.mask
    filled = rest.mean() >= _FILLED and not any(words.changed())
    if filled or not any(words):
        return [_look_claim(canvas, cluster)]
    claim, clause = _words_claim(canvas, cluster, words)
    for word in words.before + words.after:
        rest[slices_of(shifted_box(word.box, -cluster.box[0], -cluster.box[1]))] = False
    if rest.sum() <= _PLAIN * cluster.mask.sum():
        return [(claim, clause)]
    look, look_clause = _look_claim(canvas, cluster)
    if claim.kind == look.kind != "changed":  # a chart, and the words in it
        clause, look_clause = "", f"{look_clause}{_with(words.before or words.after)}"
    return [(claim, clause), (look, look_clause)]


def _words_claim(canvas: PairCanvas, cluster: _Cluster, words: DrawnWords) -> tuple[Claim, str]:
    """Other words, or the same in another look."""
    images, box, where = (canvas.before, canvas.after), cluster.box, cluster.where
    gone, new = words.changed()
    if gone or new:
        kind: ClaimKind = "replaced" if gone and new else "gone" if gone else "appeared"
        boxes = [around_all([word.box for word in read]) if read else None for read in (gone, new)]
        confidence = min(word.confidence for word in gone + new)
        where = canvas.where(boxes[1] or boxes[0] or box)
        claim = Claim(kind, "words", 1, where, boxes[0], boxes[1], confidence, _quoted(gone), _quoted(new))
        return claim, words_clause(claim)
    text = f'the words "{_quoted(words.before)}" {where}'
    colours = [main_colour(image[slices_of(box)][cluster.mask]) for image in images]
    # By name: between letters there are blends with the ground.
    grounds = {Colour(code).name for image in images for code in _grounds(image, cluster)}
    if colours[0].code != colours[1].code and not {colours[0].name, colours[1].name} & grounds:
        names = names_of(*colours)
        return Claim(
            "changed", "words", 1, where, box, box, 1.0, *names
        ), f"{text} changed from {names[0]} to {names[1]}"
    ratio = np.divide(*(np.median([word.box[3] - word.box[1] for word in read]) for read in words))
    look = "became smaller" if ratio > _LARGER else "became larger" if ratio < 1 / _LARGER else "changed in look"
    return Claim("changed", "words", 1, where, box, box, 1.0), f"{text} {look}"


def _grounds(image: np.ndarray, cluster: _Cluster) -> set[int]:
    """The colour around a cluster, and that between its pixels: what shows where nothing is."""
    outer = around(cluster.box, 3, image.shape[:2])
    outside = np.ones((outer[3] - outer[1], outer[2] - outer[0]), bool)
    outside[slices_of(shifted_box(cluster.box, -outer[0], -outer[1]))] = False
    parts = [image[slices_of(outer)][outside], image[slices_of(cluster.box)][~cluster.mask]]
    return {main_colour(part).code for part in parts if len(part)}


def _look_claim(canvas: PairCanvas, cluster: _Cluster) -> tuple[Claim, str]:
    """What differs in a cluster without words: a line, a border, a plain background or anything else."""
    box, where, images = cluster.box, cluster.where, (canvas.before, canvas.after)
    parts = [image[slices_of(box)][cluster.mask] for image in images]
    grounds = [_grounds(image, cluster) for image in images]
    first, second = colours = [main_colour(part) for part in parts]
    plain = first.share >= _PLAIN and second.share >= _PLAIN
    was_ground, is_ground = (
        colour.share >= _ALL and colour.code in codes for colour, codes in zip(colours, grounds, strict=True)
    )
    if not plain and was_ground == is_ground:  # a plain area over what was not one, or the other way round
        was_ground, is_ground = second.share >= _ALL, first.share >= _ALL
    region = f"a region of {_measured(box)} {where}"
    thing = "line" if _is_line(box) else "border" if _is_border(cluster.mask) else "region"
    background = plain and _FILLED <= cluster.mask.mean() < 1
    if was_ground == is_ground or background:
        names, change = (names_of(first, second), "changed from {} to {}") if plain else _shades(*parts)
        of = f"the {thing} of " if thing != "region" else "the background of " if background else ""
        return Claim("changed", thing, 1, where, box, box, 1.0, *names), f"{of}{region} {change.format(*names)}"
    present = colours[was_ground]
    colour: str | None = present.name if present.share >= (_PLAIN if thing == "region" else _PLAIN_LINE) else None
    if colour in {Colour(code).name for code in grounds[was_ground]}:
        colour = present.hex  # and not that of what is around it
    if thing != "region":
        clause = f"{region} {'got a' if was_ground else 'lost its'} {f'{colour} ' if colour else ''}{thing}"
    else:
        what = f"{with_article(colour)} area" if colour else "something"
        clause = f"{what} of {_measured(box)} {'appeared' if was_ground else 'is gone'} {where}"
    return _one_sided(was_ground, thing, where, box, 1.0, colour), clause


def _shades(before: np.ndarray, after: np.ndarray) -> tuple[tuple[str | None, str | None], str]:
    """The colours of pixels (N, 3) of many colours before and after, and the clause on them: that of most of them, else
    their mean, else whether it became lighter."""
    names = [colour_of(sampled(pixels).astype(np.float32) / 255) for pixels in (before, after)]
    if names[0] != names[1] and MIXED not in names:
        return (names[0], names[1]), "changed from {} to {}"
    means = [pixels.mean(axis=0, keepdims=True).astype(np.float32) for pixels in (before, after)]
    names = [colour_of(mean / 255) for mean in means]
    if names[0] != names[1]:
        return (names[0], names[1]), "changed, on average from {} to {}"
    lighter = float(means[1].mean() - means[0].mean())
    return (None, None), "changed" if abs(lighter) < _LIGHTER else f"became {'lighter' if lighter > 0 else 'darker'}"


def _one_sided(is_new: bool, name: str, where: str, box: PixelBox, confidence: float, value: str | None) -> Claim:
    """The claim of what one image alone has, with its colour or words."""
    if is_new:
        return Claim("appeared", name, 1, where, None, box, confidence, None, value)
    return Claim("gone", name, 1, where, box, None, confidence, value, None)


def _is_line(box: PixelBox) -> bool:
    left, top, right, bottom = box
    return min(right - left, bottom - top) <= _LINE and max(right - left, bottom - top) >= 3 * _LINE


def _is_border(mask: np.ndarray) -> bool:
    """Whether the pixels are along all four sides, and nowhere else; a broken line is one too."""
    if min(mask.shape) < 3 * _LINE:
        return False
    inside = mask[_LINE:-_LINE, _LINE:-_LINE].sum()
    sides = [strip.any(axis=0) for turned in (mask, mask.T) for strip in (turned[:_LINE], turned[-_LINE:])]
    return bool(inside <= 0.05 * mask.sum() and all(side.mean() >= 0.4 for side in sides))


def _region(box: PixelBox, canvas: PairCanvas, different: np.ndarray) -> Region:
    part = slices_of(box)
    mask = different[part]
    pixels = (sampled(image[part][mask]) for image in (canvas.before, canvas.after))
    names = [colour_of(colours.astype(np.float32) / 255) for colours in pixels]
    share = float(mask.sum() / max(np.prod(canvas.sizes[1]), 1))
    return Region(canvas.on(1, box), share, canvas.where(box), *names)


def _rank(claim: Claim) -> tuple[bool, float]:
    """Readings first, then the largest."""
    is_reading = claim.object in ("row", "words") and claim.kind != "changed"
    return not is_reading, -max(box_area(box) for box in (claim.box_before, claim.box_after) if box is not None)


def _measured(box: PixelBox) -> str:
    return f"{box[2] - box[0]} x {box[3] - box[1]} px"


def _with(words: list[Word]) -> str:
    """The words of a strip, row or area, as the end of its name."""
    text = _quoted(words[:_MOST_QUOTED])
    return f' with the words "{text}{" ..." if len(words) > _MOST_QUOTED else ""}"' if text else ""


def _quoted(words: list[Word]) -> str | None:
    return quoted(word.text for word in words) or None


def _sentence(clauses: list[str], unlisted: int) -> str:
    text = "; ".join(clauses[:_NAMED])
    if not clauses:
        return f"The images differ in {unlisted} parts, which are not listed."
    if more := len(clauses[_NAMED:]) + unlisted:
        text += f"; and {more} more" + (f", of which {unlisted} are not listed" if unlisted else "")
    return f"{text[:1].upper()}{text[1:]}."
