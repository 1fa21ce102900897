"""The regions of a class map are counted as ChangeIMTI counts those of a mask."""

from __future__ import annotations

import numpy as np

from idc.captioning.class_counts import ClassCount, count_classes
from idc.captioning.contract import ClassMap

NAMES = ("background", "road", "building")


def test_regions_of_each_class_with_their_positions_and_share() -> None:
    classes = np.zeros((30, 30), np.uint8)
    classes[2:8, 2:8] = 2
    classes[20:28, 1:9] = 2
    classes[:, 11:20] = 1
    classes[15, 28] = 2  # without an area: not counted, as in the published answers
    road, building = count_classes(ClassMap(classes, NAMES))
    assert road == ClassCount("road", 1, 270 / 900, ("center",))
    assert building == ClassCount("building", 2, 101 / 900, ("lower left corner", "top left corner"))
    assert building.to_dict() == {
        "name": "building", "count": 2, "share": 101 / 900, "positions": ["lower left corner", "top left corner"],
    }  # fmt: skip
