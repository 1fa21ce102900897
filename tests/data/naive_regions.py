"""A second implementation of the regions: flood fill, the corners of each region's border, and the centroid by Green's
formula in fractions. OpenCV follows the border of one region, and simplifies it at one tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import cv2
import numpy as np

Point = tuple[int, int]
"""(x, y)"""
CLOCKWISE = ((-1, 0), (-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1))
"""Steps (x, y) to the neighbours of a pixel, from the west over the north, as they are seen."""
NAMES = {
    (0, 0): "top left corner", (0, 1): "top", (0, 2): "top right corner",
    (1, 0): "left", (1, 1): "center", (1, 2): "right",
    (2, 0): "lower left corner", (2, 1): "lower", (2, 2): "lower right corner",
}  # fmt: skip


def naive_regions(mask: np.ndarray, published: bool) -> list[tuple[list[Point], Point | None, str | None]]:
    """Polygon, centroid and position of each region, in the order of the program."""
    outside = _outside(mask)
    regions = []
    for pixels in _components(mask):
        if published and not any(point in outside for pixel in pixels for point in _four(pixel)):
            continue
        polygon = _simplified(_corners(_border(pixels)))
        middle = _centroid(polygon) if published else _mean(list(pixels))
        whole = None if middle is None else (math.trunc(middle[0]), math.trunc(middle[1]))
        regions.append((polygon, whole, None if whole is None else _cell(whole, mask.shape)))
    return regions[::-1]


def _mean(points: list[Point]) -> tuple[Fraction, Fraction]:
    return Fraction(sum(x for x, _ in points), len(points)), Fraction(sum(y for _, y in points), len(points))


def _components(mask: np.ndarray) -> Iterator[set[Point]]:
    """8-connected pixels that are set, by their first pixel row by row."""
    left = {(int(x), int(y)) for y, x in np.argwhere(mask)}
    for y, x in np.argwhere(mask):
        if (first := (int(x), int(y))) not in left:
            continue
        component, queue = set(), [first]
        while queue:
            pixel = queue.pop()
            if pixel in left:
                left.remove(pixel)
                component.add(pixel)
                queue += [(pixel[0] + dx, pixel[1] + dy) for dx, dy in CLOCKWISE]
        yield component


def _four(pixel: Point) -> list[Point]:
    x, y = pixel
    return [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]


def _outside(mask: np.ndarray) -> set[Point]:
    """The background that is 4-connected with a frame of one pixel around the mask: all but the holes."""
    height, width = mask.shape
    reached: set[Point] = set()
    queue = [(-1, -1)]
    while queue:
        x, y = pixel = queue.pop()
        inside = 0 <= x < width and 0 <= y < height
        if pixel in reached or not (-1 <= x <= width and -1 <= y <= height) or (inside and mask[y, x]):
            continue
        reached.add(pixel)
        queue += _four(pixel)
    return reached


def _border(pixels: set[Point]) -> list[Point]:
    """The outer border, from the highest and then leftmost pixel on, against the clock."""
    mask = np.zeros([max(axis) + 2 for axis in zip(*((y, x) for x, y in pixels), strict=True)], np.uint8)
    for x, y in pixels:
        mask[y, x] = 1
    [border], _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    return [(x, y) for x, y in border[:, 0].tolist()]


def _corners(border: list[Point]) -> list[Point]:
    """Without the pixels in the middle of horizontal, vertical and diagonal runs."""
    kept = []
    for n, (x, y) in enumerate(border):
        (x0, y0), (x1, y1) = border[n - 1], border[(n + 1) % len(border)]
        if (x - x0, y - y0) != (x1 - x, y1 - y) or len(border) == 1:
            kept.append((x, y))
    return kept


def _length(points: list[Point]) -> float:
    return sum(math.dist(points[n - 1], points[n]) for n in range(len(points)))


def _simplified(corners: list[Point]) -> list[Point]:
    """5 % of the length, and 0.1 more until at most 8 corners are left."""
    length = _length(corners)
    tolerance = 5 * length / 100
    while True:
        polygon = cv2.approxPolyDP(np.array(corners), tolerance, closed=True)[:, 0].tolist()
        if len(polygon) <= 8 or tolerance >= length:
            return [(x, y) for x, y in polygon]
        tolerance += 0.1


def _centroid(polygon: list[Point]) -> tuple[Fraction, Fraction] | None:
    """By Green's formula, exactly; None if the area is 0."""
    crosses = [
        (polygon[n - 1], polygon[n], polygon[n - 1][0] * polygon[n][1] - polygon[n][0] * polygon[n - 1][1])
        for n in range(len(polygon))
    ]
    area = Fraction(sum(cross for _, _, cross in crosses), 2)
    if area == 0:
        return None
    x = Fraction(sum((a[0] + b[0]) * cross for a, b, cross in crosses), 6)
    y = Fraction(sum((a[1] + b[1]) * cross for a, b, cross in crosses), 6)
    return x / area, y / area


def _cell(point: Point, shape: tuple[int, ...]) -> str:
    """A polygon that crosses itself may have its centroid outside of the mask."""
    row, column = (min(max(3 * point[axis] // shape[1 - axis], 0), 2) for axis in (1, 0))
    return NAMES[row, column]
