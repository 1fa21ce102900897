"""What moves explain on drawn images: text and boxes at another place, what they bring along or push, rows, and lines
that are further apart.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import cv2
import numpy as np

from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    boxes_overlap,
    pixels_around,
    shifted_box,
    slices_of,
)
from idc.systems.objects.marks import line_height, moved_by
from idc.systems.objects.pixel_changes import Move
from idc.systems.objects.reading import word_key
from idc.systems.objects.recolouring import codes_of, main_colour
from idc.systems.objects.screen_pair import (
    ALL,
    LINE_HEIGHT,
    Element,
    Finding,
    ScreenPair,
    moved_claim,
    one_sided,
    way_of,
)

_ROW = 8
"""Smallest shift, in pixels, that is one by an added or removed row."""
_AROUND = 0.1
"""Share of the pixels around a part that have its colour where it is one of something larger."""
_ROW_WIDTH, _ROW_HEIGHT = 0.05, 0.25
"""Width and height of what a row has at least, as shares of the width of what moved below it, and of the shift."""
_EVEN = 0.6
"""Share of the pixels that have the colour of the ground or edge that grew."""
_MOST_LINES, _ROUNDED, _LEAST_STEP = 12, 0.75, 1.5
"""Number of lines of a text of which the spacing is recognised by their moves, which are rounded by so many pixels; the
smallest difference of their spacing, in pixels."""
_CORNER = 24
"""Largest side, in pixels, of what is left at the corners of a box that grew."""
_MOST_MARKS, _STRAIGHT = 30, 2
"""Lines of text that are sought at other positions, and the pixels from a straight way across or down."""
_RENDERED = 0.9
"""Correlation of two renderings of the same content, blurred."""
_TRACE = 6
"""Pixels that a move may leave at its edges."""


def moved_words(pair: ScreenPair, findings: list[Finding]) -> list[Finding]:
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


def moved_marks(pair: ScreenPair, elements: list[Element]) -> tuple[list[Move], list[Element]]:
    """The same marks in different elements, as moves, and the elements that are nothing else."""
    lines = [(element, pair.marks(element)) for element in elements if pair.is_marks(element)][:_MOST_MARKS]
    lines = [(element, sides) for element, sides in lines
             if sides[0] is None or sides[1] is None or moved_by(sides[0], sides[1]) is None]  # fmt: skip
    lines.sort(key=lambda line: line[0].box[:2])
    moves: list[Move] = []
    done: tuple[set[Element], set[Element]] = set(), set()
    for (element, (first, _)), (other, (_, second)) in product(lines, lines):
        if first is None or second is None or element == other or element in done[0] or other in done[1]:
            continue
        way = moved_by(first, second)
        if way is not None and min(map(abs, way)) <= _STRAIGHT:  # the same words of a table are at other cells too
            moves.append(move_of(first.box, second.box))
            done[0].add(element)
            done[1].add(other)
    wholes = [element for element, sides in lines if all(
        marks is None or element in each for marks, each in zip(sides, done, strict=True)
    )]  # fmt: skip
    return moves, [element for element in wholes if element in done[0] | done[1]]


def move_of(before: PixelBox, after: PixelBox) -> Move:
    dx, dy = np.subtract(after[:2], before[:2]).tolist()
    return Move((dx, dy), before, after)


def is_move(finding: Finding) -> bool:
    return finding.claim.kind == "moved" and finding.claim.object == "region"


def follows_from(pair: ScreenPair, element: Element, move: Move) -> bool:
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


def with_moves(pair: ScreenPair, findings: list[Finding], moves: list[Move]) -> list[Finding]:
    """The findings with those on what moved: lines of a text that are further apart, what follows a row or another
    change, or what moved by itself."""
    canvas, left = pair.canvas, list(moves)
    if (spread := _line_height(pair, left)) is not None:
        finding, lines = spread
        left = [move for move in left if move not in lines]
        findings = [each for each in findings if not _is_within(each, finding)] + [finding]
    swapped = [(move, other) for at, move in enumerate(left) for other in left[at + 1 :] if _are_swapped(move, other)]
    for move, other in swapped:
        left = [each for each in left if each not in (move, other)]
        claim = replace(moved_claim(move.before, move.after, canvas), aspect="order")
        findings.append(Finding(claim, f"{{}} and {pair.name(other.after, 1)} changed places"))
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


def _are_swapped(move: Move, other: Move) -> bool:
    """Whether both came to where the other one was, along one line."""
    straight = min(np.abs(np.concatenate([move.by, other.by])).reshape(2, 2).max(axis=0)) <= _STRAIGHT
    return bool(
        straight and boxes_overlap(move.after, other.before) and boxes_overlap(other.after, move.before)
        and not boxes_overlap(move.before, move.after) and not boxes_overlap(other.before, other.after)
    )  # fmt: skip


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
            if (
                abs(step) < _LEAST_STEP
                or abs(expected[0]) < 0.5
                or min(abs(move.by[1] - expected[0]) for move in lines) > _ROUNDED
            ):
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
