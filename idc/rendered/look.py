"""Variation besides objects, camera and lamps: the surroundings and materials of a scene, and the effects of a camera
on each of its pictures. The defaults are the look of scenes without variation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from idc.rendered.config import Color, RenderConfig

Rgb = tuple[float, float, float]

GROUND = 0.33
"""Reflectance of the ground."""

SKY = 0.18
"""Radiance of the uniform surroundings, which light the shadows and show in metal."""

ROUGHNESS = 0.12
"""Roughness of metal."""

JPEG_QUALITIES = (60, 95)
"""Lowest and highest quality of JPEG images."""


@dataclass(frozen=True)
class Look:
    """The appearance that the images of a scene share.

    Attributes:
        sky: radiance of the surroundings.
        ground: reflectance of the ground, linear RGB.
        tints: colour name -> factors of its linear RGB; colours without an entry are CLEVR's.
        roughness: of metal.
        rubber_gloss: share of rubber's reflection that is mirror-like.
    """

    sky: float = SKY
    ground: Rgb = (GROUND, GROUND, GROUND)
    tints: Mapping[str, Rgb] = field(default_factory=dict)
    roughness: float = ROUGHNESS
    rubber_gloss: float = 0.0


@dataclass(frozen=True)
class Exposure:
    """Effects of a camera on one picture.

    Attributes:
        gain: factor of the light.
        contrast: factor of the deviations from middle grey, after the sRGB curve.
        blur: standard deviation of the point spread, pixels.
        noise: standard deviation of the sensor's noise, after the sRGB curve; white is 1.
        quality: of JPEG; ``None`` for PNG.
    """

    gain: float = 1.0
    contrast: float = 1.0
    blur: float = 0.0
    noise: float = 0.0
    quality: int | None = None


def draw_look(config: RenderConfig, rng: np.random.Generator) -> Look:
    """The look of a scene."""
    wide = config.variation
    names = get_args(Color)
    brightness = stops(wide.ground, rng)
    tint = 1 + wide.ground_tint * rng.uniform(-1, 1, 3)
    tints = 1 + wide.object_tint * rng.uniform(-1, 1, (len(names), 3))
    return Look(
        sky=SKY * stops(wide.sky, rng),
        ground=_rgb(np.minimum(GROUND * brightness * tint, 0.95)),
        tints={name: _rgb(factors) for name, factors in zip(names, tints, strict=True)},
        roughness=ROUGHNESS * stops(wide.roughness, rng),
        rubber_gloss=float(rng.uniform(0, wide.rubber_gloss)),
    )


def draw_exposures(config: RenderConfig, count: int, rng: np.random.Generator) -> tuple[Exposure, ...]:
    """The camera's part in ``count`` images of a scene."""
    wide = config.variation
    noise = float(rng.uniform(0, wide.noise))
    quality = int(rng.integers(*JPEG_QUALITIES, endpoint=True)) if rng.random() < wide.jpeg_share else None
    return tuple(
        Exposure(
            gain=stops(wide.exposure, rng),
            contrast=float(1 + wide.contrast * rng.uniform(-1, 1)),
            blur=float(rng.uniform(0, wide.blur)),
            noise=noise,
            quality=quality,
        )
        for _ in range(count)
    )


def stops(largest: float, rng: np.random.Generator) -> float:
    """A random factor of at most ``largest`` powers of two, up or down."""
    return float(2.0 ** (largest * rng.uniform(-1, 1)))


def _rgb(values: Any) -> Rgb:
    r, g, b = (float(value) for value in values)
    return r, g, b


def to_srgb(linear: np.ndarray) -> np.ndarray:
    """The sRGB curve on [0, 1]; larger values are clipped."""
    linear = np.clip(linear, 0.0, 1.0)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def from_srgb(value: np.ndarray) -> np.ndarray:
    """The inverse of :func:`to_srgb`."""
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
