"""Season, light and camera of the two dates, drawn at random."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from idc.rendered.satellite.config import SatelliteConfig
from idc.rendered.satellite.site import Conditions


def draw_conditions(config: SatelliteConfig, rng: np.random.Generator) -> tuple[Conditions, Conditions]:
    """Of both dates; what no distractor changes is the same."""
    distractors, resolution = config.distractors, config.metres_per_pixel
    first, other = _draw(rng, resolution), _draw(rng, resolution)
    second = first
    groups = (
        (distractors.season, ("dryness", "leaves", "crops")),
        (distractors.light, ("sun", "sun_height", "sky")),
        (distractors.exposure, ("gain", "gamma", "saturation", "cast")),
        (distractors.camera, ("blur", "sharpening", "noise", "quality")),
    )
    for share, names in groups:
        if rng.random() < share:
            second = replace(second, **{name: getattr(other, name) for name in names})
    hazy, side = rng.random() < distractors.haze, int(rng.integers(2))
    haze, cloud = float(rng.uniform(0.03, 0.2)), int(rng.integers(2**31))
    moved, shift = rng.random() < distractors.shift, rng.uniform(-1, 1, 2) * distractors.shift_metres / resolution
    grown, growth = rng.random() < distractors.growth, float(rng.uniform(0.0, 0.2))
    if moved:
        first = replace(first, shift=(float(shift[0]), float(shift[1])))
    if grown:
        second = replace(second, growth=growth)
    if hazy:
        first, second = (replace(c, haze=haze, cloud=cloud) if n == side else c for n, c in enumerate((first, second)))
    return first, second


def _draw(rng: np.random.Generator, resolution: float) -> Conditions:
    dryness = float(rng.beta(1.6, 1.4))
    winter = rng.random() < 0.3
    tint = rng.normal(0, 0.035, 2)
    return Conditions(
        dryness=dryness,
        leaves=float(rng.uniform(0, 0.4)) if winter else float(rng.choice([1.0, 1.0, rng.uniform(0.6, 1.0)])),
        crops=float(rng.uniform(0, 1)),
        sun=float(-math.pi / 2 + rng.normal(0, 0.55)),  # north of the equator, before or after noon
        sun_height=float(math.radians(rng.uniform(33, 68))),
        sky=float(rng.uniform(0.05, 0.17)),
        gain=float(2 ** rng.normal(-0.25, 0.28)),
        gamma=float(rng.uniform(0.9, 1.12)),
        saturation=float(rng.uniform(0.6, 1.15)),
        cast=(1 + float(tint[0]), 1.0, 1 + float(tint[1]) - 0.03),
        blur=float(rng.uniform(0.3, 0.75) * min(0.5 / resolution, 1.0) + 0.12),
        sharpening=float(rng.uniform(0.1, 0.6)),
        noise=float(rng.uniform(0.003, 0.012)),
        quality=int(rng.integers(72, 95)),
    )
