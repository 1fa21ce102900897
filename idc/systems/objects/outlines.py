"""What explains the outline of an element that differs: a border or line that came, went or changed, or other corners.

Images are uint8 RGB (H, W, 3); boxes are (left, top, right, bottom), right and bottom the first ones outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import ClaimKind
from idc.systems.objects.canvas import PairCanvas
from idc.systems.objects.geometry import (
    PixelBox,
    around,
    around_all,
    bounds_of,
    box_iou,
    pixels_around,
    shifted_box,
    slices_of,
)
from idc.systems.objects.marks import Explanation
from idc.systems.objects.pixel_changes import clusters_of
from idc.systems.objects.reading import WordReader
from idc.systems.objects.recolouring import Colour, codes_of, main_colour, names_of, same_colour
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
)
from idc.systems.objects.wording import sampled

_PLAIN_LINE = 0.2
"""The same of a line or border, which may be blended with its ground."""
_MIXED = 12
"""Distance of a colour from the mixtures of two others up to which it is one of them."""
_DASHES = 0.4
"""Share of a side that has a border's colour, even if it is broken."""
_MOVED = 3
"""Pixels from the middle of a side that all differ where the whole side did."""
_MIRRORED = 0.6
"""Intersection over union of the four corners of a box, one upon the other."""
_MOST_CORNERS, _SMALLEST_CORNER, _EMPTY_CORNER = 40, 2, 0.2
"""Elements among which corners are looked for; pixels of the smallest one, and the share of its inner part that differs
at most: what is cut off is at the edges."""
_JOINED_CORNERS = 0.05
"""Share of a box whose corners meet that differs at least: a circle cuts off a fifth, another rendering little."""

_COLOURS, _COMMON = 10, 0.2
"""Colours of the different pixels of which rings are looked for, and the share of the pixels that none of them has."""
_SMALLEST_RING, _THICKEST = 20, 12
"""Shortest side of a box with a border, in pixels, and the largest thickness of a border."""
_BLENDED = 0.6
"""Share of its contrast to the ground by which a pixel of a border may differ from its colour."""
_EMPTY_SHADOW, _FADING, _FAINTEST, _PLAIN_AROUND = 0.02, 0.4, 2, 0.5
"""Share of the middle of a box that differs for its shadow at most, and of the pixels that change the other way; share
of its deepest part that a fifth of it does not exceed; grey levels of the deepest part; share of one colour without."""
_STRAIGHT, _THICK = 0.5, 0.125
"""Share of two opposite sides along which a border is straight, and its thickness as a share of the shorter side, which
those of letters with a hole exceed."""
_SAME_BOX, _SAME_CONTENT = 0.6, 0.8
"""Intersection over union of a box before and after; correlation of what is in it."""


class Ring(NamedTuple):
    """A border: its outer box, thickness and colour; the mask (h, w) of it in its box; whether its colour is none that
    differs little from another one, as the bands of a shadow do."""

    box: PixelBox
    thickness: int
    colour: Colour
    mask: np.ndarray
    is_clear: bool


def changed_outlines(canvas: PairCanvas, different: np.ndarray, reader: WordReader) -> tuple[list[Finding], np.ndarray]:
    """The findings on shadows, borders and corners, and the pixels, bool (H, W), that differ for them."""
    explained_pixels, findings = np.zeros_like(different), []
    for find in (_shadows, _borders, _corners):
        labels, boxes = clusters_of(different & ~explained_pixels)
        pair = ScreenPair(canvas, different, labels, (), [], reader)
        for mask, finding in find(pair, pair.elements(boxes)):
            explained_pixels |= mask
            findings.append(finding)
    return findings, explained_pixels


def _shadows(pair: ScreenPair, elements: Sequence[Element]) -> list[tuple[np.ndarray, Finding]]:
    """Shadows of boxes that came, went, or became deeper or fainter: all around is darker or lighter, ever less."""
    result = []
    for element in elements[:_MOST_CORNERS]:
        mask, box = pair.mask(element), slices_of(element.box)
        height, width = mask.shape
        inside = mask[height // 4 : -(height // 4) or None, width // 4 : -(width // 4) or None]
        if min(mask.shape) < _SMALLEST_RING * pair.scale or inside.mean() > _EMPTY_SHADOW:
            continue
        parts = [image[box][mask] for image in pair.images]
        change = parts[1].mean(axis=1) - parts[0].mean(axis=1)
        sign, depth = np.sign(change.sum()), np.abs(change)
        most = np.percentile(depth, 95)
        if (change * sign < 0).mean() > _EMPTY_SHADOW or np.percentile(depth, 20) > _FADING * most or most < _FAINTEST:
            continue
        grounds = [main_colour(pixels_around(image, element.box, 3)).code for image in pair.images]
        plain = [main_colour(part).share >= _PLAIN_AROUND for part in parts]
        kind: ClaimKind = "appeared" if plain[0] else "gone" if plain[1] else "changed"
        change_of = {"appeared": "{} got a shadow", "gone": "{} lost its shadow"}
        clause = change_of.get(kind, f"the shadow of {{}} became {'deeper' if sign < 0 else 'fainter'}")
        if grounds[0] == grounds[1] and plain != [True, True]:
            claim = claim_of(element, "region", Explanation("shadow", "", amount=round(float(most), 1)), kind)
            result.append((np.isin(pair.labels, element.numbers), Finding(claim, clause)))
    return result


def _borders(pair: ScreenPair, _: Sequence[Element]) -> list[tuple[np.ndarray, Finding]]:
    """Borders that came, went, or became thicker, thinner or another colour, each with the mask (H, W) of what differs
    for it, also where the box grew by them."""
    different, findings = pair.labels > 0, []
    if not different.any():
        return []
    window = around(bounds_of(different), 2 * _THICKEST * pair.scale, different.shape)
    codes = [codes_of(image[slices_of(window)]) for image in pair.images]
    thin = [code[_is_thin(code, pair.scale) & different[slices_of(window)]] for code in codes]
    values, counts = np.unique(np.concatenate(thin), return_counts=True)
    colours = [Colour(int(code)) for code in values[np.argsort(-counts)][:_COLOURS]]
    sides = [_rings(image, code, window, colours, pair.scale) for image, code in zip(pair.images, codes, strict=True)]
    pairs: list[tuple[Ring | None, Ring | None]] = []
    rest = list(sides[0])
    for ring in sides[1]:
        near = max(rest, key=lambda other: box_iou(other.box, ring.box), default=None)
        near = near if near is not None and box_iou(near.box, ring.box) >= _SAME_BOX else None
        rest = [other for other in rest if other is not near]
        pairs.append((near, ring))
    pairs += [(ring, None) for ring in rest]
    for before, after in pairs:
        if not all(ring.is_clear for ring in (before, after) if ring is not None):
            continue
        if before is not None and after is not None:
            if before.thickness == after.thickness:  # its colour may be that of a part that is fainter
                continue
        elif not _is_new_border(pair, before or after, 1 if before is None else 0, sides):
            continue
        mask = np.zeros_like(different)
        for ring in filter(None, (before, after)):
            mask[slices_of(ring.box)] |= ring.mask
        reach = 2 * max(ring.thickness for ring in (before, after) if ring is not None) + 5
        mask = cv2.dilate(mask.astype(np.uint8), np.ones((reach, reach), np.uint8)) > 0
        if (mask & different).any():
            findings.append((mask, _border_finding(pair, before, after)))
    return findings


def _is_thin(codes: np.ndarray, scale: int) -> np.ndarray:
    """Where codes (H, W) are those of a thin straight line across, bool (H, W)."""
    length, reach = _SMALLEST_RING * scale // 2, _THICKEST * scale + 1
    result = np.zeros(codes.shape, bool)
    padded = np.pad(codes, ((reach, reach), (0, 0)), mode="edge")
    result[:, :-length] = (codes[:, :-length] == codes[:, length:]) & (
        codes[:, :-length] == codes[:, length // 2 : -length + length // 2]
    )
    return result & (padded[: -2 * reach] != codes) & (padded[2 * reach :] != codes)


def _rings(image: np.ndarray, codes: np.ndarray, window: PixelBox, colours: Sequence[Colour], scale: int) -> list[Ring]:
    """The closed outlines of these colours in a window, with the blends at their corners."""
    part = image[slices_of(window)]
    values, counts = np.unique(sampled(codes.ravel()), return_counts=True)
    frequent = values[np.argsort(-counts)][:_COLOURS]
    ground = Colour(int(frequent[0]))
    is_other = np.isin(codes, frequent)
    rings: list[Ring] = []
    for colour in colours:
        contrast = float(np.abs(colour.rgb - ground.rgb).max())
        low, high = (np.clip(colour.rgb[0] + sign * _BLENDED * contrast, 0, 255) for sign in (-1, 1))
        near = cv2.inRange(part, low, high)
        near[is_other & (codes != colour.code)] = 0
        blended = any(0 < np.abs(colour.rgb - Colour(int(other)).rgb).max() <= _FAINTEST for other in frequent)
        if not contrast or (near > 0).mean() > _COMMON:
            continue
        closed = cv2.dilate(near, np.ones((3, 3), np.uint8))
        count, labels, stats, _ = cv2.connectedComponentsWithStats(closed, connectivity=4)
        for number in range(1, count):
            x, y, width, height = stats[number, :4].tolist()
            if min(width, height) < _SMALLEST_RING * scale:
                continue
            mask = labels[y : y + height, x : x + width] == number
            if (thickness := _ring_thickness(mask, scale)) > 0:
                box = shifted_box((x + 1, y + 1, x + width - 1, y + height - 1), *window[:2])
                ring = Ring(box, thickness, colour, mask[1:-1, 1:-1], contrast >= STROKE and not blended)
                if not any(box_iou(box, other.box) >= _SAME_CONTENT for other in rings):
                    rings.append(ring)
    return rings


def _ring_thickness(mask: np.ndarray, scale: int) -> int:
    """The thickness of what is a border, dilated by a pixel; 0 if it is none."""
    _, _, stats, _ = cv2.connectedComponentsWithStats((~mask).astype(np.uint8), connectivity=4)
    left, top, width, height = stats[1:, :4].T
    ends = np.stack([left, top, mask.shape[1] - left - width, mask.shape[0] - top - height], axis=1)
    inside = np.flatnonzero((ends.min(axis=1) >= 3) & (ends.max(axis=1) <= _THICKEST * scale))
    if not len(inside):
        return 0
    margins = ends[inside[0]] - 2
    thickness = round(float(np.median(margins)))
    straight = [min(float(turned[0].mean()), float(turned[-1].mean())) for turned in (mask, mask.T)]
    even = (abs(margins - thickness) <= 1).sum() >= 3 and thickness <= _THICK * min(mask.shape)
    return thickness if even and max(straight) >= _STRAIGHT else 0


def _is_new_border(pair: ScreenPair, ring: Ring | None, side: int, sides: Sequence[Sequence[Ring]]) -> bool:
    """Whether what is in a ring was there without it on the other image."""
    assert ring is not None
    moved = any(
        other.thickness == ring.thickness and same_colour(other.colour, ring.colour)
        and max(abs(other.mask.shape[axis] - ring.mask.shape[axis]) for axis in (0, 1)) <= 2 * ring.thickness
        for other in sides[1 - side]
    )  # fmt: skip
    other = pair.images[1 - side]
    if moved or strokes_of(other, ring.box)[0]:
        return False
    margin = ring.thickness + 1
    left, top, right, bottom = ring.box
    inner = pair.images[side][top + margin : bottom - margin, left + margin : right - margin]
    reach = 2 * ring.thickness + 2
    around_it = other[slices_of(around(ring.box, reach, other.shape))]
    if inner.std(axis=(0, 1)).max() < 1:
        return bool((codes_of(around_it) == codes_of(inner[:1, :1])[0, 0]).mean() > _SAME_BOX)
    if min(np.subtract(around_it.shape[:2], inner.shape[:2])) < 0:  # at the edge of the picture
        return False
    return float(cv2.matchTemplate(around_it, inner, cv2.TM_CCOEFF_NORMED).max()) >= _SAME_CONTENT


def _border_finding(pair: ScreenPair, before: Ring | None, after: Ring | None) -> Finding:
    boxes = [ring.box for ring in (before, after) if ring is not None]
    looks = [
        (0, Colour(0), False) if ring is None else (ring.thickness, ring.colour, False) for ring in (before, after)
    ]
    finding = _changed_stroke(Element(boxes[-1], (), pair.canvas.where(boxes[-1])), looks, "border", "{}")
    claim = finding.claim
    return finding._replace(claim=replace(claim, box_before=claim.box_before and boxes[0]))


def _corners(pair: ScreenPair, elements: Sequence[Element]) -> list[tuple[np.ndarray, Finding]]:
    """Boxes whose corners alone differ: four, two of rounded ends, or a circle."""
    result: list[tuple[np.ndarray, Finding]] = []
    left = [element for element in elements if not is_line(element.box, pair.scale)][:_MOST_CORNERS]
    used: set[Element] = set()
    for element, other in product(left, left):
        outer = around_all([element.box, other.box])
        if outer[:2] != element.box[:2] or outer[2:] != other.box[2:] or element in used:
            continue
        inside = [each for each in left if around_all([outer, each.box]) == outer]
        if len(inside) in (1, 2, 4) and _at_corners(pair, inside, outer):
            mask = np.isin(pair.labels, [number for each in inside for number in each.numbers])
            result.append((mask, _corner_finding(pair, inside, outer)))
            used.update(inside)
    return result


def _at_corners(pair: ScreenPair, elements: Sequence[Element], box: PixelBox) -> bool:
    """Whether pixels are at all corners of a box, each time mirrored, as far along one edge as along the other, and not
    in the middle."""
    mask = np.isin(pair.labels[slices_of(box)], [number for each in elements for number in each.numbers])
    height, width = mask.shape[0] // 2, mask.shape[1] // 2
    if not height or not width:
        return False
    middles = mask[height, :_MOVED], mask[height, -_MOVED:], mask[:_MOVED, width], mask[-_MOVED:, width]
    if any(middle.all() for middle in middles):  # a round thing that moved
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
        region = f"a region of {pair.measured(element.box)} {element.where}"
        parts = [image[slices_of(element.box)][mask] for image in pair.images]
        colours = [main_colour(part) for part in parts]
        was, is_now = empty_sides(pair, element, colours, [grounds_of(image, element, mask) for image in pair.images])
        thickness, other_thickness = 0 if was else 1, 0 if is_now else 1
        colour, other_colour = colours
    return _changed_stroke(
        element, [(thickness, colour, dashed), (other_thickness, other_colour, other_dashed)], thing, region
    )


def _changed_stroke(element: Element, looks: Sequence[tuple[int, Colour, bool]], thing: str, region: str) -> Finding:
    """The finding on a line or border with a thickness (0: none), colour and whether it is broken, before and after."""
    (thickness, colour, dashed), (other_thickness, other_colour, other_dashed) = looks
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
