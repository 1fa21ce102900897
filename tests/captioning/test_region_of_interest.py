"""Parts of a pair that do not count: boxes, masks, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from idc.captioning.region_of_interest import Area, areas_of, region_from

SIZE = (40, 60)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("10,20,200,80", [(10, 20, 200, 80)]),
        ("0.1, 0, 1, .5", [(0.1, 0, 1, 0.5)]),
        ("[[0, 0, 9, 9], [1, 1, 2, 2]]", [(0, 0, 9, 9), (1, 1, 2, 2)]),
        (["0,0,9,9", "masks/a.png", (1, 1, 2, 2)], [(0, 0, 9, 9), "masks/a.png", (1, 1, 2, 2)]),
        ("10.png", ["10.png"]),
        ([], []),
    ],
)
def test_boxes_and_masks_are_read_from_texts_json_and_lists(value: Any, parts: list[Any]) -> None:
    assert areas_of(value) == parts


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("10,20,200", "'10,20,200' is not a box; give four numbers, left,top,right,bottom"),
        ("10,20,200,80,90", "is not a box"),
        ([10, 20, "a", 80], "is not a box"),
        ([10, 20, 10**400, 80], "[10, 20, 1000000000"),
        ("-1,0,5," + "5" * 300, "the box -1,0,5,5.55556e+299 is empty"),
        ("10,20,5,80", "the box 10,20,5,80 is empty or begins outside"),
        ("-1,0,5,5", "the box -1,0,5,5 is empty or begins outside"),
        ([0, 0, float("nan"), 1], "empty"),
        ("[[1, 2", "'[[1, 2' cannot be read (not JSON"),
        ("[" * 900 + "]" * 900, "is not a box"),
        ({"left": 1}, "neither a box"),
    ],
)
def test_what_is_no_box_is_named_with_the_form_of_one(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        areas_of(value)


def naive(ignore: Sequence[Any], only: Sequence[Any]) -> np.ndarray:
    """Pixel by pixel, for boxes at whole pixels."""
    region_of_interest = np.zeros(SIZE, bool)
    for y, x in np.ndindex(*SIZE):
        inside = lambda box: box[0] <= x < box[2] and box[1] <= y < box[3]  # noqa: B023, E731
        region_of_interest[y, x] = (not only or any(map(inside, only))) and not any(map(inside, ignore))
    return region_of_interest


@pytest.mark.parametrize(
    ("ignore", "only", "in_pixels"),
    [
        ([(3, 4, 10, 8)], [], None),
        ([], [(3, 4, 10, 8), (8, 6, 500, 500)], None),
        ([(5, 5, 9, 9)], [(3, 4, 10, 12)], None),
        ([(0, 0, 0.5, 1)], [], ([(0, 0, 30, 40)], [])),
        ([], [(0.5, 0.25, 1, 1)], ([], [(30, 10, 60, 40)])),
        ([(0, 0, 1, 2)], [], None),  # a number above 1: pixels
    ],
)
def test_the_counted_part_is_only_without_ignore_in_pixels_or_shares(
    ignore: Sequence[Area], only: Sequence[Area], in_pixels: Any
) -> None:
    region_of_interest = region_from(SIZE, ignore, only)
    assert np.array_equal(region_of_interest, naive(*(in_pixels or (ignore, only))))


def test_a_mask_is_white_where_the_part_is_and_stretched() -> None:
    mask = np.zeros((20, 30, 3), np.uint8)
    mask[:10, :15] = 255
    assert np.array_equal(region_from(SIZE, [mask]), naive([(0, 0, 30, 20)], []))
    assert np.array_equal(region_from(SIZE, (), [mask[..., 0] > 0]), naive([], [(0, 0, 30, 20)]))


def test_all_counts_without_parts_and_nothing_at_all_is_refused() -> None:
    assert region_from(SIZE) is None
    with pytest.raises(ValueError, match="leave nothing of the image"):
        region_from(SIZE, [(0, 0, 60, 40)])
    with pytest.raises(ValueError, match="the box 70,0,80,9 is outside of the image after, which has 60 x 40 pixels"):
        region_from(SIZE, [(70, 0, 80, 9)])
