"""Draws a site: its landscape, what changes, the land around it, trees, cars, seasons and light."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from idc.rendered.config import RenderConfig
from idc.rendered.satellite.config import SatelliteConfig, Work
from idc.rendered.satellite.grounds import furnish
from idc.rendered.satellite.landscapes import LANDSCAPES
from idc.rendered.satellite.plan import Plan, is_outside
from idc.rendered.satellite.planting import park_cars, plant_trees
from idc.rendered.satellite.site import ALWAYS, BUILT, REMOVED, Conditions, Patch, Site
from idc.rendered.satellite.streets import TakenGround, rectangle
from idc.rendered.satellite.works import SUITABLE, WORKS


def work_of(config: SatelliteConfig, index: int) -> Work | None:
    """What changes in pair ``index``: ``unchanged_share`` of the pairs have no change, evenly spread; the others have
    the works in turn."""
    share = 1 - config.unchanged_share
    before, after = math.floor(index * share + 1e-9), math.floor((index + 1) * share + 1e-9)
    return None if before == after else config.works[before % len(config.works)]


def draw_site(config: RenderConfig, satellite: SatelliteConfig, index: int, attempt: int) -> Site:
    """One draw of site ``index``.

    Raises:
        UnusableSite: what is to change has no room in it.
    """
    rng = np.random.default_rng((config.seed, index, attempt))
    work = work_of(satellite, index)
    width, height = config.width * satellite.metres_per_pixel, config.height * satellite.metres_per_pixel
    distractors = satellite.distractors
    surroundings = work is not None and rng.random() < distractors.surroundings
    site = Site(width, height, texture=int(rng.integers(2**31)))
    taken, land, streets, cleared = (TakenGround(width, height) for _ in range(4))
    plan = Plan(site, taken, land, streets, cleared, rng, work, bool(surroundings))
    wanted = [name for name in satellite.settings if work is None or name in SUITABLE[work]] or list(satellite.settings)
    setting = str(rng.choice(wanted))
    LANDSCAPES[setting](plan)
    _pond(plan)
    if work is not None:
        WORKS[work](plan)
    furnish(plan)
    growth = rng.random() < distractors.growth
    if growth:
        _other_covers(plan)
    plant_trees(plan, growth, satellite.metres_per_pixel)
    park_cars(plan, rng.random() < distractors.vehicles)
    site.conditions = draw_conditions(satellite, rng)
    first_row = all(abs(lot.side) == 1 for lot in plan.lots if lot.building.epochs != ALWAYS or lot.building.added)
    site.facts |= {"setting": setting, "works": work is not None, "rows": _rows(plan), "first_row": first_row}
    return site


def _pond(plan: Plan) -> None:
    rng, (w, h) = plan.rng, plan.size
    wanted = rng.random() < 0.16
    for _ in range(12 if wanted else 0):
        half = rng.uniform(0.09, 0.26, 2) * min(w, h)
        x, y = rng.uniform(0, 1, 2) * (w, h)
        angles = np.linspace(0, 2 * math.pi, 14, endpoint=False)
        wobble = 1 + 0.18 * rng.standard_normal(14)
        ring = np.stack((np.cos(angles) * half[0] * wobble, np.sin(angles) * half[1] * wobble), 1)
        polygon = ring + np.array((x, y))
        if plan.land.is_free(ring * 1.15 + np.array((x, y))):
            plan.site.patches.append(Patch(ring * 1.12 + np.array((x, y)), "dry", -0.1, 1.5))
            plan.site.patches.append(Patch(polygon, "water", float(rng.normal(0, 0.2)), 1.0, layer=2))
            for ground in (plan.taken, plan.land):
                ground.take(ring * 1.1 + np.array((x, y)))
            return


def _other_covers(plan: Plan) -> None:
    """Free land whose cover is another one at one of the dates: cleared, overgrown, dug up."""
    rng, (w, h) = plan.rng, plan.size
    for _ in range(int(rng.poisson(1.1))):
        half = rng.uniform(0.06, 0.24, 2) * min(w, h)
        x, y = rng.uniform(0, 1, 2) * (w, h)
        shape = rectangle(x, y, half[0], half[1], rng.uniform(0, math.pi))
        cover = str(rng.choice(["soil", "soil", "mud", "dry", "meadow", "sand"]))
        epochs = REMOVED if rng.random() < 0.5 else BUILT
        if plan.land.is_free(shape):
            plan.site.patches.append(Patch(shape, cover, float(rng.normal(0, 0.08)), 2.0, epochs=epochs))


def _rows(plan: Plan) -> list[int]:
    """Numbers of new buildings in the image along each side of each street, without gaps."""
    rows: dict[tuple[int, int], int] = {}
    for lot in plan.lots:
        if lot.building.epochs == BUILT and not is_outside(plan, lot.building):
            rows[lot.street, lot.side] = rows.get((lot.street, lot.side), 0) + 1
    return sorted(rows.values())


def draw_conditions(config: SatelliteConfig, rng: np.random.Generator) -> tuple[Conditions, Conditions]:
    """Of both dates; what no distractor changes is the same."""
    distractors, resolution = config.distractors, config.metres_per_pixel
    first, other = _date(rng, resolution), _date(rng, resolution)
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


def _date(rng: np.random.Generator, resolution: float) -> Conditions:
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
