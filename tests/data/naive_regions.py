"""A second implementation of the regions, in plain loops without OpenCV: flood fill, border following (Suzuki and Abe
1985, algorithm 1, of outer borders), Douglas and Peucker's simplification with OpenCV's two start points and last pass,
and the centroid by Green's formula. It shares nothing with the program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

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
    start = min(pixels, key=lambda pixel: (pixel[1], pixel[0]))

    def neighbour(of: Point, direction: int) -> Point:
        dx, dy = CLOCKWISE[direction % 8]
        return of[0] + dx, of[1] + dy

    first = next((d for d in range(8) if neighbour(start, d) in pixels), None)
    if first is None:
        return [start]
    last = neighbour(start, first)
    border, current, back = [], start, first
    while True:
        ahead = next(back - k for k in range(1, 9) if neighbour(current, back - k) in pixels)
        border.append(current)
        following = neighbour(current, ahead)
        if following == start and current == last:
            return border
        current, back = following, (ahead + 4) % 8


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
    polygon = _douglas_peucker(corners, tolerance)
    while len(polygon) > 8 and tolerance < length:
        tolerance += 0.1
        polygon = _douglas_peucker(corners, tolerance)
    return polygon


def _douglas_peucker(points: list[Point], tolerance: float) -> list[Point]:
    """Of a closed line: it is cut at two points far from each other, which are looked for three times, each time from
    the last one on; both parts are simplified, and then corners almost between their neighbours are left out."""
    count, here, farthest = len(points), 0, 0
    for _ in range(3):
        here = (here + farthest) % count
        farthest, distance = 0, 0.0
        for step in range(1, count):
            if (d := math.dist(points[here], points[(here + step) % count])) > distance:
                farthest, distance = step, d
    if distance <= tolerance:
        return [points[here]]
    ring = [points[(here + step) % count] for step in range(count + 1)]
    return _straightened(_half(ring[: farthest + 1], tolerance) + _half(ring[farthest:], tolerance), tolerance)


def _half(line: list[Point], tolerance: float) -> list[Point]:
    """An open line without its last point: cut at the point farthest from the segment between its ends."""
    distances = [_distance(point, line[0], line[-1]) for point in line[1:-1]]
    if not distances or max(distances) <= tolerance**2:
        return [line[0]]
    cut = distances.index(max(distances)) + 1
    return _half(line[: cut + 1], tolerance) + _half(line[cut:], tolerance)


def _distance(point: Point, start: Point, end: Point) -> Fraction:
    """Squared distance of a point from a segment."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    px, py = point[0] - start[0], point[1] - start[1]
    along, length = px * dx + py * dy, dx * dx + dy * dy
    if along < 0:
        return Fraction(px * px + py * py)
    if along > length:
        return Fraction((px - dx) ** 2 + (py - dy) ** 2)
    return Fraction((py * dx - px * dy) ** 2, length)


def _straightened(polygon: list[Point], tolerance: float) -> list[Point]:
    """The last pass: once around, a corner is left out if it lies within the square root of half the tolerance squared
    of the line between its neighbours, between them, and that line is not horizontal or vertical; the corner after it
    stays."""
    count = len(polygon)
    written, left, n = list(polygon), count, 0
    before, corner = polygon[-1], polygon[0]
    read, write = 1 % count, 0
    while n < count and left > 2:
        after = written[read]
        read = (read + 1) % count
        dx, dy = after[0] - before[0], after[1] - before[1]
        off = abs((corner[0] - before[0]) * dy - (corner[1] - before[1]) * dx)
        along = (corner[0] - before[0]) * (after[0] - corner[0]) + (corner[1] - before[1]) * (after[1] - corner[1])
        if off * off <= 0.5 * tolerance**2 * (dx * dx + dy * dy) and dx and dy and along >= 0:
            left -= 1
            written[write] = before = after
            write = (write + 1) % count
            corner = written[read]
            read = (read + 1) % count
            n += 2
            continue
        written[write] = before = corner
        write = (write + 1) % count
        corner = after
        n += 1
    return written[:left]


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
