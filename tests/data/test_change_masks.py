"""Regions and classes of a mask: equal to a second implementation; values; settings that undo the notebook's bugs."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from idc.changeimti.config import RegionConfig
from idc.data.change_masks import (
    BUILDING,
    CLASSES,
    GREYS,
    ROAD,
    class_map,
    class_masks,
    find_regions,
)
from idc.data.images import encode_png
from tests.data.naive_regions import naive_regions

MASKS = 200
DEFAULT = RegionConfig()


def random_mask(seed: int) -> np.ndarray:
    """Blobs, roofs, rings with islands, roads one to three pixels wide, junctions of many roads, single pixels, also at
    the borders."""
    rng = np.random.default_rng(seed)
    height, width = (int(n) for n in rng.integers(24, 60, size=2))
    noise = cv2.GaussianBlur(rng.standard_normal((height, width)), (0, 0), float(rng.uniform(0.8, 3)))
    mask = (noise > np.quantile(noise, rng.uniform(0.6, 0.97))).astype(np.uint8)
    for _ in range(rng.integers(4)):
        x, y = int(rng.integers(-4, width)), int(rng.integers(-4, height))
        box = ((x, y), (int(rng.integers(3, 16)), int(rng.integers(3, 16))), float(rng.uniform(0, 90)))
        cv2.fillPoly(mask, [cv2.boxPoints(box).astype(np.int32)], int(rng.random() < 0.7))
    for _ in range(rng.integers(3)):
        start, end = (tuple(int(n) for n in rng.integers(0, (width, height))) for _ in range(2))
        cv2.line(mask, start, end, 1, int(rng.integers(1, 4)))
    if rng.random() < 0.4:
        draw_junction(mask, int(rng.integers(4, 7)), float(rng.uniform(0, 1)))
    if rng.random() < 0.5:
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        for radius, value in ((12, 1), (8, 0), (4, 1), (1, 0)):
            cv2.circle(mask, (x, y), radius, value, -1)
    mask[rng.random(mask.shape) < rng.choice([0, 0.01])] = 1
    return mask.astype(bool)


def draw_junction(mask: np.ndarray, roads: int, turn: float) -> None:
    """Thin roads from the middle in all directions: a contour whose corners are far from each other."""
    middle = np.array([mask.shape[1], mask.shape[0]]) / 2
    for number in range(roads):
        angle = 2 * np.pi * (number + turn) / roads
        end = middle + (middle - 2) * [np.cos(angle), np.sin(angle)]
        cv2.line(mask, middle.astype(int).tolist(), end.astype(int).tolist(), 1, 1)


@pytest.mark.parametrize("published", [True, False])
def test_geometry_equals_a_second_implementation(published: bool) -> None:
    regions = dropped = 0
    for seed in range(MASKS if published else 80):
        mask = random_mask(seed)
        actual = [(list(r.polygon), r.centroid, r.position) for r in find_regions(mask, published)]
        expected = naive_regions(mask, published)
        assert actual == expected, f"mask {seed}"
        regions += len(actual)
        dropped += sum(position is None for _, _, position in actual)
        assert all(len(polygon) <= 8 for polygon, _, _ in actual)
    assert regions > (1200 if published else 200)
    assert (dropped > 0) == published


def test_labels_have_their_values_and_other_colours_are_named() -> None:
    label = np.zeros((4, 6, 3), np.uint8)
    label[0, 0], label[1, 2:5] = 128, 255
    masks = class_masks(label)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {ROAD: 1, BUILDING: 3}
    label[0, 0] = (255, 255, 0)
    text = r"^1 pixel of another colour, first RGB \(255, 255, 0\) at row 0, column 0; a mask has 0, 128 .*again as PNG"
    with pytest.raises(ValueError, match=text):
        class_masks(label)


def test_values_are_classes_in_grey_and_in_three_channels() -> None:
    mask = np.array([[0, 128, 255], [255, 0, 128]], np.uint8)
    expected = [[0, 1, 2], [2, 0, 1]]
    for pixels in (mask, np.repeat(mask[..., None], 3, axis=2)):
        assert class_map(encode_png(pixels)).tolist() == expected
    assert CLASSES == ("background", "road", "building")
    assert np.array_equal(np.array([0, *GREYS.values()])[class_map(encode_png(mask))], mask)
