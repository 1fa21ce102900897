"""Masks with classes: LEVIR-MCI's values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from idc.data.class_masks import class_map
from idc.data.images import encode_png


def test_values_are_classes_in_grey_and_in_three_channels() -> None:
    mask = np.array([[0, 128, 255], [255, 0, 128]], np.uint8)
    expected = [[0, 1, 2], [2, 0, 1]]
    for pixels in (mask, np.repeat(mask[..., None], 3, axis=2)):
        assert class_map(encode_png(pixels)).tolist() == expected


def test_other_values_and_colours_are_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"has the values 1, 2, 3, 4, 5, \.\.\.; its values are 0 \(background\), 128 \(road\)"
    ):
        class_map(encode_png(np.arange(7, dtype=np.uint8)[None]))
    with pytest.raises(ValueError, match=r"has the values 254; its"):
        class_map(encode_png(np.array([[0, 254]], np.uint8)))
    with pytest.raises(ValueError, match="the mask has colours"):
        class_map(encode_png(np.array([[[255, 255, 0]]], np.uint8)))
