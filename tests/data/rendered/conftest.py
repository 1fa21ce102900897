"""Settings and rendered pairs that the tests of this folder share."""

from __future__ import annotations

import pytest

from idc.data.rendered.config import RenderConfig
from idc.data.rendered.draw import draw_scene
from idc.data.rendered.render import RenderScenes
from idc.data.rendered.scene import Scene
from idc.schema import ChangePair

SMALL = RenderConfig(
    num_scenes=10, width=32, height=32, samples_per_pixel=4, min_objects=2, max_objects=3, jitter="mild",
    large_radius=0.9, small_radius=0.5, extent=2.0, camera_distance=9.5, min_visible_pixels=8,
)  # fmt: skip
CLEVR = RenderConfig(width=120, height=80, min_visible_pixels=12)
"""CLEVR-Change's scenes in a quarter of its size."""


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(CLEVR, index)[0] for index in range(60)]


@pytest.fixture(scope="module")
def stage() -> RenderScenes:
    return RenderScenes(SMALL)


@pytest.fixture(scope="module")
def pairs(stage: RenderScenes) -> list[ChangePair]:
    return [pair for index in range(10) for pair in stage.pairs(index)]
