"""Draws a site: its landscape, what changes, the land around it, trees, cars, seasons and light."""

from __future__ import annotations

import math

import numpy as np

from idc.rendered.config import RenderConfig
from idc.rendered.satellite.config import SatelliteConfig, Work
from idc.rendered.satellite.grounds import furnish
from idc.rendered.satellite.landscapes import LANDSCAPES
from idc.rendered.satellite.plan import Plan, is_outside
from idc.rendered.satellite.planting import park_cars, plant_trees
from idc.rendered.satellite.seasons import draw_conditions
from idc.rendered.satellite.site import ALWAYS, BUILT, REMOVED, Patch, Site
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
