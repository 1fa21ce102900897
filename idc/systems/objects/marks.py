"""Marks on a ground: the letters, icons and strokes in a part of a drawn image, measured so that the same marks in
another size, weight, spacing or colour are recognised by undoing the difference.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np

from idc.systems.objects.geometry import PixelBox, around, bounds_of, shifted_box, slices_of
from idc.systems.objects.recolouring import Colour, main_colour

_INK = 0.25
"""Coverage from which a pixel is of a mark."""
_FAINTEST = 6
"""Levels in 255 by which a mark differs from its ground."""
_SAME_LINE = 2
"""Rows without ink that a line of text may have, above the dots of its letters."""
_SIZE, _WIDTH, _MASS = 0.05, 0.02, 0.08
"""Smallest changes (of logarithms) of a font's size, of a line's width and of the amount of ink that are said."""
_TINY = 0.005
"""Smallest product of changes that are not in one direction."""
_PLAUSIBLE = 2.5
"""Largest distance, in tolerances, of the measures from those that an explanation predicts."""
_ALIKE, _MOST, _FEW = 0.4, 0.85, 3
_LINE_ALIKE = 0.5
"""Smallest correlation of the same letter, once its size and distance are undone; the share of a text's letters that
must have it, and the number up to which they may do so by chance."""
_RIGID = 0.9
"""The same where nothing but their place, or their colour, differs."""
_SAME = 0.95
"""The same where their colour alone differs: in another one, edges are blended a little otherwise."""
_MOST_INK, _FRAME = 0.85, 0.7
"""Share of their box above which they are a filled area; width and height of a frame, as shares of the part's."""
_LOWEST_LINE = 5
"""Height of a line of text, in pixels."""
_SHIFTED_LINE = 0.8
"""Correlation of a line of text with the same one where the lines are closer together."""
_PLAIN_GROUND = 0.35
"""Share of the pixels around and between marks that must have one colour."""


class Marks:
    """The marks of an image in a box: their coverage (h, w) from 0 to 1, the box of what there is of them, the colours
    of the strokes and of the ground."""

    def __init__(self, coverage: np.ndarray, box: PixelBox, colour: Colour, ground: Colour) -> None:
        self.coverage, self.box, self.colour, self.ground = coverage, box, colour, ground

    @property
    def mass(self) -> float:
        """The area of the ink, in pixels."""
        return float(self.coverage.sum())

    @cached_property
    def _rows(self) -> list[tuple[int, int]]:
        """The first row of each line of text, and the one after its last."""
        return runs_of((self.coverage > _INK).any(axis=1), _SAME_LINE)

    @cached_property
    def lines(self) -> list[np.ndarray]:
        """The coverage of each line of text, from the top."""
        lines: list[np.ndarray] = []
        for top, bottom in self._rows:
            rows = self.coverage[top:bottom]
            columns = np.flatnonzero((rows > _INK).any(axis=0))
            lines.append(rows[:, columns[0] : columns[-1] + 1])
        return lines

    def part(self, start: int, end: int) -> Marks:
        """The lines from a number to another one."""
        top, bottom = self._rows[start][0], self._rows[end - 1][1]
        coverage = self.coverage[top:bottom]
        inner = bounds_of(coverage > _INK)
        box = shifted_box(inner, self.box[0], self.box[1] + top)
        return Marks(coverage[slices_of(inner)], box, self.colour, self.ground)

    @property
    def tops(self) -> list[int]:
        """The first row of each line."""
        return [top for top, _ in self._rows]


def marks_of(
    image: np.ndarray, box: PixelBox, labels: np.ndarray, numbers: Sequence[int], inside: bool = False
) -> Marks | None:
    """The marks in a box of an image with pixels of these numbers among the labels (H, W), as wholes; None if there are
    none, or the ground is not plain. ``inside``: those in a button or frame, without it."""
    outer = around(box, 3, image.shape[:2])
    part, mask = image[slices_of(outer)], np.isin(labels[slices_of(outer)], numbers)
    rim = np.ones(mask.shape, bool)
    rim[3:-3, 3:-3] = False
    ground = main_colour(part.reshape(-1, 3) if inside else part[rim | ~mask])
    if ground.share < _PLAIN_GROUND:
        return None
    contrast = np.linalg.norm(part - ground.rgb, axis=2)
    ink = contrast > _FAINTEST
    count, components, sizes, _ = cv2.connectedComponentsWithStats(ink.astype(np.uint8))
    kept = np.bincount(components[mask & ink], minlength=count) > 0
    if inside:
        kept[np.concatenate([components[0], components[-1], components[:, 0], components[:, -1]])] = False
        kept &= (sizes[:, 2] < _FRAME * mask.shape[1]) | (sizes[:, 3] < _FRAME * mask.shape[0])
    ink &= kept[components]
    if not ink.any() or ink[slices_of(bounds_of(ink))].mean() > _MOST_INK:
        return None
    strokes = contrast >= np.percentile(contrast[ink], 85)
    colour, inner = main_colour(part[strokes & ink]), bounds_of(ink)
    coverage = np.where(ink, contrast / max(float(np.linalg.norm(colour.rgb - ground.rgb)), 1.0), 0).clip(0, 1)
    return Marks(coverage[slices_of(inner)].astype(np.float32), shifted_box(inner, *outer[:2]), colour, ground)


def runs_of(values: Any, joined: int = 0) -> list[tuple[int, int]]:
    """Starts and ends of the runs of a mask (N,), over gaps up to a length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], values.astype(np.int8), [0]])))
    runs: list[tuple[int, int]] = []
    for start, end in edges.reshape(-1, 2).tolist():
        if runs and start - runs[-1][1] <= joined:
            runs[-1] = runs[-1][0], end
        else:
            runs.append((start, end))
    return runs


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Of two coverages, the first one at the size of the second one."""
    if first.shape != second.shape:
        first = cv2.resize(first, second.shape[::-1], interpolation=cv2.INTER_AREA)
    first, second = first - first.mean(), second - second.mean()
    product = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / product if product > 1e-3 else 1.0


def differing_lines(first: Marks, second: Marks) -> tuple[Marks, Marks]:
    """Both without the lines at the top, or at the bottom, that are the same ones."""
    if len(first.lines) != len(second.lines):
        return first, second
    same = [abs(line.shape[1] - other.shape[1]) <= 1 and abs(line.shape[0] - other.shape[0]) <= 1
            and _blurred_correlation(line, other) > _SAME
            for line, other in zip(first.lines, second.lines, strict=True)]  # fmt: skip
    if all(same) or not any(same):
        return first, second
    start, end = same.index(False), len(same) - same[::-1].index(False)
    return first.part(start, end), second.part(start, end)


def _blurred_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Of coverages of one size: by a part of a pixel, or in another colour, edges are blended otherwise."""
    return _correlation(*(cv2.GaussianBlur(coverage, (3, 3), 0) for coverage in (first, second)))


def _same_shape(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two coverages are the same marks but for a part of a pixel, as a whole and letter by letter."""
    if first.shape != second.shape:
        first = cv2.resize(first, second.shape[::-1], interpolation=cv2.INTER_AREA)
    blurred = [cv2.GaussianBlur(coverage, (5, 5), 0) for coverage in (first, second)]
    letters = [(start, end) for start, end in _letters(second) if end - start >= _FEW]
    return _correlation(*blurred) >= _RIGID and all(
        _correlation(*(coverage[:, start:end] for coverage in blurred)) >= _ALIKE for start, end in letters
    )


def same_marks(first: Marks, second: Marks) -> bool:
    """Whether both are the same at the same place, in whatever colours."""
    if max(abs(np.subtract(first.box, second.box))) > 1:
        return False
    return _blurred_correlation(first.coverage, second.coverage) > _SAME


def _letters(line: np.ndarray) -> list[tuple[int, int]]:
    """The columns of each letter of a line, or of several that touch."""
    return runs_of((line > _INK).any(axis=0))


def same_letters(first: Marks, second: Marks) -> bool:
    """Whether both have the same letters, several, in whatever size, weight and spacing: letter by letter where as many
    are apart in both, else line by line."""
    scores, weights, count = [], [], 0
    sides = [[line[:, a:b] for line in side.lines for a, b in _letters(line)] for side in (first, second)]
    if len(sides[0]) == len(sides[1]):  # in whatever lines
        pairs, count = list(zip(*sides, strict=True)), len(sides[0])
    elif len(first.lines) == len(second.lines):
        pairs, count = list(zip(first.lines, second.lines, strict=True)), min(map(len, sides))
    else:
        return False
    alike = _ALIKE if len(sides[0]) == len(sides[1]) else _LINE_ALIKE
    scores = [_correlation(*pair) >= alike for pair in pairs]
    weights = [pair[0].shape[1] for pair in pairs]
    return count > _FEW and float(np.average(scores, weights=weights)) >= _MOST


def closer_lines(first: Marks, second: Marks) -> float | None:
    """The pixels by which lines are further apart where they touch on one image; None if they are other ones."""
    sides = (first, second) if len(first.lines) > len(second.lines) else (second, first)
    lines, coverage = sides[0].lines, sides[1].coverage
    if len(lines) < 2 or len(lines) == len(sides[1].lines):
        return None
    tops = []
    for line in lines:
        if line.shape[0] < _LOWEST_LINE or line.shape[0] > coverage.shape[0] or line.shape[1] > coverage.shape[1]:
            return None
        _, score, _, corner = cv2.minMaxLoc(cv2.matchTemplate(coverage, line, cv2.TM_CCOEFF_NORMED))
        if score < _SHIFTED_LINE:
            return None
        tops.append(corner[1])
    steps = [np.diff(each).mean() for each in (tops, sides[0].tops)]
    return float(steps[0] - steps[1]) * (1 if sides[0] is first else -1)


class TextMeasures(NamedTuple):
    """Logarithms of the ratios after to before: of the lines' heights, their widths, the letters' widths (None where
    they are not apart) and the amount of ink; the pixels by which lines are further apart, and the letters; the usual
    height of a line."""

    height: float
    width: float
    letter: float | None
    mass: float
    pitch: float
    gap: float
    line: float


def _mass_ratio(first: Marks, second: Marks) -> float:
    """The logarithm of the ratio of their ink."""
    return math.log(max(second.mass, 1) / max(first.mass, 1))


def _measures(first: Marks, second: Marks) -> TextMeasures:
    """What is measured of the same text before and after."""
    sides = first, second
    heights, widths = ([[line.shape[axis] for line in side.lines] for side in sides] for axis in (0, 1))
    letters = [[end - start for line in side.lines for start, end in _letters(line)] for side in sides]
    equal, apart = len(heights[0]) == len(heights[1]), len(letters[0]) == len(letters[1])
    usual = [float(sum(side) if equal else np.median(side)) for side in heights]
    height = usual[1] / usual[0]
    pitches = [float(np.diff(side.tops).mean()) if len(side.tops) > 1 else 0.0 for side in sides]
    return TextMeasures(
        math.log(height), math.log(sum(widths[1]) / sum(widths[0])),
        math.log(sum(letters[1]) / sum(letters[0])) if apart else None,
        _mass_ratio(first, second), pitches[1] - pitches[0] if equal else 0.0,
        (sum(widths[1]) - sum(widths[0])) / max(1, len(letters[0]) - len(heights[0])), float(np.median(heights[0])),
    )  # fmt: skip


class Explanation(NamedTuple):
    """What changed: its aspect, the end of the clause, what it was and became, and by how much, with the unit."""

    aspect: str
    change: str
    before: str | None = None
    after: str | None = None
    amount: float | None = None
    unit: str | None = None


def typographic(first: Marks, second: Marks) -> Explanation | None:
    """The size, weight, letter spacing or line height that explains both measures of the same text; None if none does,
    or none differs enough."""
    height, width, measured_letter, mass, pitch, gap, line = _measures(first, second)
    letter = measured_letter or 0.0
    if (closer := closer_lines(first, second)) is not None:
        return line_height(closer) if abs(mass) <= _MASS else None
    row = 1 / max(line, 1.0)  # the height is known to a pixel

    def beyond(value: float, tolerance: float) -> float:
        return abs(value) / tolerance

    errors = dict.fromkeys(("font size", "letter spacing", "font weight", "line height"), math.inf)
    is_other_size = max(abs(height), abs(letter)) > _SIZE / 2 or measured_letter is None
    if min(abs(width), abs(mass)) > _SIZE and is_other_size and width * mass > 0:
        errors["font size"] = beyond(mass - 2 * width, 0.12) + max(0.0, beyond(height - width, row) - 0.5)
    if abs(width) > _WIDTH:
        errors["letter spacing"] = beyond(mass, 0.05) + beyond(height, row) + beyond(letter, 0.05)
    if abs(mass) > _MASS and abs(mass) > 1.2 * abs(width):
        errors["font weight"] = (
            beyond(height, row)
            + (abs(width) > 0.09 and not same_letters(first, second)) * 5
            + max(0.0, abs(width) - 0.2) / 0.02
            + 5 * (width * mass < -_TINY)
        )
    if abs(pitch) >= 1:
        errors["line height"] = beyond(mass, 0.05) + beyond(width, 0.02) + beyond(height, row)
    aspect = min(errors, key=lambda name: errors[name])
    if errors[aspect] > _PLAUSIBLE:
        return None
    match aspect:
        case "font size":
            ratio = math.exp(width)
            percent = round(100 * (ratio - 1))
            change = f"became {'larger' if percent > 0 else 'smaller'} (letters by {abs(percent)} %)"
            return Explanation(aspect, change, amount=percent, unit="%")
        case "letter spacing":
            change = f"{'more' if width > 0 else 'less'} space between the letters"
            return Explanation(aspect, f"got {change}", amount=round(gap, 1), unit="px")
        case "font weight":
            percent = round(100 * (math.exp(mass) - 1))
            return Explanation(aspect, f"became {'bolder' if mass > 0 else 'less bold'}", amount=percent, unit="%")
    return line_height(pitch)


def line_height(pitch: float) -> Explanation:
    """Lines that are so many pixels further apart."""
    change = f"{'more' if pitch > 0 else 'less'} space between the lines, by {abs(pitch):.3g} px"
    return Explanation("line height", f"got {change}", amount=round(pitch, 1), unit="px")


def moved_by(first: Marks, second: Marks) -> tuple[int, int] | None:
    """The distance right and down at which the same marks are; None if they are other ones."""
    sizes = [(box[2] - box[0], box[3] - box[1]) for box in (first.box, second.box)]
    if max(abs(np.subtract(sizes[0], sizes[1]))) > 1:
        return None
    if abs(_mass_ratio(first, second)) > _MASS or not _same_shape(first.coverage, second.coverage):
        return None
    dx, dy = np.subtract(second.box[:2], first.box[:2]).tolist()
    return dx, dy
