"""Settings and pairs that the tests of this folder share."""

from __future__ import annotations

import pytest

from idc.data.schema import ChangePair
from idc.rendered.config import DistractorConfig, RenderConfig, SatelliteConfig
from idc.rendered.satellite.satellite_pairs import RenderSatellitePairs

NO_DISTRACTORS = DistractorConfig(
    surroundings=0, season=0, light=0, exposure=0, haze=0, growth=0, vehicles=0, camera=0, shift=0
)


def satellite_config(**settings: object) -> RenderConfig:
    """64x64 pixels at 1.25 m, as the small preset; ``settings`` are of the satellite part."""
    satellite = SatelliteConfig(metres_per_pixel=1.25, min_visible_pixels=12, **settings)  # type: ignore[arg-type]
    return RenderConfig(num_scenes=24, width=64, height=64, val_share=0.1, test_share=0.15, satellite=satellite)


@pytest.fixture(scope="session")
def stage() -> RenderSatellitePairs:
    return RenderSatellitePairs(satellite_config())


@pytest.fixture(scope="session")
def pairs(stage: RenderSatellitePairs) -> list[ChangePair]:
    return [stage.pair(index) for index in range(24)]
