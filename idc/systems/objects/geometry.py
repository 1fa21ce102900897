"""Boxes (left, top, right, bottom), in pixels, and warped images."""

from __future__ import annotations

import cv2
import numpy as np

Box = tuple[float, float, float, float]
PixelBox = tuple[int, int, int, int]


def warped_box(box: Box, warp: np.ndarray, size: tuple[int, int]) -> Box:
    """The box around a warped box, inside an image of a size (height, width)."""
    left, top, right, bottom = box
    corners = np.array([[(left, top), (right, top), (right, bottom), (left, bottom)]], np.float64)
    x, y = cv2.perspectiveTransform(corners, warp)[0].T
    x, y = x.clip(0, size[1]), y.clip(0, size[0])
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def enlarged_box(box: Box, share: float) -> Box:
    """A box, wider and higher by twice this share."""
    across, down = share * (box[2] - box[0]), share * (box[3] - box[1])
    return box[0] - across, box[1] - down, box[2] + across, box[3] + down


def box_area(box: Box) -> float:
    """Its area."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _shared_area(box: Box, other: Box) -> float:
    return box_area((max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])))


def box_cover(box: Box, other: Box) -> float:
    """Share of a box inside another one."""
    return _shared_area(box, other) / max(box_area(box), 1e-6)


def box_iou(box: Box, other: Box) -> float:
    """Intersection of two boxes over their union."""
    return _shared_area(box, other) / max(box_area(box) + box_area(other) - _shared_area(box, other), 1e-6)


def boxes_overlap(box: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def rounded_box(box: Box, size: tuple[int, int]) -> PixelBox:
    """A box of at least one pixel inside an image of a size (height, width)."""
    height, width = size
    left, top = min(max(0, round(box[0])), width - 1), min(max(0, round(box[1])), height - 1)
    return left, top, min(width, max(left + 1, round(box[2]))), min(height, max(top + 1, round(box[3])))


def bounds_of(mask: np.ndarray) -> PixelBox:
    """The box around a mask's pixels, of which there is at least one."""
    columns, rows = (np.flatnonzero(mask.any(axis=axis)) for axis in (0, 1))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def slices_of(box: PixelBox) -> tuple[slice, slice]:
    """The box as an index of an image."""
    return slice(box[1], box[3]), slice(box[0], box[2])


def shifted_box(box: PixelBox, dx: int, dy: int) -> PixelBox:
    """The box displaced, without what is then left of or above the image."""
    return max(box[0] + dx, 0), max(box[1] + dy, 0), max(box[2] + dx, 0), max(box[3] + dy, 0)


def around_all(boxes: list[PixelBox]) -> PixelBox:
    """The box around several."""
    low, high = np.min(boxes, axis=0), np.max(boxes, axis=0)
    return int(low[0]), int(low[1]), int(high[2]), int(high[3])


def pixels_around(image: np.ndarray, box: PixelBox, margin: int) -> np.ndarray:
    """The values (N, ...) of an image (H, W, ...) within so many pixels outside a box."""
    outer = around(box, margin, image.shape)
    outside = np.ones((outer[3] - outer[1], outer[2] - outer[0]), bool)
    outside[slices_of(shifted_box(box, -outer[0], -outer[1]))] = False
    return np.asarray(image[slices_of(outer)][outside])


def around(box: PixelBox, margin: int, size: tuple[int, ...]) -> PixelBox:
    """The box with a margin, inside an image of a size (height, width)."""
    return (
        max(box[0] - margin, 0), max(box[1] - margin, 0),
        min(box[2] + margin, size[1]), min(box[3] + margin, size[0]),
    )  # fmt: skip


def warped_to(image: np.ndarray, warp: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """An image warped to a size (height, width), and where it shows anything, bool."""
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    shape = (size[1], size[0])
    warped = cv2.warpPerspective(image, warp, shape, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    inside = cv2.warpPerspective(np.ones(image.shape[:2], np.float32), warp, shape, flags=flags)
    return warped, inside > 0.999
