"""Settings and rendered pairs that the tests of this folder share."""

from __future__ import annotations

import pytest

from idc.data.schema import ChangePair
from idc.rendered.config import RenderConfig, SeveralConfig, VariationConfig
from idc.rendered.render import RenderScenes

SMALL = RenderConfig(
    num_scenes=10, width=32, height=32, samples_per_pixel=4, min_objects=2, max_objects=3, jitter="mild",
    large_radius=0.9, small_radius=0.5, extent=2.0, camera_distance=9.5, min_visible_pixels=8,
)  # fmt: skip
CLEVR = RenderConfig(width=120, height=80, min_visible_pixels=12)
"""CLEVR-Change's scenes in a quarter of its size."""
SEVERAL = RenderConfig(
    width=120, height=90, min_visible_pixels=14, max_objects=9, jitter="mild", several=SeveralConfig(),
    large_radius=0.8, small_radius=0.4, camera_distance=10.5,
)  # fmt: skip
WIDE = VariationConfig(
    elevation=6, distance=0.1, lens=0.3, lamp_turn=45, lamp_height=0.4, lamp_power=0.6, lamp_size=1, sky=0.7,
    ground=0.6, ground_tint=0.08, object_size=0.1, object_tint=0.15, roughness=1, rubber_gloss=0.1, exposure=0.3,
    contrast=0.1, blur=0.6, noise=0.02, jpeg_share=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def stage() -> RenderScenes:
    return RenderScenes(SMALL)


@pytest.fixture(scope="module")
def pairs(stage: RenderScenes) -> list[ChangePair]:
    return [pair for index in range(10) for pair in stage.pairs(index)]
