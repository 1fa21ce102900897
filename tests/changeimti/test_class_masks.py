"""Masks with classes: LEVIR-MCI's values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from idc.changeimti.change_regions import GREYS
from idc.changeimti.class_masks import CLASSES, class_map
from idc.data.images import encode_png


def test_values_are_classes_in_grey_and_in_three_channels() -> None:
    mask = np.array([[0, 128, 255], [255, 0, 128]], np.uint8)
    expected = [[0, 1, 2], [2, 0, 1]]
    for pixels in (mask, np.repeat(mask[..., None], 3, axis=2)):
        assert class_map(encode_png(pixels)).tolist() == expected
    assert CLASSES == ("background", "road", "building")
    assert np.array_equal(np.array([0, *GREYS.values()])[class_map(encode_png(mask))], mask)


def test_other_values_and_colours_are_refused_by_name() -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[1, 2] = 254
    with pytest.raises(ValueError, match=r"1 pixel of another colour, first RGB .* at row 1, column 2"):
        class_map(encode_png(pixels))
