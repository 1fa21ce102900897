"""Settings of the rendered satellite pairs: what changes, and what differs between the dates without being a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from pydantic import Field

from idc.config import ConfigModel

Work = Literal["houses", "houses_and_road", "road", "large_building", "demolition", "extension"]
"""What is built or removed between the two dates."""
Setting = Literal["suburb", "woods", "fields", "village", "commercial"]
"""The kind of landscape."""


class DistractorConfig(ConfigModel):
    """Differences between the two dates that do not change roads or buildings: each a share of the pairs, changed or
    not. With all at 0, only the changed objects and their shadows differ."""

    surroundings: float = Field(default=0.95, ge=0, le=1)
    """Share of the changed pairs where lots are cleared and laid out with what is built: trees, lawns, driveways,
    parking lots, bare soil. Otherwise the land is the same at both dates."""
    season: float = Field(default=0.7, ge=0, le=1)
    """Share with another season: colours of grass and fields, leaves of trees."""
    light: float = Field(default=0.9, ge=0, le=1)
    """Share with another position of the sun: direction and length of shadows."""
    exposure: float = Field(default=0.95, ge=0, le=1)
    """Share with other exposure, contrast, saturation and colour cast."""
    haze: float = Field(default=0.25, ge=0, le=1)
    """Share with haze or thin cloud over one of the images."""
    growth: float = Field(default=0.7, ge=0, le=1)
    """Share where trees have grown or are gone, and land between them has changed its cover a little."""
    vehicles: float = Field(default=0.95, ge=0, le=1)
    """Share with other cars at the second date."""
    camera: float = Field(default=0.8, ge=0, le=1)
    """Share with another sharpness, noise and compression."""
    shift: float = Field(default=0.8, ge=0, le=1)
    """Share where the images are not registered exactly."""
    shift_metres: float = Field(default=0.5, ge=0, le=5)
    """Largest registration error along each axis."""


class SatelliteConfig(ConfigModel):
    """Top-down scenes with changes of roads and buildings, in LEVIR-CC's manner (0.5 m a pixel, half of the pairs
    without a change, five captions)."""

    metres_per_pixel: float = Field(default=0.5, ge=0.2, le=3)
    """Ground resolution (LEVIR: 0.5)."""
    supersampling: int = Field(default=2, ge=1, le=4)
    """Pixels are drawn this many times finer along each axis, then averaged."""
    unchanged_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the pairs without a change (LEVIR-CC: 0.50)."""
    works: tuple[Work, ...] = Field(default=get_args(Work), min_length=1)
    """Kinds of change, in turn over the changed pairs."""
    settings: tuple[Setting, ...] = Field(default=get_args(Setting), min_length=1)
    """Landscapes to draw from."""
    min_visible_pixels: int = Field(default=40, ge=4)
    """Least number of mask pixels of every changed road or building."""
    distractors: DistractorConfig = DistractorConfig()
    """What differs without being a change."""

    def errors(self) -> Iterator[str]:
        for name in ("works", "settings"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                yield f"{name} names a value twice"
