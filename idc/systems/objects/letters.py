"""Parts of images as rectangles, and how much the letters in a part of two images differ."""

from __future__ import annotations

import cv2
import numpy as np

_LETTER = 24
"""Height at which the pixels of a word are compared."""
_SHIFT = 3
"""Displacements of a word that do not count, at that height."""


def cut_out(image: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A part of an image at a size; the matrix leads from its pixels to the image's."""
    height, width = size
    corners = np.array([[[0, 0], [width, 0], [width, height], [0, height]]], float)
    bounds = cv2.perspectiveTransform(corners, matrix)[0]
    # Only the surroundings are filtered, not the whole of a large image.
    x, y = (max(0, int(low) - 4) for low in bounds.min(0))
    right, bottom = (int(high) + 5 for high in bounds.max(0))
    part = image[y:bottom, x:right]
    if not part.size:
        return np.zeros((height, width, *image.shape[2:]), image.dtype)
    reduction = float(
        max(np.linalg.norm(bounds[1] - bounds[0]) / width, np.linalg.norm(bounds[3] - bounds[0]) / height)
    )
    if reduction > 1.5:
        part = cv2.GaussianBlur(part, (0, 0), reduction / 3)  # a smaller part has not the detail of the image
    moved = np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1.0]]) @ matrix
    flags = (cv2.INTER_CUBIC if reduction < 1 else cv2.INTER_LINEAR) | cv2.WARP_INVERSE_MAP
    return cv2.warpPerspective(part, moved, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def flattened(image: np.ndarray, quad: np.ndarray, height: int, border: int = 0) -> np.ndarray:
    """A quadrilateral as a rectangle of a height, with a border of pixels around it."""
    across, down = (
        float(np.linalg.norm(quad[a] - quad[b], axis=1).max()) for a, b in (([1, 2], [0, 3]), ([3, 2], [0, 1]))
    )
    width = max(height // 2, round(height * across / max(down, 1.0)))
    ends = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32) + border
    matrix = cv2.getPerspectiveTransform(ends, quad.astype(np.float32))
    return cut_out(image, matrix, (height + 2 * border, width + 2 * border))


def difference_of_letters(before: np.ndarray, after: np.ndarray, quad: np.ndarray, blur: float = 0.0) -> float:
    """The difference of two images (float32, (H, W)) in the window, as large as a letter, of a quadrilateral where they
    differ most: a share of the contrast, whatever their light, at the displacement at which the two agree best, with a
    blur of both."""
    first, second = (flattened(image, quad, _LETTER, _SHIFT) for image in (before, after))
    if blur:
        first, second = (cv2.GaussianBlur(patch, (0, 0), blur) for patch in (first, second))
    first = first[_SHIFT:-_SHIFT, _SHIFT:-_SHIFT]
    height, width = first.shape
    contrast = max(first.std(), second.std(), 1.0)
    best = np.inf
    for y in range(2 * _SHIFT + 1):
        for x in range(2 * _SHIFT + 1):
            pair = [
                (patch - patch.mean()) / max(patch.std(), contrast / 3)
                for patch in (first, second[y : y + height, x : x + width])
            ]
            windows = cv2.blur((pair[0] - pair[1]) ** 2 / 2, (_LETTER // 2, _LETTER))
            middle = windows[_LETTER // 2, _LETTER // 4 : max(width - _LETTER // 4, _LETTER // 4) + 1]
            best = min(best, float(middle.max()))
    return best
