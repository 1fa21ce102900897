"""Screens and documents: images that are drawn, of any sizes. Nothing is stretched and no light is evened out: what one
image alone has is a strip, colours may have changed everywhere, every cluster of different pixels is a region, and
content that moved is said to have moved.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import product

import cv2
import numpy as np

from idc.captioning.contract import Candidate, Claim, Description, Region
from idc.captioning.counts import Counts, counted, left_out_sentence
from idc.systems.objects.canvas import ExtraStrip, PairCanvas
from idc.systems.objects.explanations import CAUSES, block, explained, faded, faded_together
from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    box_area,
    boxes_overlap,
    pixels_around,
    shifted_box,
    slices_of,
)
from idc.systems.objects.known_words import KnownReader, KnownWords
from idc.systems.objects.marks import line_height, moved_by
from idc.systems.objects.outlines import changed_outlines
from idc.systems.objects.pixel_changes import Move, clusters_of, different_pixels, largest_channel, unmoved_pixels
from idc.systems.objects.reading import WordReader, word_key
from idc.systems.objects.recolouring import RecolouredPixels, codes_of, main_colour, names_of, same_colour
from idc.systems.objects.screen_pair import (
    ALL,
    LINE_HEIGHT,
    MOST_QUOTED,
    Element,
    Finding,
    ScreenPair,
    measured,
    moved_claim,
    one_sided,
    quoted_words,
    way_of,
    with_words,
)
from idc.systems.objects.wording import colour_of, sampled, where_of, with_article

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
_ROW = 8
"""Smallest shift, in pixels, that is one by an added or removed row."""
_AROUND = 0.1
"""Share of the pixels around a part that have its colour where it is one of something larger."""
_ROW_WIDTH, _ROW_HEIGHT = 0.05, 0.25
"""Width and height of what a row has at least, as shares of the width of what moved below it, and of the shift."""
_EVEN = 0.6
"""Share of the pixels that have the colour of the ground or edge that grew."""
_MOST_LINES, _ROUNDED = 12, 0.75
"""Number of lines of a text of which the spacing is recognised by their moves, which are rounded by so many pixels."""
_CORNER = 24
"""Largest side, in pixels, of what is left at the corners of a box that grew."""
_MOST_MARKS = 30
"""Lines of text that are sought at other positions."""
_RENDERED = 0.9
"""Correlation of two renderings of the same content, blurred."""
_TRACE = 6
"""Pixels that a move may leave at its edges."""


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
    different = different_pixels(repainted.before, canvas.after, canvas.pixels)
    reader = WordReader(read_text) if texts is None else KnownReader(texts.stayed, canvas)
    said = [_strip_claim((before, after)[strip.side], strip, reader) for strip in canvas.strips[:_MOST_LISTED]]
    outlined, at_outlines = changed_outlines(canvas, different, reader)
    unmoved, moves, accounted = unmoved_pixels(repainted.before, canvas.after, different & ~at_outlines)
    labels, boxes = clusters_of(unmoved)
    pair = ScreenPair(canvas, different, labels, accounted, moves, reader)
    elements = [
        element for element in pair.elements(boxes) if not any(_follows_from(pair, element, move) for move in moves)
    ]
    elements.sort(key=lambda element: -box_area(element.box))
    described, listed = _findings(pair, elements[:_MOST_LISTED], moves, outlined, started + _SECONDS)
    changes = _recolouring_claims(canvas) + described
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
    findings, shown = dict(placed), [entry for entry in said if entry[1] and entry[0] not in left_out]
    clauses = [_with_name(pair, findings.get(claim), clause) for claim, clause in shown[:_NAMED]]
    clauses += [clause for _, clause in shown[_NAMED:]]
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
    carried, moved = _moved_marks(pair, [element for element in elements if element not in done])
    done.update(moved)
    for group in _blocks(pair, [element for element in elements if element not in done]):
        if len(group) > 1 and time.thread_time() < deadline and (explanation := block(pair, group)) is not None:
            findings += explanation
            done.update(group)
    for element in elements:
        if element not in done and time.thread_time() < deadline:
            findings += explained(pair, element)
            done.add(element)
    findings = _moved_words(pair, [*findings, *faded_together(pair, fades)])
    # What was rendered in another way, by a part of a pixel, moved as well.
    boxes = [(each.claim.box_before, each.claim.box_after) for each in findings if _is_move(each)]
    carried += [_move_of(before, after) for before, after in boxes if before and after]
    findings = [each for each in findings if not _is_move(each)]
    return _with_moves(pair, findings, [*moves, *carried]), len(done)


def _is_move(finding: Finding) -> bool:
    return finding.claim.kind == "moved" and finding.claim.object == "region"


def _move_of(before: PixelBox, after: PixelBox) -> Move:
    dx, dy = np.subtract(after[:2], before[:2]).tolist()
    return Move((dx, dy), before, after)


def _moved_marks(pair: ScreenPair, elements: list[Element]) -> tuple[list[Move], list[Element]]:
    """The same marks in different elements, as moves, and the elements that are nothing else."""
    lines = [(element, pair.marks(element)) for element in elements if pair.is_marks(element)][:_MOST_MARKS]
    lines = [(element, (first, second)) for element, (first, second) in lines
             if first is None or second is None or moved_by(first, second) is None]  # fmt: skip
    lines.sort(key=lambda line: line[0].box[:2])
    moves: list[Move] = []
    done: tuple[set[Element], set[Element]] = set(), set()
    for (element, (first, _)), (other, (_, second)) in product(lines, lines):
        if first is None or second is None or element == other or element in done[0] or other in done[1]:
            continue
        if moved_by(first, second) is not None:
            moves.append(_move_of(first.box, second.box))
            done[0].add(element)
            done[1].add(other)
    wholes = [element for element, sides in lines if all(
        marks is None or element in each for marks, each in zip(sides, done, strict=True)
    )]  # fmt: skip
    return moves, [element for element in wholes if element in done[0] | done[1]]


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


def _moved_words(pair: ScreenPair, findings: list[Finding]) -> list[Finding]:
    """Words that are gone at one position, and are now at another one, moved."""
    gone, new = ([each for each in findings if each.claim.kind == kind and each.claim.object == "words"]
                 for kind in ("gone", "appeared"))  # fmt: skip
    for old, other in product(gone, new):
        if (
            old in findings
            and other in findings
            and word_key(old.claim.before or "") == word_key(other.claim.after or "")
        ):
            assert old.claim.box_before is not None
            assert other.claim.box_after is not None
            claim = moved_claim(old.claim.box_before, other.claim.box_after, pair.canvas, "words")
            by = np.subtract(other.claim.box_after[:2], old.claim.box_before[:2]).tolist()
            findings = [each for each in findings if each not in (old, other)]
            findings.append(Finding(claim, f'the words "{other.claim.after}" {claim.where} {way_of(*by)}'))
    return findings


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
        groups.setdefault(names_of(colour.before, colour.after), []).append(colour)
    claims = []
    for names, colours in groups.items():
        share = sum(colour.pixels for colour in colours) / canvas.pixels
        box = around_all([colour.box for colour in colours])
        clause = f"what was {names[0]}, {100 * share:.0f} % of the picture, became {names[1]}"
        if share >= _WHOLE:
            clause = f"the whole picture changed from {names[0]} to {names[1]}"
        if share >= _SAID and not same_colour(colours[0].before, colours[0].after):
            claim = Claim("changed", "region", 1, canvas.where(box), box, box, 1.0, *names, "colour")
            claims.append(Finding(claim, clause))
    return claims


def _follows_from(pair: ScreenPair, element: Element, move: Move) -> bool:
    """Whether an element is what a move leaves at its edges, or brings along: of what entered or left the picture, or
    of the edge and ground of a box that grew by as much."""
    box, (dx, dy) = element.box, move.by
    moved = around_all([move.before, move.after])
    reach = (abs(dx) + _TRACE, abs(dy) + _TRACE)
    near = (moved[0] - reach[0], moved[1] - reach[1], moved[2] + reach[0], moved[3] + reach[1])
    if not boxes_overlap(near, box):
        return False
    if np.isin(pair.labels[slices_of(box)], element.numbers).sum() <= _TRACE:
        return any(boxes_overlap(around(box, 2, (1 << 20, 1 << 20)), each) for each in (move.before, move.after))
    if _came_along(pair, element, move):
        return True
    if pair.stands_alone(element):
        return False
    height, width = pair.labels.shape
    for size, end, length, low, high in (
        (box[2] - box[0], width, dx, box[0], box[2]),
        (box[3] - box[1], height, dy, box[1], box[3]),
    ):
        if length and size <= abs(length) + _TRACE:
            if max(box[2] - box[0], box[3] - box[1]) <= _CORNER * pair.scale:
                return True
            grounds = [_continues(image, box, pair.mask(element)) for image in pair.images]
            if all(grounds) or (min(low, end - high) <= abs(length) and False not in grounds):
                return True
    return False


def _came_along(pair: ScreenPair, element: Element, move: Move) -> bool:
    """Whether what is in the box of an element on either image is plain, or is at the distance of a move on the other
    one but for another rendering."""
    seen = False
    for side, sign in ((0, 1), (1, -1)):
        part = pair.images[side][slices_of(element.box)]
        if main_colour(part.reshape(-1, 3)).share >= ALL:
            continue
        there = pair.images[1 - side][
            slices_of(around(shifted_box(element.box, *np.multiply(sign, move.by)), 1, pair.labels.shape))
        ]
        if min(np.subtract(there.shape[:2], part.shape[:2])) < 0:
            return False
        first, second = (cv2.GaussianBlur(each, (5, 5), 0) for each in (there, part))
        if cv2.matchTemplate(first, second, cv2.TM_CCOEFF_NORMED).max() < _RENDERED:
            return False
        seen = True
    return seen


def _continues(image: np.ndarray, box: PixelBox, mask: np.ndarray) -> bool | None:
    """Whether most of a part has a colour that is around it too; None if it has no such colour."""
    colour = main_colour(image[slices_of(box)][mask])
    around_it = codes_of(pixels_around(image, box, 2)[None]) == colour.code
    return None if colour.share < _EVEN else bool(around_it.mean() >= _AROUND)


def _is_row(box: PixelBox, move: Move) -> bool:
    """Whether a box is in the band by which everything below moved."""
    dx, dy = move.by
    if dx or abs(dy) < _ROW:
        return False
    bottom = max(move.before[1], move.after[1])
    if box[2] - box[0] < _ROW_WIDTH * (move.after[2] - move.after[0]) or box[3] - box[1] < _ROW_HEIGHT * abs(dy):
        return False
    return box[1] >= bottom - abs(dy) - 4 and box[3] <= bottom + 4 and box[0] < move.after[2] and move.after[0] < box[2]


def _with_moves(pair: ScreenPair, findings: list[Finding], moves: list[Move]) -> list[Finding]:
    """The findings with those on what moved: lines of a text that are further apart, what follows a row or another
    change, or what moved by itself."""
    canvas, left = pair.canvas, list(moves)
    if (spread := _line_height(pair, left)) is not None:
        finding, lines = spread
        left = [move for move in left if move not in lines]
        findings = [each for each in findings if not _is_within(each, finding)] + [finding]
    for move in left:
        dx, dy = np.subtract(canvas.on(1, move.after)[:2], canvas.on(0, move.before)[:2]).tolist()
        claim = moved_claim(move.before, move.after, canvas)
        way, follows = way_of(dx, dy), _follows(pair, move)
        row = [each for each in findings if each.claim.kind in ("gone", "appeared") and follows
               and _is_row(each.claim.box_after or each.claim.box_before or move.after, move)]  # fmt: skip
        cause = next((each for each in findings if _pushes(each, move)), None)
        if row:
            findings = [each for each in findings if each not in row]
            findings += [_row_finding(pair, row, dy > 0, way), Finding(claim, "")]
        elif cause is not None:
            if ", and what " not in cause.clause:
                at = findings.index(cause)
                rest = "what is next to it" if dx else "what follows"
                findings[at] = cause._replace(clause=f"{cause.clause}, and {rest} {way}")
            findings.append(Finding(claim, ""))
        elif follows and not dx:
            more = "more" if (dy > 0) else "less"
            clause = f"there is {more} space above {{}}, which {way} with what follows"
            findings.append(Finding(replace(claim, aspect="spacing"), clause))
        else:
            findings.append(Finding(claim, f"{{}} {way}"))
    return findings


def _row_finding(pair: ScreenPair, row: list[Finding], is_new: bool, way: str) -> Finding:
    boxes = [each.claim.box_after or each.claim.box_before for each in row]
    box = around_all([each for each in boxes if each is not None])
    where = pair.canvas.where(box)
    ordered = sorted(row, key=lambda each: (each.claim.box_after or each.claim.box_before or (0,))[0])
    text = " ".join(str(each.claim.after or each.claim.before) for each in ordered if each.claim.object == "words")
    confidence = min(each.claim.confidence for each in row)
    words = f' with the words "{text}"' if text else ""
    clause = f"a row{words} was {'added' if is_new else 'removed'} {where}, and everything below {way}"
    return Finding(one_sided(is_new, "row", where, box, confidence, text or None), clause)


def _follows(pair: ScreenPair, move: Move) -> bool:
    """Whether everything below the top of what moved, down to the end of it and beyond, moved with it."""
    top, bottom = min(move.before[1], move.after[1]), max(move.before[3], move.after[3])
    left, right = min(move.before[0], move.after[0]), max(move.before[2], move.after[2])
    below = [image[bottom + _TRACE :, left:right] for image in pair.images]
    return bool(top < bottom and all(part.size == 0 or (part == part[:1, :1]).all() for part in below))


def _pushes(finding: Finding, move: Move) -> bool:
    """Whether a change of a text or of what is there moved something below it or next to it."""
    box = finding.claim.box_after or finding.claim.box_before
    if (
        box is None
        or not finding.clause
        or finding.claim.kind == "moved"
        or finding.claim.aspect in ("colour", "opacity", "corners", "background")
    ):
        return False
    below = move.after[1] >= box[1] - 5 and boxes_overlap((box[0], 0, box[2], 1), (move.after[0], 0, move.after[2], 1))
    beside = boxes_overlap((0, box[1], 1, box[3]), (0, move.after[1], 1, move.after[3]))
    return below or beside


def _line_height(pair: ScreenPair, moves: list[Move]) -> tuple[Finding, list[Move]] | None:
    """The finding on a text whose lines are further apart, or closer together, and the moves of its lines: of n lines
    the k-th one moves by k - 1/2 times what each line grew, and what follows by n times."""
    vertical = [move for move in moves if not move.by[0]]
    for rest in sorted(vertical, key=lambda move: -abs(move.by[1])):
        lines = [move for move in vertical if 0 < move.by[1] / rest.by[1] < 1 and _is_above(move, rest)]
        steps = [
            (count, parts, rest.by[1] / parts) for count in range(2, _MOST_LINES + 1) for parts in (count, count - 0.5)
        ]
        for count, parts, step in steps if lines else ():
            expected = [(number + 0.5) * step for number in range(count)]
            if abs(expected[0]) < 0.5 or min(abs(move.by[1] - expected[0]) for move in lines) > _ROUNDED:
                continue
            if all(min(abs(move.by[1] - each) for each in expected) <= _ROUNDED for move in lines):
                if parts < count:  # the last line; nothing follows
                    if rest.after[3] - rest.after[1] > LINE_HEIGHT * pair.scale:
                        continue
                    lines.append(rest)
                boxes = [around_all([getattr(move, side) for move in lines]) for side in ("before", "after")]
                claim = moved_claim(boxes[0], boxes[1], pair.canvas, "words")
                spacing = line_height(step)
                claim = replace(claim, kind="changed", aspect=spacing.aspect, amount=spacing.amount, unit=spacing.unit)
                return Finding(claim, f"{{}} {spacing.change}"), lines
    return None


def _is_above(move: Move, other: Move) -> bool:
    spans = ((each.before[0], 0, each.before[2], 1) for each in (move, other))
    return move.before[1] <= other.before[1] and boxes_overlap(*spans)


def _is_within(finding: Finding, other: Finding) -> bool:
    """Whether a finding on words, or on how they look, is in the text of another one."""
    box, text = (claim.box_after or claim.box_before for claim in (finding.claim, other.claim))
    assert box is not None
    assert text is not None
    return boxes_overlap(box, text) and finding.claim.aspect in ("words", "look", "colour", "visibility", "position")


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
    return f"{text[:1].upper()}{text[1:]}."
