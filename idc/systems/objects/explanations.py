"""What explains a part of two drawn images that differs: a border, rounder corners, another fill, fainter or other
colours, the same marks moved or in another size, weight or spacing, other words. Each is tested by undoing it, and
the simplest one that leaves nothing is said.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import product
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Claim, ClaimKind
from idc.systems.objects.canvas import PairCanvas
from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    bounds_of,
    boxes_overlap,
    shifted_box,
    slices_of,
)
from idc.systems.objects.marks import Explanation, Marks, differing_lines, marks_of, moved_by, runs_of, same_letters, same_marks, typographic
from idc.systems.objects.pixel_changes import Move
from idc.systems.objects.reading import DrawnWords, Word, WordReader
from idc.systems.objects.recolouring import Colour, main_colour, names_of
from idc.systems.objects.wording import MIXED, colour_of, quoted, sampled, with_article, words_clause

CAUSES = ("font size", "font weight", "letter spacing", "line height")
"""Aspects of texts after which their words may be on other lines, and what follows elsewhere."""
MOST_QUOTED = 12
"""Words of a strip, row or area that are quoted."""
_NAMING = 8
"""Words by which an element is named."""
_LINE = 4
"""Largest thickness of a line, and of a border, in pixels; twice and three times that on screens of a larger scale."""
LINE_HEIGHT = 80
"""Largest height of a line of text, in pixels."""
_PLAIN = 0.6
"""Share of a cluster's pixels that must have a colour for it to be that of the cluster."""
_PLAIN_LINE = 0.2
"""The same of a line or border, which may be blended with its ground."""
_ROUNDING = 2
"""Levels in 255 by which colours differ that were converted in another way."""
_DASHES = 0.4
"""Share of a side that has a border's colour, even if it is broken."""
_STROKE = 16
"""Levels by which a border differs from what is around it."""
_LIGHTER = 8
"""Grey levels by which parts of many colours became lighter or darker."""
_FILLED = 0.7
"""Share of a box that differs where the ground behind its content does."""
_ALL = 0.9
"""Share of a cluster's pixels that must have the colour around it for nothing to be there."""
_UNDONE = 0.12
"""Share of a difference that may be left where it is undone by blending with the ground."""
_ONE_COLOUR = 0.15
"""Second singular value of the distances from the ground, as a share of the first, of marks of one colour."""
_SAME_FADE = 0.04
"""Differences of opacity that are one."""
_MOST_READ = 400
"""Pixels from the top of a text that are read to compare it."""
_LETTERS = 3
"""Letters by which a text is recognised, or another one."""
_MIRRORED = 0.6
"""Intersection over union of the four corners of a box, one upon the other."""
_GAP, _MOST_PARTS = 4, 12
"""Empty rows between two parts of an element (a third of the columns), and the number of parts."""
_ELSEWHERE, _REACH, _MOST_SOUGHT = 0.88, 160, 24
"""Correlation of a word with its copy on the other image, the rows up and down in which it is sought, and the number of
words that are."""
_OVERLAID = 0.95
"""Share of its marks that are still there where other content is over it, or under it."""
_MOVED_AWAY = 0.3
"""Share of an element's pixels on one image below which what is there moved."""
_SMALLEST_WORD, _COPIES = 6, 4
"""Shortest side of a word that is sought elsewhere, and the number of its copies that are looked at."""
_MOST_CORNERS, _SMALLEST_CORNER, _EMPTY_CORNER = 40, 2, 0.2
"""Elements among which corners are looked for; pixels of the smallest one, and the share of its inner part that differs
at most: what is cut off is at the edges."""
_BUTTON = 72, 400, 4
"""Largest height and width of a button, in pixels, and number of its words."""


class Element(NamedTuple):
    """Different pixels near each other: their box, their numbers among the labels of all clusters, and their position
    in words."""

    box: PixelBox
    numbers: tuple[int, ...]
    where: str


class Finding(NamedTuple):
    """A claim with boxes of the canvas, and its clause; ``{}`` in it stands for the element, which is named if it is
    said. ``opacity``: the remaining one, if it explains the difference."""

    claim: Claim
    clause: str
    opacity: float | None = None


class ScreenPair:
    """Both images on their canvas with the labels (H, W) of the clusters that differ, and what is still read of them.
    ``sides``: the labels without what came from, or went to, another place, on the image before and after.
    ``different``: whether each pixel differs, even if it only moved."""

    def __init__(
        self, canvas: PairCanvas, different: np.ndarray, labels: np.ndarray, explained: tuple[np.ndarray, np.ndarray],
        moves: Sequence[Move], reader: WordReader,
    ) -> None:  # fmt: skip
        self.canvas, self.different, self.labels, self.reader = canvas, different, labels, reader
        self.moves = tuple(moves)
        self.sought = 0
        self.images = canvas.before, canvas.after
        self.sides = tuple(np.where(mask, 0, labels) for mask in explained)
        self.most = int(labels.max(initial=0))
        self.scale = 1 if canvas.sizes[1][1] < 2000 else 2

    def elements(self, boxes: Sequence[PixelBox]) -> list[Element]:
        """The clusters, of which the boxes are given, as elements; a border and what is in it are two."""
        result = []
        for number, box in enumerate(boxes, 1):
            part = self.labels[slices_of(box)]
            thickness = border_of(part == number, self.scale, inside=True)
            inner = (box[0] + thickness, box[1] + thickness, box[2] - thickness, box[3] - thickness)
            if thickness and (self.labels[slices_of(inner)] == number).any():
                self.most += 1
                for labels in (self.labels, *self.sides):
                    within = labels[slices_of(inner)]
                    within[within == number] = self.most
                bounds = shifted_box(bounds_of(self.labels[slices_of(inner)] == self.most), *inner[:2])
                result.append(Element(bounds, (self.most,), self.canvas.where(bounds)))
            result.append(Element(box, (number,), self.canvas.where(box)))
        return result

    def split(self, element: Element) -> list[Element]:
        """An element as several ones, between which there is an empty gap on both images, across or else down."""
        mask, gap = self.mask(element), _GAP * self.scale
        for axis, joined in ((0, 3 * gap), (1, gap)):
            runs = runs_of(mask.any(axis=axis), joined)
            if len(runs) > 1:
                break
        else:
            return [element]
        parts = []
        for start, end in runs[:_MOST_PARTS]:
            inner = mask.copy()
            inner[:, :start] = inner[:, end:] = False
            if axis:
                inner = mask.copy()
                inner[:start] = inner[end:] = False
            self.most += 1
            for labels in (self.labels, *self.sides):
                window = labels[slices_of(element.box)]
                window[inner & (window > 0)] = self.most
            box = shifted_box(bounds_of(inner), *element.box[:2])
            parts.append(Element(box, (self.most,), self.canvas.where(box)))
        return parts

    def mask(self, element: Element) -> np.ndarray:
        """Which pixels of its box they are; computed each time, since boxes may overlap and be large."""
        return np.isin(self.labels[slices_of(element.box)], element.numbers)

    def is_marks(self, element: Element) -> bool:
        """Whether it may be a line of text, or an icon."""
        if element.box[3] - element.box[1] > LINE_HEIGHT * self.scale or is_line(element.box, self.scale):
            return False
        mask = self.mask(element)
        return not border_of(mask, self.scale)

    def joined(self, elements: Sequence[Element]) -> Element:
        """Several as one."""
        box = around_all([element.box for element in elements])
        return Element(box, tuple(number for each in elements for number in each.numbers), self.canvas.where(box))

    def marks(self, element: Element, inside: bool = False) -> list[Marks | None]:
        """The marks of an element on both images; ``inside``: of a button or frame."""
        return [
            marks_of(image, element.box, labels, element.numbers, inside)
            for image, labels in zip(self.images, self.sides, strict=True)
        ]

    def words(self, element: Element, mask: np.ndarray) -> DrawnWords:
        """The words of an element; not those that are at another place, where others came or went."""
        words = self.reader.words_of(*self.images, element.box, mask)

        def stays(word: Word, side: int) -> bool:
            parts = [
                np.isin(labels[slices_of(word.box)], element.numbers) for labels in (self.sides[side], self.labels)
            ]
            return bool(parts[0].sum() >= _MOVED_AWAY * parts[1].sum())

        return DrawnWords(*([word for word in read if stays(word, side)] for side, read in enumerate(words)))

    def distance(self, word: Word, side: int) -> tuple[int, int] | None:
        """How far right and down a word of an image is on the other one, where that differs too; None if nowhere."""
        box = around(word.box, 0, self.labels.shape)
        for by, _, after in self.moves:  # over what is there, or under what came
            for dx, dy in (by, (0, 0)):
                part = self.images[1 - side][slices_of(shifted_box(box, *((dx, dy) if side == 0 else (-dx, -dy))))]
                over = boxes_overlap(after, shifted_box(box, dx, dy) if side == 0 else box)
                if over and _is_overlaid(self.images[side][slices_of(box)], part):
                    return dx, dy
        self.sought += 1
        if self.sought > _MOST_SOUGHT or min(box[2] - box[0], box[3] - box[1]) < _SMALLEST_WORD:
            return None
        top, bottom = max(0, box[1] - _REACH * self.scale), min(self.labels.shape[0], box[3] + _REACH * self.scale)
        word_part, band = self.images[side][slices_of(box)], self.images[1 - side][top:bottom]
        scores = cv2.matchTemplate(band, word_part, cv2.TM_CCOEFF_NORMED)
        scores = np.where(np.isfinite(scores), scores, 0)
        for _ in range(_COPIES):
            _, score, _, (x, y) = cv2.minMaxLoc(scores)
            if score < _ELSEWHERE:
                return None
            copy = self.different[y + top : y + top + box[3] - box[1], x : x + box[2] - box[0]]
            by = x - box[0], y + top - box[1]
            if copy.any() and max(map(abs, by)) > 1:
                return by
            scores[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = 0
        return None

    def stands_alone(self, element: Element) -> bool:
        """Whether what is around an element is plain on both images, as around letters, and not what it is a part of."""
        outer = around(element.box, 2, self.labels.shape)
        ring = np.ones((outer[3] - outer[1], outer[2] - outer[0]), bool)
        ring[2:-2, 2:-2] = False
        return all(main_colour(image[slices_of(outer)][ring]).share >= _ALL for image in self.images)

    def is_accounted(self, element: Element, side: int) -> bool:
        """Whether what an image has in an element is at another place of the other one."""
        parts = [np.isin(labels[slices_of(element.box)], element.numbers) for labels in (self.sides[side], self.labels)]
        return bool(parts[0].sum() < _MOVED_AWAY * parts[1].sum())

    def name(self, box: PixelBox, side: int, text: bool = False) -> str:
        """An element by its words, kind and position; ``text``: it is its words."""
        where = self.canvas.where(box)
        words = self.reader.name(self.images[side], box)
        quote = quoted(word.text for word in words[:_NAMING]) + " ..." * (len(words) > _NAMING)
        width, height = box[2] - box[0], box[3] - box[1]
        if not words:
            return f"a region of {measured(box)} {where}"
        if text:
            return f'the words "{quote}" {where}'
        is_button = height <= _BUTTON[0] * self.scale and width <= _BUTTON[1] * self.scale and len(words) <= _BUTTON[2]
        return f'the {"button" if is_button else "part with the words"} "{quote}" {where}'


def _is_overlaid(part: np.ndarray, other: np.ndarray) -> bool:
    """Whether all marks of a part of an image are on the other one, which may have more."""
    if part.shape != other.shape:
        return False
    ground = main_colour(part.reshape(-1, 3)).rgb
    inked, still = (np.abs(each - ground).max(axis=2) > _STROKE for each in (part, other))
    return bool((inked & still).sum() >= _OVERLAID * inked.sum() and still.mean() < _FILLED)


def claim_of(element: Element, thing: str, explanation: Explanation, kind: ClaimKind = "changed") -> Claim:
    """The claim of an explanation; of what one image alone has, with that box alone."""
    _, _, before, after, amount, unit = explanation
    boxes = (element.box if kind != "appeared" else None, element.box if kind != "gone" else None)
    return Claim(kind, thing, 1, element.where, *boxes, 1.0, before, after, explanation.aspect, amount, unit)


def explained(pair: ScreenPair, element: Element) -> list[Finding]:
    """The findings on an element: the first explanation that leaves nothing, else the words and look of its parts."""
    mask = pair.mask(element)
    thickness = border_of(mask, pair.scale)
    if is_line(element.box, pair.scale) or thickness:
        return [_stroke(pair, element, mask, "border" if thickness else "line")]
    parts = [image[slices_of(element.box)][mask] for image in pair.images]
    grounds = [_grounds(pair, image, element, mask) for image in pair.images]
    if (findings := block(pair, [element])) is not None:
        return findings
    split = pair.split(element)
    if len(split) > 1:
        blocks = [block(pair, [part]) for part in split]
        if all(each is not None for each in blocks):
            return [finding for each in blocks for finding in each or ()]
        element = pair.joined(split)
    words = pair.words(element, mask)
    if any(words) and (any(words.changed()) or mask.mean() < _FILLED):
        return _with_rest(pair, element, mask, words, parts, grounds)
    return [_look(pair, element, mask, parts, grounds)]


def block(pair: ScreenPair, elements: Sequence[Element]) -> list[Finding] | None:
    """The one explanation of several lines of marks, if there is one: empty where nothing is to be seen."""
    element = pair.joined(elements)
    for inside in (False, True):
        first, second = pair.marks(element, inside)
        if first is not None and second is not None:
            findings = _same_marks(pair, element, first, second)
            if findings is not None:
                return findings
    return None


def _same_marks(pair: ScreenPair, element: Element, first: Marks, second: Marks) -> list[Finding] | None:
    """The same marks at another place, in another colour, size, weight or spacing."""
    by = moved_by(first, second)
    if by is not None and any(by):
        claim = moved_claim(first.box, second.box, pair.canvas)
        return [Finding(claim, f"{{}} {way_of(*by)}")]
    if by is not None or same_marks(first, second):
        colours = first.colour, second.colour
        if np.abs(colours[0].rgb - colours[1].rgb).max() <= _ROUNDING:
            return None if by is None else []
        names = names_of(*colours)
        explanation = Explanation("colour", f"changed from {names[0]} to {names[1]}", *names)
    else:
        first, second = differing_lines(first, second)
        measured_change = typographic(first, second)
        if measured_change is None or not (same_letters(first, second) or _reads_alike(pair, element)):
            return None
        explanation = measured_change
    element = element._replace(box=around_all([first.box, second.box]))
    claim = replace(claim_of(element, "words", explanation), box_before=first.box, box_after=second.box)
    return [Finding(claim, f"{{}} {explanation.change}")]


def _reads_alike(pair: ScreenPair, element: Element) -> bool:
    """Whether what is read is the same but for single letters."""
    sides = ["".join(word.key for word in pair.reader.name(image, element.box, _MOST_READ)) for image in pair.images]
    if min(map(len, sides)) < _LETTERS:
        return False
    codes = SequenceMatcher(None, *sides, autojunk=False).get_opcodes()
    misread = [max(b - a, d - c) for tag, a, b, c, d in codes if tag != "equal"]
    return not misread or (max(misread) < _LETTERS and sum(misread) <= len(sides[0]) / 8)


def _grounds(pair: ScreenPair, image: np.ndarray, element: Element, mask: np.ndarray) -> list[Colour]:
    """The colour around an element, and that between its pixels: what shows where nothing is."""
    outer = around(element.box, 3, image.shape[:2])
    outside = np.ones((outer[3] - outer[1], outer[2] - outer[0]), bool)
    outside[slices_of(shifted_box(element.box, -outer[0], -outer[1]))] = False
    parts = [image[slices_of(outer)][outside], image[slices_of(element.box)][~mask]]
    return [main_colour(part) for part in parts if len(part)]


def faded(pair: ScreenPair, element: Element) -> Finding | None:
    """The finding on an element all of which is blended with the same ground, more or less than before; else None."""
    mask = pair.mask(element)
    parts = [image[slices_of(element.box)][mask] for image in pair.images]
    grounds = [_grounds(pair, image, element, mask) for image in pair.images]
    if not grounds[0] or grounds[0][0].code != grounds[1][0].code:
        return None
    before, after = (sampled(part).astype(np.float32) - grounds[0][0].rgb for part in parts)
    opacity = float((before * after).sum() / max((before**2).sum(), 1e-6))
    undone = np.sqrt(((after - opacity * before) ** 2).sum()) <= _UNDONE * np.sqrt(((after - before) ** 2).sum()) + 1e-3
    if not undone or not 0.02 < opacity < 50 or 0.98 < opacity < 1.02:
        return None
    spread = np.linalg.svd((before, after)[opacity > 1], compute_uv=False)
    if spread[1] > _ONE_COLOUR * spread[0]:
        return _opacity(element, opacity)
    colours = [main_colour(part) for part in parts]
    if colours[0].code == colours[1].code:
        return None
    names = names_of(*colours)
    explanation = Explanation("colour", f"changed from {names[0]} to {names[1]}{', fainter' * (opacity < 1)}", *names)
    return Finding(claim_of(element, "region", explanation), f"{{}} {explanation.change}", opacity)


def _opacity(element: Element, opacity: float) -> Finding:
    percent = round(100 * min(opacity, 1 / opacity))
    change = f"became {'fainter' if opacity < 1 else 'stronger'} ({percent} % opaque{' before' * (opacity > 1)})"
    explanation = Explanation("opacity", change, amount=percent, unit="%")
    return Finding(claim_of(element, "region", explanation), f"{{}} {change}", opacity)


def faded_together(pair: ScreenPair, elements: Sequence[tuple[Element, Finding]]) -> list[Finding]:
    """The findings on elements that are blended with their ground: one for those of several colours that are by the same
    share."""
    groups: list[list[tuple[Element, Finding]]] = []
    for element, finding in elements:
        assert finding.opacity is not None
        near = (group for group in groups if abs((group[0][1].opacity or 0) - finding.opacity) <= _SAME_FADE)
        group = next(near, [])
        groups += [] if group else [group]
        group.append((element, finding))
    findings: list[Finding] = []
    for group in groups:
        element, share = pair.joined([element for element, _ in group]), np.median([each.opacity for _, each in group])
        looks = {(finding.claim.aspect, finding.claim.before) for _, finding in group}
        if len(looks) > 1:
            findings.append(_opacity(element, float(share)))
        else:
            finding = group[0][1]
            claim = replace(finding.claim, box_before=element.box, box_after=element.box, where=element.where)
            findings.append(finding._replace(claim=claim))
    return findings


def _with_rest(
    pair: ScreenPair, element: Element, mask: np.ndarray, words: DrawnWords, parts: Sequence[np.ndarray],
    grounds: Sequence[Sequence[Colour]],
) -> list[Finding]:  # fmt: skip
    """The findings on words, and on the rest where that is the larger part."""
    rest = mask.copy()
    gone, new = words.changed()
    for word in words.before + words.after:
        rest[slices_of(shifted_box(word.box, -element.box[0], -element.box[1]))] = False
    if not gone and not new:
        text = f'the words "{quoted_words(words.before)}" {element.where}'
        return [Finding(claim_of(element, "words", Explanation("look", "")), f"{text} look different")]
    sought = [[(word, pair.distance(word, side)) for word in read] for side, read in enumerate((gone, new))]
    ways = [(word, by) for word, by in sought[0] if by is not None]
    gone, new = ([word for word, by in side if by is None] for side in sought)
    covered = [word for word, by in sought[0] if by is not None and not any(by)]  # both are read as one
    new = [word for word in new if not any(boxes_overlap(word.box, other.box) for other in covered)]
    if not gone and not new:
        return [_moved_word(pair, *each) for each in ways[:1] if each[1] not in {move.by for move in pair.moves}]
    kind: ClaimKind = "replaced" if gone and new else "gone" if gone else "appeared"
    boxes = [around_all([word.box for word in read]) if read else None for read in (gone, new)]
    confidence = min(word.confidence for word in gone + new)
    where = pair.canvas.where(boxes[1] or boxes[0] or element.box)
    claim = Claim(
        kind, "words", 1, where, boxes[0], boxes[1], confidence, quoted_words(gone), quoted_words(new), "words"
    )
    if rest.sum() <= _PLAIN * mask.sum():
        return [Finding(claim, words_clause(claim))]
    look = _look(pair, element, mask, parts, grounds)
    if claim.kind == look.claim.kind != "changed":  # a chart, and the words in it
        return [Finding(claim, ""), look._replace(clause=f"{look.clause}{with_words(words.before or words.after)}")]
    return [Finding(claim, words_clause(claim)), look]


def _moved_word(pair: ScreenPair, word: Word, by: tuple[int, int]) -> Finding:
    """The finding on a word that is elsewhere on the image after."""
    claim = moved_claim(word.box, shifted_box(word.box, *by), pair.canvas, "words")
    return Finding(claim, f"{{}} {way_of(*by)}" if any(by) else "")


def _look(
    pair: ScreenPair, element: Element, mask: np.ndarray, parts: Sequence[np.ndarray],
    grounds: Sequence[Sequence[Colour]],
) -> Finding:  # fmt: skip
    """What differs in an element without words: its fill, or anything else."""
    colours = first, second = [main_colour(part) for part in parts]
    thicknesses = [_strokes_of(image, element.box)[0] for image in pair.images]
    if mask.mean() >= _FILLED and (thicknesses[0] > 0) != (thicknesses[1] > 0):
        return _stroke(pair, element, mask, "border")
    was_ground, is_ground = _empty(pair, element, colours, grounds)
    plain = first.share >= _PLAIN and second.share >= _PLAIN
    background = plain and _FILLED <= mask.mean() < 1
    if was_ground == is_ground or background:
        of = "the background of " if background else ""
        if not plain and mask.mean() >= _FILLED and (names := _gradients(pair, element, mask)) is not None:
            change = f"the gradient of {{}} changed from {names[0]} to {names[1]}"
            return Finding(claim_of(element, "region", Explanation("background", "", *names)), change)
        names, change = (names_of(first, second), "changed from {} to {}") if plain else _shades(*parts)
        explanation = Explanation("background" if background else "colour", "", *names)
        return Finding(claim_of(element, "region", explanation), f"{of}{{}} {change.format(*names)}")
    present = colours[was_ground]
    colour: str | None = present.name if present.share >= _PLAIN else None
    if colour in {ground.name for ground in grounds[was_ground]}:
        colour = present.hex  # and not that of what is around it
    what = f"{with_article(colour)} area" if colour else "something"
    clause = f"{what} of {measured(element.box)} {'appeared' if was_ground else 'is gone'} {element.where}"
    return Finding(one_sided(was_ground, "region", element.where, element.box, 1.0, colour), clause)


def _empty(
    pair: ScreenPair, element: Element, colours: Sequence[Colour], grounds: Sequence[Sequence[Colour]]
) -> tuple[bool, bool]:
    """On which image nothing is in an element but what is around it, or what is at another place of the other image."""
    was, is_now = (
        pair.is_accounted(element, side)
        or (colour.share >= _ALL and colour.code in {ground.code for ground in grounds[side]})
        for side, colour in enumerate(colours)
    )
    plain = all(colour.share >= _PLAIN for colour in colours)
    if not plain and was == is_now:  # a plain area over what was not one, or the other way round
        was, is_now = colours[1].share >= _ALL, colours[0].share >= _ALL
    return was, is_now


def _gradients(pair: ScreenPair, element: Element, mask: np.ndarray) -> tuple[str, str] | None:
    """The colours at both ends of what fills an element, before and after, if either is a gradient; else None."""
    names, smooth, directions = [], False, []
    for image in pair.images:
        part = image[slices_of(element.box)]
        steps = np.abs(part[:, 1:].astype(np.int16) - part[:, :-1]).max(axis=2)[mask[:, 1:]]
        even = float((steps <= 3).mean())
        if even < _ALL:
            return None
        ends = [(part[:, : max(1, part.shape[1] // 8)], part[:, -max(1, part.shape[1] // 8) :])]
        ends.append((part[: max(1, part.shape[0] // 8)], part[-max(1, part.shape[0] // 8) :]))
        pairs = [[np.median(end.reshape(-1, 3), axis=0) for end in each] for each in ends]
        low, high = max(pairs, key=lambda each: float(np.abs(each[0] - each[1]).max()))
        smooth |= bool(np.abs(low - high).max() > 8)
        directions.append((high - low) / max(float(np.linalg.norm(high - low)), 1.0))
        words = [colour_of(end[None].astype(np.float32) / 255) for end in (low, high)]
        names.append(words[0] if words[0] == words[1] else f"{words[0]} and {words[1]}")
    if not smooth or (names[0] == names[1] and float(directions[0] @ directions[1]) > 0.5):
        return None
    if names[0] == names[1]:
        names = [f"{names[0]} in one direction", f"{names[1]} in another"]
    return names[0], names[1]


def _stroke(pair: ScreenPair, element: Element, mask: np.ndarray, thing: str) -> Finding:
    """A line or border that came, went, or became thicker, dashed or of another colour."""
    looks = [_strokes_of(image, element.box) for image in pair.images]
    (thickness, colour, dashed), (other_thickness, other_colour, other_dashed) = looks
    region = "{}"
    if thing == "line":
        region = f"a region of {measured(element.box)} {element.where}"
        parts = [image[slices_of(element.box)][mask] for image in pair.images]
        colours = [main_colour(part) for part in parts]
        was, is_now = _empty(pair, element, colours, [_grounds(pair, image, element, mask) for image in pair.images])
        thickness, other_thickness = 0 if was else 1, 0 if is_now else 1
        colour, other_colour = colours
    if bool(thickness) != bool(other_thickness):
        is_new = not thickness
        present = (colour, other_colour)[is_new]
        name = present.name if present.share >= _PLAIN_LINE else None
        explanation = Explanation("border", "", None if is_new else name, name if is_new else None,
                                  thickness or other_thickness, "px")  # fmt: skip
        clause = f"{region} {'got a' if is_new else 'lost its'} {f'{name} ' if name else ''}{thing}"
        return Finding(claim_of(element, thing, explanation, "appeared" if is_new else "gone"), clause)
    of = f"the {thing} of {region}"
    if thickness != other_thickness:
        by = other_thickness - thickness
        explanation = Explanation("border", "", None, None, by, "px")
        change = f"became {'thicker' if by > 0 else 'thinner'} by {abs(by)} px"
    elif dashed != other_dashed:
        explanation, change = Explanation("border", ""), f"is {'dashed' if other_dashed else 'solid'} now"
    else:
        names = names_of(colour, other_colour)
        explanation, change = Explanation("border", "", *names), f"changed from {names[0]} to {names[1]}"
        if colour.code == other_colour.code:
            explanation, change = Explanation("border", ""), "looks different"
    return Finding(claim_of(element, thing, explanation), f"{of} {change}")


def _strokes_of(image: np.ndarray, box: PixelBox) -> tuple[int, Colour, bool]:
    """Thickness, colour and whether it is broken, of the border at the edges of a box; thickness 0 without one."""
    outer = around(box, 3, image.shape[:2])
    part = image[slices_of(outer)].astype(np.int16)
    depth = min(24, min(part.shape[:2]) // 3)
    widths, colours, breaks = [], [], []
    for turned in (part, part[::-1], part.transpose(1, 0, 2), part.transpose(1, 0, 2)[::-1]):
        length = turned.shape[1]
        profile = turned[:depth, length // 4 : -(length // 4) or None]
        inked = np.abs(profile - np.median(profile[0], axis=0)).max(axis=2) > _STROKE
        starts = np.flatnonzero(inked.mean(axis=1) > 0.3)
        if not len(starts):
            continue
        first = inked[starts[0]]
        colour = main_colour(profile[starts[0]][first].astype(np.uint8))
        drawn = np.abs(profile[starts[0] :] - colour.rgb.astype(np.int16)).max(axis=2) <= _STROKE
        same = drawn.mean(axis=1) > _DASHES
        width = int(np.argmin(same)) if not same.all() else depth
        if 0 < width < depth - 4:  # else it fills the box
            widths.append(width)
            colours.append(colour.code)
            breaks.append(float(drawn[0].mean()) < _ALL and np.abs(np.diff(drawn[0].astype(int))).sum() > 4)
    if len(widths) < 3:
        return 0, Colour(0, 0.0), False
    values, counts = np.unique(colours, return_counts=True)
    return round(float(np.median(widths))), Colour(int(values[counts.argmax()])), sum(breaks) >= 2


def corners(pair: ScreenPair, elements: Sequence[Element]) -> list[tuple[list[Element], Finding]]:
    """Boxes whose corners alone differ, each with the elements at them: four, two of rounded ends, or a circle."""
    result: list[tuple[list[Element], Finding]] = []
    left = [element for element in elements if not is_line(element.box, pair.scale)][:_MOST_CORNERS]
    used: set[Element] = set()
    for element, other in product(left, left):
        outer = around_all([element.box, other.box])
        if outer[:2] != element.box[:2] or outer[2:] != other.box[2:] or element in used:
            continue
        inside = [each for each in left if around_all([outer, each.box]) == outer]
        if len(inside) in (1, 2, 4) and _at_corners(pair, inside, outer):
            result.append((inside, _corner_finding(pair, inside, outer)))
            used.update(inside)
    return result


def _at_corners(pair: ScreenPair, elements: Sequence[Element], box: PixelBox) -> bool:
    """Whether pixels are at all corners of a box, each time mirrored, as far along one edge as along the other, and not
    in the middle."""
    mask = np.isin(pair.labels[slices_of(box)], [number for each in elements for number in each.numbers])
    height, width = mask.shape[0] // 2, mask.shape[1] // 2
    if not height or not width:
        return False
    quarters = [mask[:height, :width], mask[:height, -width:][:, ::-1], mask[-height:, :width][::-1]]
    quarters.append(mask[-height:, -width:][::-1, ::-1])
    every, either = np.all(quarters, axis=0), np.any(quarters, axis=0)
    if every.sum() < max(_SMALLEST_CORNER, _MIRRORED * either.sum()):
        return False
    across, down = (np.flatnonzero(either.any(axis=axis))[-1] + 1 for axis in (0, 1))
    inner = either[down * 2 // 3 : down, across * 2 // 3 : across]
    return bool(abs(across - down) <= max(2, 0.3 * max(across, down)) and inner.mean() < _EMPTY_CORNER)


def _corner_finding(pair: ScreenPair, elements: Sequence[Element], box: PixelBox) -> Finding:
    """Rounder where the corner shows what is around the box now, and did not before."""
    element = pair.joined(elements)._replace(box=box)
    mask = pair.mask(element)
    y, x = np.nonzero(mask)
    distance = np.hypot(np.minimum(x, mask.shape[1] - 1 - x), np.minimum(y, mask.shape[0] - 1 - y))
    outermost = distance <= np.percentile(distance, 25)
    shown = []
    for image in pair.images:
        outer = around(box, 2, image.shape[:2])
        ground = main_colour(image[outer[1], outer[0] : outer[2]]).rgb
        shown.append(float(np.abs(image[slices_of(box)][y[outermost], x[outermost]] - ground).mean()))
    rounder = shown[1] < shown[0]
    sizes = [each.box[2] - each.box[0] for each in elements]
    explanation = Explanation("corners", "", amount=float(max(sizes)), unit="px")
    clause = f"the corners of {{}} became {'rounder' if rounder else 'squarer'}"
    return Finding(claim_of(element, "region", explanation), clause)


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


def one_sided(is_new: bool, name: str, where: str, box: PixelBox, confidence: float, value: str | None) -> Claim:
    """The claim of what one image alone has, with its colour or words."""
    if is_new:
        return Claim("appeared", name, 1, where, None, box, confidence, None, value, "visibility")
    return Claim("gone", name, 1, where, box, None, confidence, value, None, "visibility")


def moved_claim(before: PixelBox, after: PixelBox, canvas: PairCanvas, name: str = "region") -> Claim:
    """The claim of what is at another place, with the distance in pixels."""
    distance = np.hypot(*np.subtract(after[:2], before[:2]))
    return Claim("moved", name, 1, canvas.where(after), before, after, 1.0, None, None, "position",
                 round(float(distance), 1), "px")  # fmt: skip


def way_of(dx: int, dy: int) -> str:
    """ "moved right by 12 px"."""
    directions = [(abs(dx), "right" if dx > 0 else "left"), (abs(dy), "down" if dy > 0 else "up")]
    return "moved " + " and ".join(f"{direction} by {length} px" for length, direction in directions if length)


def is_line(box: PixelBox, scale: int = 1) -> bool:
    """Whether a box is that of a thin line."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    return min(width, height) <= _LINE * scale and max(width, height) >= 3 * _LINE * scale


def border_of(mask: np.ndarray, scale: int = 1, inside: bool = False) -> int:
    """The largest thickness of a border, if the pixels are along all four sides and nowhere else, even if it is broken;
    else 0. ``inside``: or inside of it, at a distance."""
    for thickness in (_LINE * scale, 2 * _LINE * scale):
        if min(mask.shape) < 3 * thickness:
            return 0
        within = mask[thickness:-thickness, thickness:-thickness]
        sides = [strip.any(axis=0) for turned in (mask, mask.T) for strip in (turned[:thickness], turned[-thickness:])]
        rim = within.copy()
        rim[2:-2, 2:-2] = False
        empty = not rim.any() if inside else within.sum() <= 0.05 * mask.sum()
        if empty and all(side.mean() >= 0.4 for side in sides):
            return thickness
    return 0


def measured(box: PixelBox) -> str:
    """Width and height in words."""
    return f"{box[2] - box[0]} x {box[3] - box[1]} px"


def with_words(words: Sequence[Word]) -> str:
    """The words of a strip, row or area, as the end of its name."""
    text = quoted_words(words[:MOST_QUOTED])
    return f' with the words "{text}{" ..." if len(words) > MOST_QUOTED else ""}"' if text else ""


def quoted_words(words: Sequence[Word]) -> str | None:
    """The words that were read, None without any."""
    return quoted(word.text for word in words) or None
