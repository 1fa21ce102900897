"""Two drawn images that share little, as two pages of a program: where a line is on one of them says nothing about the
other one, so that the words of each are said, and no strips, parts and moves.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches

import cv2
import numpy as np

from idc.captioning.contract import Claim
from idc.systems.objects.canvas import PairCanvas
from idc.systems.objects.geometry import slices_of
from idc.systems.objects.pixel_changes import largest_channel
from idc.systems.objects.reading import Word, lines_on, words_on_line
from idc.systems.objects.wording import PICTURE, joined, quoted

_SHARED = 0.5
"""Share of the outlines of one image, that of which more are on the other one, below which the two share little; those
at one place by chance do not count. Two windows or pages of a program have less; of 522 pairs of pages with one change
three have 0.49 and 0.5 (another font size in a table), the others more."""
_MOSTLY_EQUAL = 0.95
"""Share of equal blocks from which this is not computed."""
_OUTLINE = 48
"""Grey levels by which the neighbours of a pixel differ on an outline: the steps of gradients are smaller."""
_PIXELS = 1_500_000
"""Size to which an image is reduced for reading."""
_MOST_LINES = 40
"""Lines that are read on an image, those in the largest letters: a fiftieth of a second each."""
_LINES, _WORDS = 3, 6
"""Number of lines that are quoted, and of their words."""
_SAME_WORDS = 0.8
"""Share of the letters of both from which they say the same, in another layout."""
_STEP = 0.5
"""Share of the usual height of a line by which that of larger letters differs: heights are rough."""
_SURE, _SHORTEST = 0.97, 3
"""Smallest confidence of the words, and number of letters, of a line that is quoted."""
_ALIKE = 0.8
"""Share of the letters of two words, in their order, from which one may be the other misread."""


def share_little(before: np.ndarray, after: np.ndarray, canvas: PairCanvas, unmoved: np.ndarray) -> bool:
    """Whether most outlines of both images are nowhere on the other one. ``unmoved``: bool (H, W) of the canvas, pixels
    that differ and did not move."""
    if canvas.left_out or (canvas.equal >= _MOSTLY_EQUAL and not canvas.strips):
        return False
    first, second = (_outlines(image) for image in (canvas.before, canvas.after))
    present = [np.logical_and.outer(*(lines[side] >= 0 for lines in canvas.lines)) for side in (0, 1)]
    differs = unmoved & present[0] & present[1]
    both = float((first & second & differs).sum())
    by_chance = (first & differs).sum() * (second & differs).sum() / max(differs.sum(), 1)
    coincident = max(0.0, both - by_chance)
    shares = []
    for side, (image, outlines) in enumerate(((before, first), (after, second))):
        whole = _outlines(image)
        alone = np.zeros_like(whole)
        for strip in canvas.strips:
            if strip.side == side:
                alone[slices_of(strip.box)] = True
        lost = (whole & alone).sum() + (outlines & differs).sum() - coincident
        shares.append(1 - lost / max(whole.sum(), 1))
    return max(shares) < _SHARED


def _outlines(image: np.ndarray) -> np.ndarray:
    kernel = np.ones((3, 3), np.uint8)
    return largest_channel(cv2.subtract(cv2.dilate(image, kernel), cv2.erode(image, kernel))) > _OUTLINE


def page_claim(before: np.ndarray, after: np.ndarray) -> tuple[Claim, str] | None:
    """The claim that most of an image changed, with the words that it alone says, and its clause; None if it has none,
    or both say the same."""
    sides = [_lines_of(image) for image in (before, after)]
    keys = [[word.key for line in lines for word in line] for lines in sides]
    common = sum(len(key) * count for key, count in (Counter(keys[0]) & Counter(keys[1])).items())
    texts = [_quoted(lines, sorted(set(others))) for lines, others in zip(sides, reversed(keys), strict=True)]
    if not any(texts) or common >= _SAME_WORDS * max(len("".join(side)) for side in keys):
        return None
    said = [f"{verb} {text}" for verb, text in zip(("said", "now says"), texts, strict=True) if text]
    box, other_box = ((0, 0, image.shape[1], image.shape[0]) for image in (before, after))
    was, is_now = (text or None for text in texts)
    claim = Claim("changed", PICTURE, 1, "as a whole", box, other_box, _SURE, was, is_now, "page")
    return claim, f"most of the picture changed; it {', and '.join(said)}"


def _lines_of(image: np.ndarray) -> list[list[Word]]:
    """The words of lines of an image, those in the largest letters first, else from top to bottom."""
    scale = min(1.0, (_PIXELS / (image.shape[0] * image.shape[1])) ** 0.5)
    if scale < 1:
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    lines = lines_on(image)
    heights = [float(np.ptp(line[:, 1])) for line in lines]
    step = _STEP * max(1.0, float(np.median(heights))) if heights else 1.0
    sizes = [round(height / step) for height in heights]
    order = sorted(range(len(lines)), key=lambda at: (-sizes[at], lines[at][:, 1].min()))
    return [words for at in order[:_MOST_LINES] if (words := words_on_line(image, lines[at]))]


def _quoted(lines: list[list[Word]], others: list[str]) -> str:
    """The first lines most of whose letters are in words that the other image has not, each once."""
    texts: dict[str, None] = {}
    for line in lines:
        if len(texts) == _LINES:
            break
        letters = [(len(word.key), bool(get_close_matches(word.key, others, 1, _ALIKE))) for word in line]
        new = sum(length for length, elsewhere in letters if not elsewhere)
        sure = all(word.confidence >= _SURE for word in line[:_WORDS])
        if sure and new >= max(_SHORTEST, sum(length for length, _ in letters) / 2):
            texts[quoted(word.text for word in line[:_WORDS]) + " ..." * (len(line) > _WORDS)] = None
    return joined(f'"{text}"' for text in texts) if texts else ""
