"""What explains the outline of an element that differs: a border or line that came, went or changed, or other corners.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from idc.systems.objects.geometry import PixelBox, around, around_all, slices_of
from idc.systems.objects.marks import Explanation
from idc.systems.objects.recolouring import Colour, main_colour, names_of
from idc.systems.objects.screen_pair import (
    ALL,
    STROKE,
    Element,
    Finding,
    ScreenPair,
    claim_of,
    empty_sides,
    grounds_of,
    is_line,
    measured,
)

_PLAIN_LINE = 0.2
"""The same of a line or border, which may be blended with its ground."""
_MIXED = 12
"""Distance of a colour from the mixtures of two others up to which it is one of them."""
_DASHES = 0.4
"""Share of a side that has a border's colour, even if it is broken."""
_MIRRORED = 0.6
"""Intersection over union of the four corners of a box, one upon the other."""
_MOST_CORNERS, _SMALLEST_CORNER, _EMPTY_CORNER = 40, 2, 0.2
"""Elements among which corners are looked for; pixels of the smallest one, and the share of its inner part that differs
at most: what is cut off is at the edges."""
_JOINED_CORNERS = 0.05
"""Share of a box whose corners meet that differs at least: a circle cuts off a fifth, another rendering little."""


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
    if len(elements) == 1 and mask.mean() < _JOINED_CORNERS:
        return False
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


def stroke_finding(pair: ScreenPair, element: Element, mask: np.ndarray, thing: str) -> Finding:
    """A line or border that came, went, or became thicker, dashed or of another colour."""
    looks = [strokes_of(image, element.box) for image in pair.images]
    (thickness, colour, dashed), (other_thickness, other_colour, other_dashed) = looks
    region = "{}"
    if thing == "line":
        region = f"a region of {measured(element.box)} {element.where}"
        parts = [image[slices_of(element.box)][mask] for image in pair.images]
        colours = [main_colour(part) for part in parts]
        was, is_now = empty_sides(pair, element, colours, [grounds_of(image, element, mask) for image in pair.images])
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


def strokes_of(image: np.ndarray, box: PixelBox) -> tuple[int, Colour, bool]:
    """Thickness, colour and whether it is broken, of the border at the edges of a box; thickness 0 without one."""
    outer = around(box, 3, image.shape[:2])
    part = image[slices_of(outer)].astype(np.int16)
    depth = min(24, min(part.shape[:2]) // 3)
    widths, colours, breaks = [], [], []
    for turned in (part, part[::-1], part.transpose(1, 0, 2), part.transpose(1, 0, 2)[::-1]):
        length = turned.shape[1]
        profile = turned[:depth, length // 4 : -(length // 4) or None]
        inked = np.abs(profile - np.median(profile[0], axis=0)).max(axis=2) > STROKE
        starts = np.flatnonzero(inked.mean(axis=1) > 0.3)
        if not len(starts) or not starts[0]:  # what is around it has many colours
            continue
        first = inked[starts[0]]
        colour = main_colour(profile[starts[0]][first].astype(np.uint8))
        drawn = np.abs(profile[starts[0] :] - colour.rgb.astype(np.int16)).max(axis=2) <= STROKE
        same = drawn.mean(axis=1) > _DASHES
        width = int(np.argmin(same)) if not same.all() else depth
        around_it, inside = (np.median(profile[row], axis=0) for row in (0, min(starts[0] + width, depth - 1)))
        blended = width == 1 and _is_mixture(colour.rgb.ravel(), around_it, inside)  # an edge, rendered smoothly
        if 0 < width < depth - 4 and not blended:  # else it fills the box
            widths.append(width)
            colours.append(colour.code)
            breaks.append(float(drawn[0].mean()) < ALL and np.abs(np.diff(drawn[0].astype(int))).sum() > 4)
    if len(widths) < 3:
        return 0, Colour(0, 0.0), False
    values, counts = np.unique(colours, return_counts=True)
    return round(float(np.median(widths))), Colour(int(values[counts.argmax()])), sum(breaks) >= 2


def _is_mixture(colour: np.ndarray, first: np.ndarray, second: np.ndarray) -> bool:
    way, at = second - first, colour - first
    part = float(at @ way / max(way @ way, 1e-6))
    return 0 < part < 1 and bool(np.linalg.norm(at - part * way) <= _MIXED)
