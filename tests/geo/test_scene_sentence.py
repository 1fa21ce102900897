"""The sentence of a scene."""

from __future__ import annotations

import pytest

from idc.geo.scene_sentence import POSITIONS, Tally, position_of, scene_sentence


def tally(area: float, *positions: str) -> Tally:
    result = Tally()
    for position in positions:
        result.add(area, position)
    return result


@pytest.mark.parametrize(
    ("tallies", "sentence"),
    [
        ({None: tally(600, "at the top left")}, "One change, 600 m²: at the top left."),
        ({None: tally(600, "in the middle", "at the top", "in the middle")},
         "3 changes, 1,800 m² in all: 2 in the middle and 1 at the top."),
        ({"road": tally(3e6, "at the top"), "building": tally(100, "at the left", "at the left")},
         "3 changes, 3.00 km² in all: 1 of class road (3.00 km², at the top); "
         "2 of class building (200 m², at the left)."),
        ({"road": Tally(), "building": tally(100, "at the left")},
         "One change, 100 m²: 1 of class building (100 m², at the left)."),
        ({None: Tally()}, "No change of at least 10 m² was found."),
        ({"road": Tally(), "building": Tally()}, "No change of at least 10 m² was found."),
    ],
)  # fmt: skip
def test_numbers_areas_and_positions(tallies: dict[str | None, Tally], sentence: str) -> None:
    assert scene_sentence(tallies, 10, 1.0) == sentence


def test_what_was_not_compared_is_said() -> None:
    nothing = {None: Tally()}
    assert scene_sentence(nothing, 0, 0.88) == (
        "No change was found. In 12 % of the scene there is nothing to compare."
    )
    assert scene_sentence(nothing, 0, 0.9999).endswith("In less than 0.5 % of the scene there is nothing to compare.")
    assert "no pixel in common" in scene_sentence(nothing, 0, 0.0)


def test_the_nine_positions() -> None:
    cells = [position_of(x, y) for y in (0.0, 0.5, 1.0) for x in (0.1, 0.4, 0.99)]
    assert cells == list(POSITIONS)
