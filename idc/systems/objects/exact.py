"""Screens and documents: images that are drawn, of any sizes. Nothing is stretched and no light is evened out: what one
image alone has is a strip, colours may have changed everywhere, every cluster of different pixels is a region, and
content that moved is said to have moved.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import cv2
import numpy as np

from idc.captioning.contract import Candidate, Claim, Description, Region
from idc.captioning.counts import Counts, counted, left_out_sentence
from idc.systems.objects.canvas import ExtraStrip, PairCanvas
from idc.systems.objects.consequences import follows_from, is_move, move_of, moved_marks, moved_words, with_moves
from idc.systems.objects.explanations import CAUSES, block, explained, faded, faded_together
from idc.systems.objects.geometry import PixelBox, around, around_all, box_area, boxes_overlap, slices_of
from idc.systems.objects.known_words import KnownReader, KnownWords
from idc.systems.objects.outlines import changed_outlines
from idc.systems.objects.pages import page_claim, share_little
from idc.systems.objects.pixel_changes import Move, clusters_of, different_pixels, largest_channel, unmoved_pixels
from idc.systems.objects.reading import WordReader
from idc.systems.objects.recolouring import RecolouredPixels, codes_of, main_colour, names_of, same_colour
from idc.systems.objects.screen_pair import (
    MOST_QUOTED,
    Element,
    Finding,
    ScreenPair,
    measured,
    one_sided,
    own_clause,
    quoted_words,
    with_words,
)
from idc.systems.objects.wording import as_sentence, colour_of, sampled, where_of, with_article

IDENTICAL = "The two images are identical."
ONLY_RENDERING = "No visible change: the images are the same up to anti-aliasing and compression."
_SAID, _WHOLE = 0.01, 0.95
"""Shares of the picture from which another colour is said, and is that of the whole."""
_STRIPS = "row", "column"
"""What a strip of rows or columns is called in claims."""
_PLAIN_STRIP = 0.995
"""Share of a strip's pixels from which it has the colour."""
_NAMED = 3
"""Number of claims that the sentence says."""
_MOST_LISTED = 200
"""Clusters that are described, the largest first; the others are counted."""
_SECONDS = 6.0
"""Computing time of a pair after which no further cluster is described."""


def exact_changes(
    before: np.ndarray,
    after: np.ndarray,
    canvas: PairCanvas,
    read_text: bool = True,
    counts: Counts | None = None,
    texts: KnownWords | None = None,
    whole: bool = True,
) -> Description:
    """Compare two images of any sizes pixel by pixel.

    Args:
        canvas: of these images, :func:`~idc.systems.objects.canvas.canvas_of`.
        read_text: whether words are read, by the extra ``text``.
        counts: what counts as a change.
        texts: the words, which are then not read.
        whole: whether the images count everywhere, so that they may be two pages.

    Returns:
        The most telling claims first, and the largest of the regions, parts of the image after that differ; the change
        map is 0 where the pixels are equal or differ as two renderings do.
    """
    started = time.thread_time()
    repainted = canvas.repainted
    different = different_pixels(repainted.before, canvas.after, canvas.pixels)
    reader = WordReader(read_text, canvas.one_sided) if texts is None else KnownReader(texts.stayed, canvas)
    said = [_strip_claim((before, after)[strip.side], strip, reader) for strip in canvas.strips[:_MOST_LISTED]]
    outlined, at_outlines = changed_outlines(canvas, different, reader)
    unmoved, moves, accounted = unmoved_pixels(repainted.before, canvas.after, different & ~at_outlines)
    page = None
    if whole and texts is None and read_text and share_little(before, after, canvas, unmoved):
        page = page_claim(before, after)
    if page is not None:
        said, unmoved, moves, outlined = [page], np.zeros_like(unmoved), [], []
    labels, boxes = clusters_of(unmoved)
    pair = ScreenPair(canvas, different, labels, accounted, moves, reader)
    elements = [
        element for element in pair.elements(boxes) if not any(follows_from(pair, element, move) for move in moves)
    ]
    elements.sort(key=lambda element: -box_area(element.box))
    described, listed = _findings(pair, elements[:_MOST_LISTED], moves, outlined, started + _SECONDS)
    changes = [] if page else _recolouring_claims(canvas) + described
    changes.sort(key=lambda finding: _rank(finding.claim))
    placed = [(_on_images(finding.claim, canvas), finding) for finding in changes]
    said += [(claim, finding.clause) for claim, finding in placed]
    said += texts.changed if texts else []
    said.sort(key=lambda entry: _rank(entry[0]))
    said += texts.moved if texts else []
    claims, left_out = counted([claim for claim, _ in said], counts, after.shape, drawn=True)
    boxes = [colour.box for colour in repainted.colours] + [element.box for element in elements[:listed]]
    boxes += [move.after for move in moves]
    if said:
        different |= codes_of(repainted.before) != codes_of(canvas.before)
    regions = [_region(box, canvas, different) for box in boxes if different[slices_of(box)].any()]
    # The faintest difference is to be seen on a map.
    distance = largest_channel(cv2.absdiff(canvas.before, canvas.after)) / np.float32(255)
    change_map = canvas.over_after(np.where(different, 0.25 + 0.75 * distance, 0))
    for claim, _ in texts.changed if texts else ():
        change_map[slices_of(claim.box_after or claim.box_before or (0, 0, 0, 0))] = 1
    findings, shown = dict(placed), [entry for entry in said if entry[0] not in left_out]
    if left_out and not any(", and " in clause or " with the words " in clause for _, clause in shown):
        shown = [(claim, clause or own_clause(claim)) for claim, clause in shown]  # else said with its cause
    shown = [entry for entry in shown if entry[1]]
    clauses = [_with_name(pair, findings.get(claim), clause) for claim, clause in shown[:_NAMED]]
    clauses += [clause.replace("{}", f"the part {claim.where}") for claim, clause in shown[_NAMED:]]
    texts_of = {claim: as_sentence(clause) for (claim, _), clause in zip(shown, clauses, strict=True)}
    claims = [replace(claim, text=texts_of.get(claim)) for claim in claims]
    sentence = _sentence(clauses, len(elements) - listed)
    if left_out:
        rest = left_out_sentence(left_out, [], counts, drawn=True)
        sentence = f"{sentence if claims else 'Nothing that counts changed.'} {rest}"
    if not said and not left_out and not len(elements) - listed:
        different[:] = False
        sentence = IDENTICAL if not distance.any() else ONLY_RENDERING
    if reader.skipped:
        sentence += f" Not all words were read ({reader.skipped} part{'s' * (reader.skipped > 1)})."
    if canvas.left_out:
        sentence += f" {canvas.left_out} more rows of pixels differ, and were not compared."
    doubt = None
    if listed < min(len(elements), _MOST_LISTED):
        doubt = f"the comparison was ended after {_SECONDS:g} s, before all parts that differ were described"
    elif left_out and not claims and (len(elements) > listed or reader.skipped):
        doubt = "not all parts that differ were read"
    confidence = min((claim.confidence for claim in claims), default=1.0)
    return Description(
        (Candidate(sentence, math.log(confidence)),),
        change_map=change_map,
        regions=tuple(sorted(regions, key=lambda region: -region.share)),
        claims=tuple(claims), objects_text=sentence, doubt=doubt,
    )  # fmt: skip


def _findings(
    pair: ScreenPair, elements: list[Element], moves: list[Move], outlined: list[Finding], deadline: float
) -> tuple[list[Finding], int]:
    """What explains the elements, the largest first, and the moves, after what was found on outlines; and how many
    elements were looked at until the deadline (:func:`time.thread_time`)."""
    findings = list(outlined)
    fades: list[tuple[Element, Finding]] = []
    done: set[Element] = set()
    for element in elements:
        if element not in done and time.thread_time() < deadline and (fade := faded(pair, element)) is not None:
            fades.append((element, fade))
            done.add(element)
    carried, moved = moved_marks(pair, [element for element in elements if element not in done])
    done.update(moved)
    for group in _blocks(pair, [element for element in elements if element not in done]):
        if len(group) > 1 and time.thread_time() < deadline and (explanation := block(pair, group)) is not None:
            findings += explanation
            done.update(group)
    for element in elements:
        if element not in done and time.thread_time() < deadline:
            findings += explained(pair, element)
            done.add(element)
    findings = moved_words(pair, [*findings, *faded_together(pair, fades)])
    # What was rendered in another way, by a part of a pixel, moved as well.
    boxes = [(each.claim.box_before, each.claim.box_after) for each in findings if is_move(each)]
    carried += [move_of(before, after) for before, after in boxes if before and after]
    findings = [each for each in findings if not is_move(each)]
    return with_moves(pair, findings, [*moves, *carried]), len(done)


def _blocks(pair: ScreenPair, elements: list[Element]) -> list[list[Element]]:
    """Lines of marks, one below the other or next to each other, of one text."""
    blocks: list[list[Element]] = []
    marks = [each for each in elements if pair.is_marks(each)]
    for element in sorted(marks, key=lambda each: (each.box[1], each.box[0])):
        height = element.box[3] - element.box[1]
        near = around(element.box, 0, pair.labels.shape)
        near = (near[0] - height, near[1] - round(1.6 * height), near[2] + height, near[3])
        touching = [group for group in blocks if any(boxes_overlap(near, other.box) for other in group)]
        merged = [other for group in touching for other in group] + [element]
        blocks = [group for group in blocks if group not in touching] + [merged]
    return blocks


def _on_images(claim: Claim, canvas: PairCanvas) -> Claim:
    """A claim with boxes of the canvas, with those of the images."""
    boxes = (claim.box_before, claim.box_after)
    first, second = (None if box is None else canvas.on(side, box) for side, box in enumerate(boxes))
    return replace(claim, box_before=first, box_after=second)


def _strip_claim(image: np.ndarray, strip: ExtraStrip, reader: WordReader) -> tuple[Claim, str]:
    """Rows or columns that one image alone has."""
    box, is_new = strip.box, bool(strip.side)
    colour = main_colour(image[slices_of(box)].reshape(-1, 3))
    part = image[slices_of(box)]  # alone: words that its edges cut are not quoted
    [words] = reader.words([part], (0, 0, *part.shape[1::-1]), lambda area: True) if colour.share < 1 else [[]]
    where = where_of(box, image.shape[:2])
    if box[strip.axis == 0] == 0:
        where = "on the left" if strip.axis else "at the top"
    elif box[3 - strip.axis] == image.shape[strip.axis]:
        where = "on the right" if strip.axis else "at the bottom"
    look = f"{colour.name} " if colour.share >= _PLAIN_STRIP else ""
    clause = f"{with_article(f'{look}strip')} of {measured(box)}{with_words(words)}"
    clause += f" was {'added' if is_new else 'removed'} {where}"
    if strip.moved:
        rest, way = ("to the right", ("left", "right")) if strip.axis else ("below", ("up", "down"))
        clause += f", and everything {rest} moved {way[is_new]} by {strip.moved} px"
    confidence = min((word.confidence for word in words), default=1.0)
    text = quoted_words(words[:MOST_QUOTED])
    return one_sided(is_new, _STRIPS[strip.axis], where, box, confidence, text), clause


def _recolouring_claims(canvas: PairCanvas) -> list[Finding]:
    """What became another colour wherever it was."""
    groups: dict[tuple[str, str], list[RecolouredPixels]] = {}
    for colour in canvas.repainted.colours:
        if not same_colour(colour.before, colour.after):
            groups.setdefault((colour.before.name, colour.after.name), []).append(colour)
    claims = []
    for names, colours in groups.items():
        if names[0] == names[1]:
            names = names_of(*colours[0][:2]) if len(colours) == 1 else (names[0], f"another {names[0]}")
        share = sum(colour.pixels for colour in colours) / canvas.pixels
        box = around_all([colour.box for colour in colours])
        clause = f"what was {names[0]}, {100 * share:.0f} % of the picture, became {names[1]}"
        if share >= _WHOLE:
            clause = f"the whole picture changed from {names[0]} to {names[1]}"
        if share >= _SAID:
            claim = Claim("changed", "region", 1, canvas.where(box), box, box, 1.0, *names, "colour")
            claims.append(Finding(claim, clause))
    return claims


def _region(box: PixelBox, canvas: PairCanvas, different: np.ndarray) -> Region:
    part = slices_of(box)
    mask = different[part]
    pixels = (sampled(image[part][mask]) for image in (canvas.before, canvas.after))
    names = [colour_of(colours.astype(np.float32) / 255) for colours in pixels]
    share = float(mask.sum() / max(np.prod(canvas.sizes[1]), 1))
    return Region(canvas.on(1, box), share, canvas.where(box), *names)


def _rank(claim: Claim) -> tuple[bool, bool, bool, float]:
    """What moves its surroundings first, then readings, moves last, and the largest of each."""
    is_reading = claim.object in ("row", "words") and claim.kind != "changed"
    is_cause = claim.aspect in CAUSES
    return (
        claim.kind == "moved",
        not is_cause,
        not is_reading,
        -max(box_area(box) for box in (claim.box_before, claim.box_after) if box is not None),
    )


def _with_name(pair: ScreenPair, finding: Finding | None, clause: str) -> str:
    """A clause with the name of its element, which is read for it."""
    if finding is None or "{}" not in clause:
        return clause
    side, box = (1, finding.claim.box_after) if finding.claim.box_after else (0, finding.claim.box_before)
    assert box is not None
    return clause.replace("{}", pair.name(box, side, finding.claim.object == "words"))


def _sentence(clauses: list[str], unlisted: int) -> str:
    text = "; ".join(clauses[:_NAMED])
    if not clauses:
        return f"The images differ in {unlisted} parts, which are not listed."
    if more := len(clauses[_NAMED:]) + unlisted:
        text += f"; and {more} more" + (f", of which {unlisted} are not listed" if unlisted else "")
    return as_sentence(text)
