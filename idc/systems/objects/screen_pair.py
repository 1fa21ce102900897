"""Two drawn images and the elements in which they differ: their marks, their words, where else these are, and names.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    box_area,
    boxes_overlap,
    pixels_around,
    shifted_box,
    slices_of,
)
from idc.systems.objects.marks import Explanation, Marks, marks_of, runs_of
from idc.systems.objects.pixel_changes import Move
from idc.systems.objects.reading import DrawnWords, Word, WordReader
from idc.systems.objects.recolouring import Colour, main_colour
from idc.systems.objects.wording import quoted, words_clause

MOST_QUOTED = 12
"""Words of a strip, row or area that are quoted."""
_NAMING = 8
"""Words by which an element is named."""
_LINE = 4
"""Largest thickness of a line, and of a border, in pixels; twice and three times that on screens of a larger scale."""
LINE_HEIGHT = 80
"""Largest height of a line of text, in pixels."""
PLAIN = 0.6
"""Share of a cluster's pixels that must have a colour for it to be that of the cluster."""
STROKE = 16
"""Levels by which a border differs from what is around it."""
FILLED = 0.7
"""Share of a box that differs where the ground behind its content does."""
ALL = 0.9
"""Share of a cluster's pixels that must have the colour around it for nothing to be there."""
_GAP, _MOST_PARTS = 4, 12
"""Empty rows between two parts of an element (a third of the columns), and the number of parts."""
_ELSEWHERE, _REACH, _MOST_SOUGHT = 0.88, 160, 24
"""Correlation of a word with its copy on the other image, the rows up and down in which it is sought, and the number of
words that are."""
_OVERLAID = 0.95
"""Share of its marks that are still there where other content is over it, or under it."""
_MOVED_AWAY = 0.3
"""Share of an element's pixels on one image below which what is there moved."""
_LETTERS = 3
"""Letters of the shortest word that is sought elsewhere."""
_SMALLEST_WORD, _COPIES = 6, 4
"""Shortest side of a word that is sought elsewhere, and the number of its copies that are looked at."""
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
    ``sides``: the labels without what came from, or went to, another place, on the image before and after; none where
    moves were not looked for.
    ``different``: whether each pixel differs, even if it only moved."""

    def __init__(
        self, canvas: PairCanvas, different: np.ndarray, labels: np.ndarray, explained: Sequence[np.ndarray],
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
            inner = np.zeros_like(mask)
            rows_or_columns = np.s_[start:end] if axis else np.s_[:, start:end]
            inner[rows_or_columns] = mask[rows_or_columns]
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
        sides = (
            [word for word in read if not self.is_elsewhere(element, side, word.box)] for side, read in enumerate(words)
        )
        return DrawnWords(*sides)

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
        smallest = min(box[2] - box[0], box[3] - box[1])
        if self.sought > _MOST_SOUGHT or len(word.key) < _LETTERS or smallest < _SMALLEST_WORD:
            return None
        top, bottom = max(0, box[1] - _REACH * self.scale), min(self.labels.shape[0], box[3] + _REACH * self.scale)
        word_part, band = self.images[side][slices_of(box)], self.images[1 - side][top:bottom]
        scores = cv2.matchTemplate(band, word_part, cv2.TM_CCOEFF_NORMED)
        scores = np.where(np.isfinite(scores), scores, 0)
        for _ in range(_COPIES):
            _, score, _, (x, y) = cv2.minMaxLoc(scores)
            if score < _ELSEWHERE:
                return None
            by = x - box[0], y + top - box[1]
            copy = slices_of(shifted_box(box, *by))
            was_there = cv2.matchTemplate(self.images[side][copy], word_part, cv2.TM_CCOEFF_NORMED)[0, 0] > _ELSEWHERE
            if self.different[copy].any() and max(map(abs, by)) > 1 and not was_there:
                return by
            scores[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = 0
        return None

    def stands_alone(self, element: Element) -> bool:
        """Whether what is around an element is plain on both images, as around letters."""
        outer = around(element.box, 2, self.labels.shape)
        ring = np.ones((outer[3] - outer[1], outer[2] - outer[0]), bool)
        ring[2:-2, 2:-2] = False
        return all(main_colour(image[slices_of(outer)][ring]).share >= ALL for image in self.images)

    def is_whole_line(self, element: Element) -> bool:
        """Whether nothing else of its line differs, next to it."""
        left, top, right, bottom = element.box
        reach = 4 * (bottom - top)
        near = self.labels[top:bottom, max(0, left - reach) : right + reach]
        return bool(np.isin(near, (0, *element.numbers)).all())

    def is_elsewhere(self, element: Element, side: int, box: PixelBox) -> bool:
        """Whether what an image has of an element in a box is at another place of the other one."""
        parts = [np.isin(labels[slices_of(box)], element.numbers) for labels in (self.sides[side], self.labels)]
        return bool(parts[0].sum() < _MOVED_AWAY * parts[1].sum())

    def measured(self, box: PixelBox) -> str:
        """The size of a box of the canvas, which may lack equal rows, on the image that has more of it, in words."""
        return measured(max((self.canvas.on(side, box) for side in (1, 0)), key=box_area))

    def name(self, box: PixelBox, side: int, text: bool = False) -> str:
        """An element by its words, kind and position; ``text``: it is its words."""
        where = self.canvas.where(box)
        words = self.reader.name(self.images[side], box)
        quote = quoted(word.text for word in words[:_NAMING]) + " ..." * (len(words) > _NAMING)
        width, height = box[2] - box[0], box[3] - box[1]
        if not words:
            return f"a region of {self.measured(box)} {where}"
        if text:
            return f'the words "{quote}" {where}'
        is_button = height <= _BUTTON[0] * self.scale and width <= _BUTTON[1] * self.scale and len(words) <= _BUTTON[2]
        return f'the {"button" if is_button else "part with the words"} "{quote}" {where}'


def _is_overlaid(part: np.ndarray, other: np.ndarray) -> bool:
    """Whether all marks of a part of an image are on the other one, which may have more."""
    if part.shape != other.shape:
        return False
    ground = main_colour(part.reshape(-1, 3)).rgb
    inked, still = (np.abs(each - ground).max(axis=2) > STROKE for each in (part, other))
    return bool((inked & still).sum() >= _OVERLAID * inked.sum() and still.mean() < FILLED)


def claim_of(element: Element, thing: str, explanation: Explanation, kind: ClaimKind = "changed") -> Claim:
    """The claim of an explanation; of what one image alone has, with that box alone."""
    _, _, before, after, amount, unit = explanation
    boxes = (element.box if kind != "appeared" else None, element.box if kind != "gone" else None)
    return Claim(kind, thing, 1, element.where, *boxes, 1.0, before, after, explanation.aspect, amount, unit)


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


def own_clause(claim: Claim) -> str:
    """The clause on what else is said with its cause: what that moved, or the words in it."""
    if claim.kind != "moved" or claim.box_before is None or claim.box_after is None:
        return words_clause(claim)
    by = np.subtract(claim.box_after[:2], claim.box_before[:2]).tolist()
    return f"{{}} {way_of(*by)}" if any(by) else ""


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


def grounds_of(image: np.ndarray, element: Element, mask: np.ndarray) -> list[Colour]:
    """The colour around an element, and that between its pixels: what shows where nothing is."""
    parts = [pixels_around(image, element.box, 3), image[slices_of(element.box)][~mask]]
    return [main_colour(part) for part in parts if len(part)]


def empty_sides(
    pair: ScreenPair, element: Element, colours: Sequence[Colour], grounds: Sequence[Sequence[Colour]]
) -> tuple[bool, bool]:
    """On which image nothing is in an element but what is around it, or what is at another place of the other image."""
    was, is_now = (
        pair.is_elsewhere(element, side, element.box)
        or (colour.share >= ALL and colour.code in {ground.code for ground in grounds[side]})
        for side, colour in enumerate(colours)
    )
    plain = all(colour.share >= PLAIN for colour in colours)
    if not plain and was == is_now:  # a plain area over what was not one, or the other way round
        was, is_now = colours[1].share >= ALL, colours[0].share >= ALL
    return was, is_now
