"""Masks of changed roads and buildings, as LEVIR-MCI's labels: classes of pixels, and regions with outer contours,
polygons, centroids and positions in a 3x3 grid. A mask that only marks what changed, in 0 and 255, reads as one of
buildings.

A region is a set of 8-connected pixels of a class. Its contour goes through the centres of its outer pixels; the
polygon is the contour, simplified (Douglas and Peucker) with a tolerance that begins at 5 % of the contour's length and
grows by 0.1 pixels until there are at most 8 corners. Coordinates are (x, y) in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import cv2
import numpy as np

from idc.data.images import decode_image

ROAD, BUILDING = "road", "building"
CHANGED = (ROAD, BUILDING)
CLASSES = ("background", *CHANGED)
"""Names of the classes; an index into them is a class of a class map."""
GREYS = {ROAD: 128, BUILDING: 255}
"""Grey values of the classes in LEVIR-MCI's labels; everything else is 0."""

GRID = (
    ("top left corner", "top", "top right corner"),
    ("left", "center", "right"),
    ("lower left corner", "lower", "lower right corner"),
)
"""The names of the positions, row by row."""
POSITIONS = tuple(name for row in GRID for name in row)

_MAX_CORNERS = 8
_TOLERANCE, _STEP = 5, 0.1
"""Tolerance of a polygon: the first one in percent of the contour's length, and by how many pixels it grows."""


@dataclass(frozen=True)
class ChangeRegion:
    """A changed region.

    Attributes:
        polygon: corners, at most 8.
        centroid: None of a region that is not counted (:class:`idc.changeimti.config.RegionConfig`).
        position: one of :data:`POSITIONS`; None without a centroid.
    """

    polygon: Sequence[tuple[int, int]]
    centroid: tuple[int, int] | None
    position: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, as it is in the rows' ``meta``."""
        return asdict(self)


def class_masks(label: np.ndarray) -> dict[str, np.ndarray]:
    """The pixels of each class of a label, uint8 RGB (H, W, 3); bool (H, W).

    Raises:
        ValueError: it has another colour, with the first such pixel and what to do.
    """
    masks = {name: (label == grey).all(axis=2) for name, grey in GREYS.items()}
    strange = label.any(axis=2) & ~masks[ROAD] & ~masks[BUILDING]
    if strange.any():
        y, x = (int(position) for position in np.argwhere(strange)[0])
        count = int(strange.sum())
        raise ValueError(
            f"{count} pixel{'s' * (count != 1)} of another colour, first RGB {tuple(label[y, x].tolist())} at row {y}, "
            f"column {x}; a mask has 0, 128 (road) and 255 (building) alone: export it again as PNG, without resampling"
        )
    return masks


def class_map(mask: bytes) -> np.ndarray:
    """The class of every pixel of an encoded mask, uint8 (H, W).

    Raises:
        ValueError: it is not an image, or has another colour.
    """
    pixels = decode_image(mask)
    classes = np.zeros(pixels.shape[:2], np.uint8)
    for name, inside in class_masks(pixels).items():
        classes[inside] = CLASSES.index(name)
    return classes


def find_regions(mask: np.ndarray, as_published: bool = True) -> list[ChangeRegion]:
    """The regions of a mask, bool (H, W), from the last to the first by their highest (then leftmost) pixel: OpenCV's
    order, in which the notebook lists positions. ``as_published``: see :class:`idc.changeimti.config.RegionConfig`."""
    pixels = mask.astype(np.uint8)
    mode = cv2.RETR_EXTERNAL if as_published else cv2.RETR_CCOMP
    contours, hierarchy = cv2.findContours(pixels, mode, cv2.CHAIN_APPROX_SIMPLE)
    if not as_published:
        _, labels, _, means = cv2.connectedComponentsWithStats(pixels, connectivity=8)
    regions = []
    for number, contour in enumerate(contours):
        if hierarchy[0][number][3] >= 0:  # the border of a hole
            continue
        polygon = _polygon(contour)
        x, y = contour[0, 0].tolist()
        centroid = _centroid(polygon) if as_published else (int(means[labels[y, x]][0]), int(means[labels[y, x]][1]))
        position = None if centroid is None else grid_position(*centroid, *mask.shape)
        regions.append(ChangeRegion([(x, y) for x, y in polygon.reshape(-1, 2).tolist()], centroid, position))
    return regions


def positions_of(regions: Sequence[ChangeRegion]) -> list[str]:
    """The positions of the regions that are counted, one for each."""
    return [region.position for region in regions if region.position is not None]


def grid_position(x: float, y: float, height: int, width: int) -> str:
    """The name of the cell of the 3x3 grid; a point on a line belongs to the cell right of it or below."""
    row, column = (sum(value >= part * size / 3 for part in (1, 2)) for value, size in ((y, height), (x, width)))
    return GRID[row][column]


def _polygon(contour: np.ndarray) -> np.ndarray:
    """The simplified contour, int32 (N, 1, 2)."""
    length = cv2.arcLength(contour, True)
    tolerance = _TOLERANCE * length / 100
    polygon = cv2.approxPolyDP(contour, tolerance, True)
    while len(polygon) > _MAX_CORNERS and tolerance < length:
        tolerance += _STEP
        polygon = cv2.approxPolyDP(contour, tolerance, True)
    return polygon


def _centroid(polygon: np.ndarray) -> tuple[int, int] | None:
    """None without an area."""
    moments = cv2.moments(polygon)
    return (int(moments["m10"] / moments["m00"]), int(moments["m01"] / moments["m00"])) if moments["m00"] else None
