"""Known noise: the words that the oracle made wrong, the patches of objects that a description does not name, and how
well scores find them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from idc.data.images import encode_png
from idc.data.rendered.scene import View
from idc.systems.namc.known_noise import areas_under_roc, ideal_irrelevance, noisy_words, undescribed_patches

LARGE = {"size": "large", "radius": 1, "turn": 0}
THINGS: list[dict[str, Any]] = [
    {**LARGE, "shape": "cube", "color": "red", "material": "metal", "x": 2, "y": -1},
    {**LARGE, "shape": "sphere", "color": "blue", "material": "rubber", "x": -2, "y": 1},
]
VIEW = {"origin": [6.8, -5.0, 4.8], "target": [0.0, 0.0, 0.3]}
META = {"before": THINGS, "after": THINGS[:1], "views": [VIEW, VIEW]}
WIDE = encode_png(np.zeros((60, 120, 3), np.uint8))


def test_noise_marks_the_words_that_it_covers() -> None:
    text = "a red cube left of a red ball"
    noise = [{"image": "before", "start": 21, "end": 29, "kind": "wrong_object"},
             {"image": "before", "start": 2, "end": 2, "kind": "missing_detail"},
             {"image": "after", "start": 0, "end": 5, "kind": "wrong_object"}]  # fmt: skip
    assert noisy_words(text, noise, "before") == [0, 0, 0, 0, 0, 0, 1, 1]
    assert noisy_words(text, None, "before") is None


def centres(side: int) -> list[int]:
    """Patch of the middle of each object in a 10 x 10 grid over a wide image."""
    points = np.array([[one["x"], one["y"], 0.7] for one in META[("before", "after")[side]]])
    pixels = View.of_record(VIEW).project(points, 120, 60)
    return [int(y // 6) * 10 + int(x // 12) for x, y in pixels]


@pytest.mark.parametrize(("text", "flags"), [
    ("a large red metallic cube behind a big blue matte ball", [0, 0]),
    ("a large red metallic cube behind a big green matte ball", [0, 1]),
    ("a big blue ball, and a small red metal cube", [1, 0]),
    ("a red cube", [0, 1]),
    ("an empty ground", [1, 1]),
])  # fmt: skip
def test_patches_of_objects_that_no_phrase_fits_are_undescribed(text: str, flags: list[int]) -> None:
    found = undescribed_patches(text, META, 0, WIDE, 100)
    assert found is not None
    assert [found[place] for place in centres(0)] == flags
    assert set(found) == {-1, *flags}


def test_patches_follow_the_image_they_belong_to() -> None:
    found = undescribed_patches("an empty ground", META, 1, WIDE, 100)
    assert found is not None
    assert found[centres(1)[0]] == 1
    assert found[centres(0)[1]] == -1
    assert undescribed_patches("an empty ground", {"before": [], "after": []}, 0, WIDE, 100) is None


def test_an_ideal_reader_looks_for_words_or_for_the_phrase_so_far() -> None:
    ideal = ideal_irrelevance("a big red rubber ball, and a small thing", THINGS)
    named = [0.5, 0, 0, 0, 0, 0.5, 0.5, 0.5, 1, 0.5]  # a big red rubber ball , and a small thing
    assert ideal["word"] == named
    assert ideal["phrase"] == [0.5, 0, 0, 1, 1, 0.5, 0.5, 0.5, 1, 0.5]


def test_the_area_under_the_curve_counts_what_is_known() -> None:
    flags = np.array([[0, 1, -1], [1, 0, -1]])
    right = np.array([[0.1, 0.9, 5.0], [0.8, 0.2, -5.0]])
    batches = [(right[:1], flags[:1]), (right[1:, :2], flags[1:, :2])]  # they differ in width
    found = areas_under_roc([{"right": one, "opposite": (-one[0], one[1])} for one in batches])
    assert found == {"right": 1.0, "opposite": 0.0}
    assert areas_under_roc([{"one class": (right[:1, :1], flags[:1, :1])}] * 2) == {}
    assert areas_under_roc([]) == {}
