"""What is built, removed or extended in a site."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from idc.rendered.satellite.config import Setting, Work
from idc.rendered.satellite.landscapes import lay_streets, place_large_buildings
from idc.rendered.satellite.plan import Plan, UnusableSite, is_in_view, is_outside
from idc.rendered.satellite.site import ALWAYS, BUILT, REMOVED, Epochs, Roof, RoofBlock
from idc.rendered.satellite.streets import outline


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
