"""Draws a site: its landscape, what is built, removed or extended, seasons and light."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from idc.rendered.config import RenderConfig, SatelliteConfig, Setting, Work
from idc.rendered.satellite.grounds import furnish, park_cars, plant_trees
from idc.rendered.satellite.landscapes import LANDSCAPES, lay_streets, place_large_buildings
from idc.rendered.satellite.site import (
    ALWAYS,
    BUILT,
    REMOVED,
    Conditions,
    Epochs,
    Patch,
    Plan,
    Roof,
    RoofBlock,
    Site,
    TakenGround,
    UnusableSite,
    is_in_view,
    is_outside,
    outline,
    rectangle,
)


def _set_epochs(plan: Plan, numbers: list[int], epochs: Epochs) -> None:
    for number in numbers:
        lot = plan.lots[number]
        plan.lots[number] = replace(lot, building=replace(lot.building, epochs=epochs))


def _build_houses(plan: Plan) -> None:
    """From one house to all of those along the streets; further lots may be vacant at both dates."""
    rng = plan.rng
    visible = [number for number, lot in enumerate(plan.lots) if is_in_view(plan, lot.building)]
    hidden = [
        number for number, lot in enumerate(plan.lots) if number not in visible and not is_outside(plan, lot.building)
    ]
    if not visible:
        raise UnusableSite("no lot")
    mode = str(rng.choice(["few", "row", "all", "all"]))
    if mode == "few":
        chosen = [
            int(n) for n in rng.choice(visible, min(len(visible), int(rng.choice([1, 1, 2, 3, 4]))), replace=False)
        ]
    elif mode == "row":
        first = plan.lots[int(rng.choice(visible))]
        chosen = [n for n in visible if (plan.lots[n].street, plan.lots[n].side) == (first.street, first.side)]
    else:
        chosen = [n for n in visible if rng.random() < 0.92] or visible[:1]
    _set_epochs(plan, chosen, BUILT)
    rest = [n for n in visible if n not in chosen]
    if mode != "all" and rng.random() < 0.4:  # land that stays empty
        _set_epochs(plan, [n for n in rest if rng.random() < 0.6], (False, False))
    beyond = [n for n in range(len(plan.lots)) if n not in visible and n not in hidden]
    _set_epochs(plan, hidden, ALWAYS if mode == "few" else (False, False))
    _set_epochs(plan, beyond, ALWAYS)


def _build_houses_and_road(plan: Plan) -> None:
    """New streets with houses along them: all streets, or a branch of one that is there."""
    rng, roads = plan.rng, plan.site.roads
    if len(roads) > 1 and rng.random() < 0.6:
        new = set(range(1, len(roads)))
    else:
        new = set(range(len(roads)))
    _open_roads(plan, new)
    visible = [n for n, lot in enumerate(plan.lots) if lot.street in new and is_in_view(plan, lot.building)]
    if not visible:
        raise UnusableSite("no lot along the new road")
    _set_epochs(plan, [n for n, lot in enumerate(plan.lots) if lot.street in new and n not in visible], (False, False))
    chosen = [n for n in visible if rng.random() < 0.85] or visible[:1]
    _set_epochs(plan, chosen, BUILT)
    _set_epochs(plan, [n for n in visible if n not in chosen], (False, False))


def _open_roads(plan: Plan, numbers: set[int]) -> None:
    for number in numbers:
        road = plan.site.roads[number]
        if road.surface == "dirt":
            road = replace(road, surface="concrete")
        plan.site.roads[number] = replace(road, epochs=BUILT, walks=road.walks and plan.surroundings)


def _build_road(plan: Plan) -> None:
    """A road, or streets, without buildings along it."""
    rng = plan.rng
    roads = plan.site.roads
    if not roads:
        lay_streets(plan, float(rng.uniform(5.5, 12)), walks=False)
        roads = plan.site.roads
    new = set(range(1, len(roads))) if len(roads) > 1 and rng.random() < 0.5 else set(range(len(roads)))
    _open_roads(plan, new)
    plan.lots = [lot for lot in plan.lots if lot.street not in new]
    if len(new) == len(roads):
        plan.spots = []


def _build_large(plan: Plan) -> None:
    rng = plan.rng
    if not plan.site.roads:
        lay_streets(plan, float(rng.uniform(8, 12)), walks=False, marks=True)
    if not plan.spots:
        place_large_buildings(plan, 1)
    if not plan.spots:
        raise UnusableSite("no room for a large building")
    chosen = int(rng.integers(len(plan.spots)))
    plan.spots = [
        replace(spot, epochs=BUILT) if n == chosen or rng.random() < 0.25 else spot for n, spot in enumerate(plan.spots)
    ]
    if rng.random() < 0.3 and len(plan.site.roads):
        _open_roads(plan, set(range(1, len(plan.site.roads))) or {0})


def _demolish(plan: Plan) -> None:
    rng = plan.rng
    visible = [n for n, lot in enumerate(plan.lots) if is_in_view(plan, lot.building)]
    if not visible and not plan.spots:
        raise UnusableSite("nothing to remove")
    if visible:
        count = min(len(visible), int(rng.choice([1, 1, 2, 3, 5])))
        _set_epochs(plan, [int(n) for n in rng.choice(visible, count, replace=False)], REMOVED)
    else:
        plan.spots[0] = replace(plan.spots[0], epochs=REMOVED)


def _extend(plan: Plan) -> None:
    rng = plan.rng
    buildings = [(n, lot.building) for n, lot in enumerate(plan.lots)] + [
        (-1 - n, spot) for n, spot in enumerate(plan.spots)
    ]
    rng.shuffle(buildings)
    for number, building in buildings:
        if not is_in_view(plan, building, 0.9):
            continue
        main = building.blocks[0]
        deepest = max(
            block.across + abs(-math.sin(main.turn) * (block.x - main.x) + math.cos(main.turn) * (block.y - main.y))
            for block in building.blocks
        )
        widest = max(
            block.along + abs(math.cos(main.turn) * (block.x - main.x) + math.sin(main.turn) * (block.y - main.y))
            for block in building.blocks
        )
        half = min(max(main.along * float(rng.uniform(0.4, 0.75)), 3.0), 14.0)
        far = min(max(main.across * float(rng.uniform(0.5, 0.9)), 2.8), 12.0)
        roof: Roof = "flat" if main.roof == "flat" else "hip"
        spots = [
            (float(rng.uniform(-0.4, 0.4)) * main.along, deepest + far),
            ((widest + half) * float(rng.choice([-1, 1])), 0.0),
        ]
        for u, v in spots:
            block = RoofBlock(*main.at(u, v), half, far, main.turn, main.eaves - 0.4, roof)
            others = plan.taken.without(outline(building.blocks, 0.5))
            if others.is_free(block.corners(1.2)) and is_in_view(plan, replace(building, blocks=(block,)), 0.9):
                extended = replace(building, blocks=(*building.blocks, block), added=1)
                plan.taken.take(block.corners(0.4))
                if number >= 0:
                    plan.lots[number] = replace(plan.lots[number], building=extended)
                else:
                    plan.spots[-1 - number] = extended
                return
    raise UnusableSite("no building has room for more")


WORKS: dict[Work, Callable[[Plan], None]] = {
    "houses": _build_houses, "houses_and_road": _build_houses_and_road, "road": _build_road,
    "large_building": _build_large, "demolition": _demolish, "extension": _extend,
}  # fmt: skip
SUITABLE: dict[Work, tuple[Setting, ...]] = {
    "houses": ("suburb", "suburb", "woods", "village"),
    "houses_and_road": ("suburb", "woods"),
    "road": ("suburb", "woods", "fields", "commercial"),
    "large_building": ("commercial", "fields"),
    "demolition": ("suburb", "village", "fields", "woods"),
    "extension": ("suburb", "village", "commercial", "woods"),
}


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
