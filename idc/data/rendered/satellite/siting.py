"""Draws a site: its landscape, streets and buildings, what is built or removed, trees, cars, seasons and light."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np

from idc.data.rendered.config import RenderConfig
from idc.data.rendered.satellite.aerial import beside
from idc.data.rendered.satellite.config import SatelliteConfig, Work
from idc.data.rendered.satellite.covers import srgb
from idc.data.rendered.satellite.seasons import draw_conditions
from idc.data.rendered.satellite.site import (
    ALWAYS,
    BUILT,
    REMOVED,
    Block,
    Building,
    Car,
    Cover,
    Epochs,
    Patch,
    Road,
    Site,
    Strip,
    Tree,
)
from idc.data.rendered.satellite.streets import (
    REACH,
    Lot,
    TakenGround,
    along,
    branch,
    curve,
    house_blocks,
    outline,
    rectangle,
)

_HOUSE_ROOFS = ((92, 88, 84), (104, 98, 90), (84, 86, 88), (118, 108, 96), (98, 106, 114), (128, 120, 110), (108, 92, 82))
_VILLAGE_ROOFS = ((172, 172, 170), (150, 150, 150), (86, 112, 164), (108, 130, 172), (158, 108, 84), (200, 202, 204), (126, 122, 118))
_LARGE_ROOFS = ((226, 230, 230), (206, 206, 202), (176, 172, 164), (214, 204, 188), (150, 152, 156))
_CARS = ((210, 210, 212), (228, 228, 228), (60, 60, 64), (34, 34, 38), (130, 132, 136), (140, 34, 30), (40, 54, 98), (168, 160, 146))


class UnusableSite(Exception):
    """A draw that does not meet the settings; another one may."""


@dataclass
class _Plan:
    """A site that is being laid out."""

    site: Site
    taken: TakenGround
    land: TakenGround
    streets: TakenGround
    rng: np.random.Generator
    work: Work | None
    surroundings: bool
    lots: list[Lot] = field(default_factory=list)
    forest: float = 0.0
    cleared: TakenGround | None = None
    spots: list[Building] = field(default_factory=list)

    @property
    def size(self) -> tuple[float, float]:
        return self.site.width, self.site.height


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
    plan = _Plan(site, *(TakenGround(width, height) for _ in range(3)), rng, work, bool(surroundings))
    wanted = [name for name in satellite.settings if work is None or name in _SUITABLE[work]] or list(satellite.settings)
    setting = str(rng.choice(wanted))
    _LANDSCAPES[setting](plan)
    _pond(plan)
    if work is not None:
        _WORKS[work](plan)
    _furnish(plan)
    _plant(plan, rng.random() < distractors.growth, satellite.metres_per_pixel)
    _park(plan, rng.random() < distractors.vehicles)
    site.conditions = draw_conditions(satellite, rng)
    first_row = all(abs(lot.side) == 1 for lot in plan.lots if lot.building.epochs != ALWAYS or lot.building.added)
    site.facts |= {"setting": setting, "works": work is not None, "rows": _rows(plan), "first_row": first_row}
    return site


def _pond(plan: _Plan) -> None:
    """Water on free land, in some sites."""
    rng, (w, h) = plan.rng, plan.size
    wanted = rng.random() < 0.16
    for _ in range(12 if wanted else 0):
        half = rng.uniform(0.09, 0.26, 2) * min(w, h)
        x, y = rng.uniform(0, 1, 2) * (w, h)
        angles = np.linspace(0, 2 * math.pi, 14, endpoint=False)
        wobble = 1 + 0.18 * rng.standard_normal(14)
        ring = np.stack((np.cos(angles) * half[0] * wobble, np.sin(angles) * half[1] * wobble), 1)
        polygon = ring + (x, y)
        if plan.land.is_free(ring * 1.15 + (x, y)):
            plan.site.patches.append(Patch(ring * 1.12 + (x, y), "dry", -0.1, 1.5))
            plan.site.patches.append(Patch(polygon, "water", float(rng.normal(0, 0.2)), 1.0, layer=2))
            for ground in (plan.taken, plan.land):
                ground.take(ring * 1.1 + (x, y))
            return


def _rows(plan: _Plan) -> list[int]:
    """Numbers of new buildings in the image along each side of each street, without gaps."""
    rows: dict[tuple[int, int], int] = {}
    for lot in plan.lots:
        if lot.building.epochs == BUILT and not _outside(plan, lot.building):
            rows[lot.street, lot.side] = rows.get((lot.street, lot.side), 0) + 1
    return sorted(rows.values())


# -------------------------------------------------------------------------------------------------- landscapes


def _suburb(plan: _Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["meadow", "dry", "meadow"]))  # type: ignore[assignment]
    plan.forest = float(rng.choice([0.0, 0.12, 0.3, 0.5]))
    _streets(plan, float(rng.uniform(7.5, 9.5)), walks=bool(rng.random() < 0.6))
    _lots(plan, "house")


def _woods(plan: _Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["dry", "meadow"]))  # type: ignore[assignment]
    plan.forest = float(rng.uniform(0.55, 0.95))
    if plan.work == "houses" or rng.random() < 0.7:
        _streets(plan, float(rng.uniform(5.5, 7.5)), walks=False, dirt=bool(rng.random() < 0.25))
        _lots(plan, "villa")


def _fields(plan: _Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = "crop"
    plan.forest = 0.02
    turn = float(rng.uniform(-0.6, 0.6))
    _strips_of_crop(plan, turn)
    if rng.random() < 0.8:
        _streets(plan, float(rng.uniform(4.5, 8.0)), walks=False, dirt=bool(rng.random() < 0.5), angle=turn)
        if plan.work not in ("large_building", "road"):
            _lots(plan, "farm")


def _village(plan: _Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["mud", "soil", "dry"]))  # type: ignore[assignment]
    plan.forest = float(rng.choice([0.02, 0.06]))
    turn = float(rng.uniform(-0.5, 0.5))
    if rng.random() < 0.6:
        _strips_of_crop(plan, turn, part=True)
    _streets(plan, float(rng.uniform(4.5, 6.5)), walks=False, dirt=bool(rng.random() < 0.3), angle=turn)
    _lots(plan, "village")


def _commercial(plan: _Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["dry", "meadow", "mud", "soil"]))  # type: ignore[assignment]
    plan.forest = float(rng.choice([0.0, 0.05, 0.15]))
    _streets(plan, float(rng.uniform(10.0, 15.0)), walks=bool(rng.random() < 0.5), marks=True)
    _large_spots(plan, 1 if plan.work == "large_building" else 0)


def _strips_of_crop(plan: _Plan, turn: float, part: bool = False) -> None:
    """Fields: long rectangles side by side, each with its own shade."""
    rng, (width, height) = plan.rng, plan.size
    reach = math.hypot(width, height)
    centre = Block(width / 2, height / 2, 1, 1, turn)
    rows = np.arange(-reach / 2, reach / 2, float(rng.uniform(35, 60)))
    for row, (low, high) in enumerate(zip(rows[:-1], rows[1:], strict=True)):
        if part and row % 2:
            continue
        at = -reach / 2
        while at < reach / 2:
            wide = float(rng.choice([rng.uniform(5, 12), rng.uniform(12, 30)]))
            cover: Cover = str(rng.choice(["crop", "crop", "crop", "mud", "meadow", "dry"], p=[0.3, 0.2, 0.1, 0.2, 0.1, 0.1]))  # type: ignore[assignment]
            x, y = centre.at(at + wide / 2, (low + high) / 2)
            polygon = rectangle(x, y, wide / 2, (high - low) / 2 - 0.5, turn)
            plan.site.patches.append(Patch(polygon, cover, float(rng.normal(0, 0.13)), 0.25, turn + (math.pi / 2 if rng.random() < 0.9 else 0)))
            at += wide
    if rng.random() < 0.25:  # a greenhouse or a bare rectangle
        x, y = rng.uniform(0.15, 0.85, 2) * (width, height)
        plan.site.patches.append(Patch(rectangle(x, y, rng.uniform(5, 14), rng.uniform(4, 8), turn), "sand", 0.0, 0.2))


def _streets(plan: _Plan, width: float, walks: bool, dirt: bool = False, marks: bool = False, angle: float | None = None) -> None:
    """One or two streets that are there at both dates, unless the work is to build them."""
    rng, site, (w, h) = plan.rng, plan.site, plan.size
    turn = float(rng.uniform(0, math.pi)) if angle is None else angle + (math.pi / 2 if rng.random() < 0.5 else 0)
    bend = float(rng.choice([0.0, rng.uniform(-0.35, 0.35), rng.uniform(-1.1, 1.1)]))
    through = (w * float(rng.uniform(0.3, 0.7)), h * float(rng.uniform(0.3, 0.7)))
    main = curve(rng, w, h, through, turn, 0.0 if marks else bend)
    surface = "dirt" if dirt else str(rng.choice(["concrete", "concrete", "asphalt"]))
    if marks:
        surface = "asphalt"
    look: dict[str, Any] = {"surface": surface, "shade": float(rng.normal(0, 0.08)), "walks": walks and not dirt, "marks": marks}
    roads = [Road(main, width, **look)]
    form = "winding" if abs(bend) > 0.5 and not marks else "straight"
    branches = 0
    if rng.random() < 0.55 or plan.work in ("road", "houses_and_road"):
        side = int(rng.choice([-1, 1]))
        dead_end = rng.random() < 0.3 and not marks
        length = float(rng.uniform(0.28, 0.4) * min(w, h)) if dead_end else 0.75 * math.hypot(w, h) + REACH
        line = branch(rng, main, float(rng.uniform(0.42, 0.58)), side, length, float(rng.normal(0, 0.25)))
        roads.append(Road(line, width * float(rng.uniform(0.8, 1.0)), **look, circle=width * 1.15 if dead_end else 0.0))
        branches = 1
    if branches and not roads[1].circle and rng.random() < 0.25:
        line = branch(rng, main, float(rng.uniform(0.35, 0.65)), -side, 0.75 * math.hypot(w, h) + REACH, 0.0)
        if plan.work is None:
            roads.append(Road(line, width, **look))
    site.roads += roads
    site.facts["form"] = "t-shaped" if branches else form
    for road in roads:
        for ground in (plan.taken, plan.land, plan.streets):
            ground.take_line(road.points, road.width + (6.5 if road.walks else 2.0))
            if road.circle:
                ground.take_circle(*road.points[-1], road.circle + 3.0)


def _lots(plan: _Plan, style: str) -> None:
    """Buildings along the streets, with the lots around them."""
    rng = plan.rng
    roofs = [np.array(color) for color in (_VILLAGE_ROOFS if style in ("village", "farm") else _HOUSE_ROOFS)]
    shared = roofs[rng.integers(len(roofs))]
    wide_range, deep_range, gap_range, setback = {
        "house": ((12, 16), (13, 18), (3.6, 5.5), (6, 8)),
        "villa": ((14, 20), (14, 20), (8, 22), (8, 16)),
        "farm": ((8, 13), (7, 11), (5, 14), (4, 8)),
        "village": ((8, 14), (8, 12), (2.6, 5.0), (2.5, 5)),
    }[style]  # fmt: skip
    gap, back = float(rng.uniform(*gap_range)), float(rng.uniform(*setback))
    yard = float(rng.uniform(8, 14)) if style in ("house", "villa") else float(rng.uniform(2, 5))
    rows = 2 if style == "village" and plan.work != "houses" else 1
    for number, road in enumerate(plan.site.roads):
        for side in (-1, 1):
            for row in range(rows):
                offset = float(rng.uniform(0, 12))
                order, at = 0, offset
                stations = along(road.points, 1.0)
                while at < len(stations):
                    wide, deep = float(rng.uniform(*wide_range)), float(rng.uniform(*deep_range))
                    station = int(at + wide / 2)
                    at += wide + gap
                    if station >= len(stations):
                        break
                    if style in ("farm", "villa") and rng.random() < 0.35:
                        at += wide
                    point, turn = stations[station]
                    walk = 3.0 if road.walks else 0.0
                    away = road.width / 2 + walk + back + deep / 2 + row * (deep + 6.0)
                    normal = np.array((-math.sin(turn), math.cos(turn))) * side
                    centre = point + normal * away
                    facing = turn if side > 0 else turn + math.pi
                    if not (-REACH < centre[0] < plan.site.width + REACH and -REACH < centre[1] < plan.site.height + REACH):
                        continue
                    lot = _lot(plan, style, centre, facing, wide, deep, gap, back + walk, yard, shared, roofs)
                    if lot is not None:
                        order += 1
                        plan.lots.append(replace(lot, street=number, side=side * (row + 1), order=order))
                        plan.land.take(lot.ground)


def _lot(
    plan: _Plan, style: str, centre: np.ndarray, facing: float, wide: float, deep: float, gap: float, front: float,
    yard: float, shared: np.ndarray, roofs: list[np.ndarray],
) -> Lot | None:  # fmt: skip
    rng = plan.rng
    x, y = float(centre[0]), float(centre[1])
    turn = facing + float(rng.normal(0, 0.02))
    if style in ("village", "farm"):
        flat = rng.random() < 0.5
        main = Block(x, y, wide / 2, deep / 2 * 0.8, turn, float(rng.uniform(3, 6)), "flat" if flat else "gable")
        blocks: tuple[Block, ...] = (main,)
        if rng.random() < 0.45:
            half = deep * 0.22
            blocks += (Block(*main.at((wide / 2 - half) * rng.choice([-1, 1]), deep * 0.35), half, deep * 0.3, turn, 3.0, "flat" if flat else "gable"),)
        roof = roofs[rng.integers(len(roofs))] * rng.uniform(0.85, 1.1)
    else:
        blocks = house_blocks(rng, x, y, turn, wide, deep, style)
        roof = shared * rng.uniform(0.88, 1.12) if rng.random() < 0.75 else roofs[rng.integers(len(roofs))] * rng.uniform(0.85, 1.12)
    if not plan.taken.is_free(outline(blocks, 1.3)):
        return None
    plan.taken.take(outline(blocks, 0.4))
    house = Block(x, y, wide / 2, deep / 2, turn)
    half_wide = wide / 2 + gap / 2
    ground = np.array([house.at(*corner) for corner in ((-half_wide, -deep / 2 - front), (half_wide, -deep / 2 - front), (half_wide, deep / 2 + yard), (-half_wide, deep / 2 + yard))])
    garage = blocks[1] if len(blocks) > 1 and style in ("house", "villa") else blocks[0]
    c, s = math.cos(turn), math.sin(turn)
    dx, dy = garage.x - x, garage.y - y
    u, v = dx * c + dy * s, -dx * s + dy * c
    half_drive = min(garage.along * 0.85, 3.2) if style in ("house", "villa") else 1.4
    start, end = v - garage.across, -deep / 2 - front - 0.4
    flare = 0.6
    drive = np.array([house.at(*corner) for corner in ((u - half_drive, start), (u + half_drive, start), (u + half_drive, end + 1.5), (u + half_drive + flare, end), (u - half_drive - flare, end), (u - half_drive, end + 1.5))])
    noun = {"house": "house", "villa": "villa"}.get(style, "building")
    color = tuple(float(value) for value in srgb(*np.clip(roof, 0, 245)))
    building = Building(blocks, color, float(rng.uniform(0.5, 0.75)), int(rng.integers(2**31)), noun=noun)  # type: ignore[arg-type]
    return Lot(ground, drive, building, 0, 0, 0)


def _large_spots(plan: _Plan, fewest: int) -> None:
    """Large flat buildings along the streets."""
    rng, (w, h) = plan.rng, plan.size
    wanted = int(rng.integers(max(fewest, 1), 4))
    for _ in range(60):
        if len(plan.spots) >= wanted:
            return
        road = plan.site.roads[int(rng.integers(len(plan.site.roads)))]
        point, turn = (stations := along(road.points, 2.0))[int(rng.integers(len(stations)))]
        largest = min(34.0, 0.36 * min(w, h))
        half_long, half_deep = float(rng.uniform(0.4, 1.0) * largest), float(rng.uniform(0.35, 0.6) * largest)
        half_long, half_deep = max(half_long, half_deep), min(half_long, half_deep)
        side = int(rng.choice([-1, 1]))
        away = road.width / 2 + (3 if road.walks else 0) + float(rng.uniform(10, 24)) + half_deep
        centre = point + np.array((-math.sin(turn), math.cos(turn))) * side * away
        if not (0.1 * w < centre[0] < 0.9 * w and 0.1 * h < centre[1] < 0.9 * h):
            continue
        main = Block(float(centre[0]), float(centre[1]), half_long, half_deep, turn, float(rng.uniform(6, 10)), "flat")
        blocks = [main]
        if rng.random() < 0.5:
            half = half_long * float(rng.uniform(0.2, 0.4))
            blocks.append(Block(*main.at((half_long - half) * rng.choice([-1, 1]), side * half_deep * 0.9), half, half_deep * 0.35, turn, main.eaves - 1, "flat"))
        if not plan.taken.is_free(outline(tuple(blocks), 4.0)):
            continue
        plan.taken.take(outline(tuple(blocks), 9.0))
        plan.land.take(outline(tuple(blocks), 3.5))
        roof = np.array(_LARGE_ROOFS[int(rng.integers(len(_LARGE_ROOFS)))]) * rng.uniform(0.9, 1.05)
        color = tuple(float(value) for value in srgb(*np.clip(roof, 0, 240)))
        plan.spots.append(Building(tuple(blocks), color, 0.0, int(rng.integers(2**31)), noun="building"))  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------- what changes


def _in_view(plan: _Plan, building: Building, share: float = 0.45) -> bool:
    """Whether enough of a building is in the image to be seen as one."""
    points = np.concatenate([np.array([block.at(a * block.along, b * block.across) for a in (-0.9, -0.45, 0, 0.45, 0.9) for b in (-0.9, -0.45, 0, 0.45, 0.9)]) for block in building.blocks])
    w, h = plan.size
    inside = (points[:, 0] > 0) & (points[:, 0] < w) & (points[:, 1] > 0) & (points[:, 1] < h)
    return bool(inside.mean() >= share)


def _outside(plan: _Plan, building: Building) -> bool:
    corners, (w, h) = np.concatenate([block.corners(1.0) for block in building.blocks]), plan.size
    low, high = corners.min(0), corners.max(0)
    return bool(high[0] < 0 or high[1] < 0 or low[0] > w or low[1] > h)


def _set_epochs(plan: _Plan, numbers: list[int], epochs: Epochs) -> None:
    for number in numbers:
        lot = plan.lots[number]
        plan.lots[number] = replace(lot, building=replace(lot.building, epochs=epochs))


def _build_houses(plan: _Plan) -> None:
    """From one house to all of those along the streets; further lots may be vacant at both dates."""
    rng = plan.rng
    visible = [number for number, lot in enumerate(plan.lots) if _in_view(plan, lot.building)]
    hidden = [number for number, lot in enumerate(plan.lots) if number not in visible and not _outside(plan, lot.building)]
    if not visible:
        raise UnusableSite("no lot")
    mode = str(rng.choice(["few", "row", "all", "all"]))
    if mode == "few":
        chosen = [int(n) for n in rng.choice(visible, min(len(visible), int(rng.choice([1, 1, 2, 3, 4]))), replace=False)]
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


def _build_houses_and_road(plan: _Plan) -> None:
    """New streets with houses along them: all streets, or a branch of one that is there."""
    rng, roads = plan.rng, plan.site.roads
    if len(roads) > 1 and rng.random() < 0.6:
        new = set(range(1, len(roads)))
    else:
        new = set(range(len(roads)))
    _open_roads(plan, new)
    visible = [n for n, lot in enumerate(plan.lots) if lot.street in new and _in_view(plan, lot.building)]
    if not visible:
        raise UnusableSite("no lot along the new road")
    _set_epochs(plan, [n for n, lot in enumerate(plan.lots) if lot.street in new and n not in visible], (False, False))
    chosen = [n for n in visible if rng.random() < 0.85] or visible[:1]
    _set_epochs(plan, chosen, BUILT)
    _set_epochs(plan, [n for n in visible if n not in chosen], (False, False))


def _open_roads(plan: _Plan, numbers: set[int]) -> None:
    for number in numbers:
        road = plan.site.roads[number]
        if road.surface == "dirt":
            road = replace(road, surface="concrete")
        plan.site.roads[number] = replace(road, epochs=BUILT, walks=road.walks and plan.surroundings)
    plan.site.facts["whole_network"] = len(numbers) == len(plan.site.roads)


def _build_road(plan: _Plan) -> None:
    """A road, or streets, without buildings along it."""
    rng = plan.rng
    roads = plan.site.roads
    if not roads:
        _streets(plan, float(rng.uniform(5.5, 12)), walks=False)
        roads = plan.site.roads
    new = set(range(1, len(roads))) if len(roads) > 1 and rng.random() < 0.5 else set(range(len(roads)))
    _open_roads(plan, new)
    plan.lots = [lot for lot in plan.lots if lot.street not in new]
    if len(new) == len(roads):
        plan.spots = []


def _build_large(plan: _Plan) -> None:
    rng = plan.rng
    if not plan.site.roads:
        _streets(plan, float(rng.uniform(8, 12)), walks=False, marks=True)
    if not plan.spots:
        _large_spots(plan, 1)
    if not plan.spots:
        raise UnusableSite("no room for a large building")
    chosen = int(rng.integers(len(plan.spots)))
    plan.spots = [replace(spot, epochs=BUILT) if n == chosen or rng.random() < 0.25 else spot for n, spot in enumerate(plan.spots)]
    if rng.random() < 0.3 and len(plan.site.roads):
        _open_roads(plan, set(range(1, len(plan.site.roads))) or {0})


def _demolish(plan: _Plan) -> None:
    rng = plan.rng
    visible = [n for n, lot in enumerate(plan.lots) if _in_view(plan, lot.building)]
    if not visible and not plan.spots:
        raise UnusableSite("nothing to remove")
    if visible:
        count = min(len(visible), int(rng.choice([1, 1, 2, 3, 5])))
        _set_epochs(plan, [int(n) for n in rng.choice(visible, count, replace=False)], REMOVED)
    else:
        plan.spots[0] = replace(plan.spots[0], epochs=REMOVED)


def _extend(plan: _Plan) -> None:
    """A block more at the side or the back of a building."""
    rng = plan.rng
    buildings = [(n, lot.building) for n, lot in enumerate(plan.lots)] + [(-1 - n, spot) for n, spot in enumerate(plan.spots)]
    rng.shuffle(buildings)  # type: ignore[arg-type]
    for number, building in buildings:
        if not _in_view(plan, building, 0.9):
            continue
        main = building.blocks[0]
        deepest = max(block.across + abs(-math.sin(main.turn) * (block.x - main.x) + math.cos(main.turn) * (block.y - main.y)) for block in building.blocks)
        widest = max(block.along + abs(math.cos(main.turn) * (block.x - main.x) + math.sin(main.turn) * (block.y - main.y)) for block in building.blocks)
        half = min(max(main.along * float(rng.uniform(0.4, 0.75)), 3.0), 14.0)
        far = min(max(main.across * float(rng.uniform(0.5, 0.9)), 2.8), 12.0)
        roof = "flat" if main.roof == "flat" else "hip"
        spots = [(float(rng.uniform(-0.4, 0.4)) * main.along, deepest + far), ((widest + half) * float(rng.choice([-1, 1])), 0.0)]
        for u, v in spots:
            block = Block(*main.at(u, v), half, far, main.turn, main.eaves - 0.4, roof)  # type: ignore[arg-type]
            gone = outline(building.blocks, 0.5)
            others = TakenGround(*plan.size)
            others.cells[:] = plan.taken.cells
            _release(others, gone)
            if others.is_free(block.corners(1.2)) and _in_view(plan, replace(building, blocks=(block,)), 0.9):
                extended = replace(building, blocks=(*building.blocks, block), added=1)
                plan.taken.take(block.corners(0.4))
                if number >= 0:
                    plan.lots[number] = replace(plan.lots[number], building=extended)
                else:
                    plan.spots[-1 - number] = extended
                return
    raise UnusableSite("no building has room for more")


def _release(taken: TakenGround, polygon: np.ndarray) -> None:
    other = TakenGround.__new__(TakenGround)
    other.cells = np.zeros_like(taken.cells)
    other.take(polygon)
    taken.cells[other.cells > 0] = 0


_LANDSCAPES = {"suburb": _suburb, "woods": _woods, "fields": _fields, "village": _village, "commercial": _commercial}
_WORKS = {
    "houses": _build_houses, "houses_and_road": _build_houses_and_road, "road": _build_road,
    "large_building": _build_large, "demolition": _demolish, "extension": _extend,
}  # fmt: skip
_SUITABLE: dict[Work, tuple[str, ...]] = {
    "houses": ("suburb", "suburb", "woods", "village"),
    "houses_and_road": ("suburb", "woods"),
    "road": ("suburb", "woods", "fields", "commercial"),
    "large_building": ("commercial", "fields"),
    "demolition": ("suburb", "village", "fields", "woods"),
    "extension": ("suburb", "village", "commercial", "woods"),
}


# ------------------------------------------------------------------------------------------- what belongs to it


def _furnish(plan: _Plan) -> None:
    """Lots, parking lots and the land of what is built."""
    rng, site = plan.rng, plan.site
    before: Cover = "soil"
    context = "none"
    works_land = [lot.ground for lot in plan.lots if lot.building.epochs == BUILT]
    built_roads = [road for road in site.roads if road.epochs == BUILT]
    built_spots = [spot for spot in plan.spots if spot.epochs == BUILT]
    if works_land or built_roads or built_spots:
        chances = {"woods": 0.75, "fields": 0.0}.get("woods" if plan.forest > 0.5 else "other", 0.18 if plan.forest else 0.0)
        green = site.ground in ("meadow", "dry")
        context = "woods" if rng.random() < chances else str(rng.choice(["bareland", "bareland", "grass" if green else "bareland"]))
        before = str(rng.choice(["soil", "sand", "mud", "dry"]))  # type: ignore[assignment]
    site.facts["context"] = "desert" if context == "bareland" and before in ("sand", "dry") else context
    plan.cleared = TakenGround(site.width, site.height)
    shade = float(rng.normal(0, 0.07))
    if context == "bareland":
        epochs: Epochs = REMOVED if plan.surroundings else ALWAYS
        for ground in works_land:
            grown = (ground - ground.mean(0)) * 1.12 + ground.mean(0)
            site.patches.append(Patch(grown, before, shade, 1.6, epochs=epochs))
        for spot in built_spots:
            site.patches.append(Patch(outline(spot.blocks, 14.0), before, shade, 3.0, epochs=epochs))
        for road in built_roads:
            site.patches.append(Patch(_corridor(road, 8.0), before, shade, 2.5, epochs=epochs))
    for lot in plan.lots:
        _furnish_lot(plan, lot)
    for spot in plan.spots:
        _furnish_large(plan, spot)
    for road in built_roads:
        plan.cleared.take_line(road.points, road.width + (9.0 if road.walks else 5.0))
        if road.circle:
            plan.cleared.take_circle(*road.points[-1], road.circle + 4.0)
        if plan.surroundings and rng.random() < 0.7:
            site.patches.append(Patch(_corridor(road, 4.0), "soil", shade, 1.2, epochs=BUILT))
    if context == "woods":
        plan.forest = max(plan.forest, 0.88)
    _trails(plan)


def _corridor(road: Road, wider: float) -> np.ndarray:
    """The land of a road and a strip on both sides, as a polygon."""
    left, right = (beside(road.points, sign * (road.width / 2 + wider)) for sign in (-1, 1))
    return np.concatenate((left, right[::-1]))


def _furnish_lot(plan: _Plan, lot: Lot) -> None:
    rng, site, building = plan.rng, plan.site, lot.building
    epochs = building.epochs
    assert plan.cleared is not None
    shade, fence, young = float(rng.normal(0, 0.09)), rng.random() < 0.75, rng.random()
    pool, cover = rng.random() < 0.05, str(rng.choice(["lawn", "lawn", "lawn", "dry", "meadow"]))
    yard_trees = rng.poisson(1.6)
    spots = rng.uniform(0.06, 0.94, (int(yard_trees), 2))
    if epochs == (False, False):
        return
    if not plan.surroundings and epochs == BUILT:
        plan.cleared.take(outline(building.blocks, 2.0))
        site.buildings.append(building)
        return
    land: Epochs = epochs if plan.surroundings else ALWAYS
    if epochs == BUILT:
        plan.cleared.take(lot.ground)
    style = building.noun
    site.buildings.append(building)
    if style == "building":
        if rng.random() < 0.5:
            yard = (lot.ground - lot.ground.mean(0)) * 1.05 + lot.ground.mean(0)
            site.patches.append(Patch(yard, str(rng.choice(["soil", "gravel", "mud"])), shade - 0.12, 0.8, epochs=land))  # type: ignore[arg-type]
        return
    if land == REMOVED and plan.surroundings:
        site.patches.append(Patch(lot.ground, "soil", shade, 1.5, epochs=BUILT))
    site.patches.append(Patch(lot.ground, cover, shade, 0.2 if style == "house" else 1.2, epochs=land, layer=0))  # type: ignore[arg-type]
    site.patches.append(Patch(lot.drive, "concrete", float(rng.normal(0.05, 0.06)), epochs=land, layer=2))
    block = building.blocks[0]
    if rng.random() < 0.5:  # a terrace
        x, y = block.at(float(rng.uniform(-0.5, 0.5)) * block.along, block.across * 1.35)
        site.patches.append(Patch(rectangle(x, y, 2.4, 1.8, block.turn), "concrete", 0.0, epochs=land, layer=2))
    inner = (lot.ground - lot.ground.mean(0)) * 0.92 + lot.ground.mean(0)
    if fence and style == "house" and plan.streets.is_free(inner[2:4].repeat(2, 0) + np.array([(0, 0), (0.5, 0.5)] * 2)):
        a, b, c, d = lot.ground
        line = np.array([a + (d - a) * 0.45, d, c, b + (c - b) * 0.45])
        site.strips.append(Strip(line, 0.3, tuple(srgb(74, 62, 50)), 1.7, epochs=land))  # type: ignore[arg-type]
    if pool and style != "building":
        x, y = block.at(float(rng.uniform(-0.5, 0.5)) * block.along, block.across + 6.0)
        site.patches.append(Patch(rectangle(x, y, 4.6, 3.0, block.turn), "concrete", 0.0, epochs=land, layer=2))
        site.strips.append(Strip(np.array([Block(x, y, 1, 1, block.turn).at(-2, 0), Block(x, y, 1, 1, block.turn).at(2, 0)]), 3.2, tuple(srgb(76, 142, 160)), epochs=land))  # type: ignore[arg-type]
    for share in spots:
        x, y = lot.ground[0] + (lot.ground[1] - lot.ground[0]) * share[0] + (lot.ground[3] - lot.ground[0]) * share[1]
        radius = float(rng.uniform(0.8, 1.6) if young < 0.4 or epochs == BUILT else rng.uniform(1.2, 3.4))
        if plan.taken.is_free_at(float(x), float(y), radius * 0.7):
            site.trees.append(Tree(float(x), float(y), radius, radius * 1.7, float(rng.normal()), bool(rng.random() < 0.5), land))


def _furnish_large(plan: _Plan, spot: Building) -> None:
    """Pavement and stalls around a large building."""
    rng, site = plan.rng, plan.site
    site.buildings.append(spot)
    assert plan.cleared is not None
    main = spot.blocks[0]
    land: Epochs = spot.epochs if plan.surroundings else ALWAYS
    if spot.epochs == BUILT:
        plan.cleared.take(outline(spot.blocks, 16.0 if plan.surroundings else 2.0))
        if not plan.surroundings:
            return
    if spot.epochs == REMOVED and plan.surroundings:
        site.patches.append(Patch(outline(spot.blocks, 5.0), "soil", 0.0, 2.0, epochs=BUILT, layer=2))
    dark = rng.random() < 0.6
    apron = Block(main.x, main.y, main.along + 5.0, main.across + 5.0, main.turn)
    site.patches.append(Patch(apron.corners(), "concrete", -0.1, 0.0, epochs=land, layer=2))
    parking = None
    for side, deep in rng.permutation([(-1.0, 9.0), (1.0, 9.0), (-1.0, 16.0), (1.0, 16.0)]):
        block = Block(*main.at(0, side * (main.across + 4.0 + deep)), main.along + float(rng.uniform(-4, 6)), float(deep), main.turn)
        if plan.land.is_free(block.corners(-0.5)):
            parking = block
    if parking is None:
        return
    plan.land.take(parking.corners())
    site.patches.append(Patch(parking.corners(), "asphalt" if dark else "concrete", -0.06, 0.0, epochs=land, layer=2))
    (plan.cleared if spot.epochs == BUILT else plan.taken).take(parking.corners(1.0))
    site.facts.setdefault("parking", []).append((parking, land))
    site.facts["parking_built"] = site.facts.get("parking_built", False) or land == BUILT
    deep = parking.across
    white = tuple(srgb(214, 212, 206))
    for row in np.arange(-deep + 2.6, deep, 8.0):
        for u in np.arange(-parking.along + 2.0, parking.along - 1.0, 2.7):
            ends = np.array([parking.at(u, row - 2.4), parking.at(u, row + 2.4)])
            site.strips.append(Strip(ends, 0.16, white, 0.0, 0.75, epochs=land))  # type: ignore[arg-type]


def _trails(plan: _Plan) -> None:
    """Tracks of wheels over open land."""
    rng, site = plan.rng, plan.site
    for _ in range(int(rng.poisson(0.8 if plan.forest > 0.4 else 1.3))):
        line = curve(rng, site.width, site.height, tuple(rng.uniform(0, 1, 2) * plan.size), float(rng.uniform(0, math.pi)), float(rng.normal(0, 0.6)))
        pieces = line[: int(len(line) * rng.uniform(0.4, 1.0))]
        clear = [plan.taken.is_free_at(float(x), float(y), 1.2) for x, y in pieces]
        if all(clear):
            light = tuple(srgb(166, 150, 122))
            for side in (-0.8, 0.8):
                site.strips.append(Strip(beside(pieces, side), 0.7, light, 0.0, float(rng.uniform(0.15, 0.4))))  # type: ignore[arg-type]


def _plant(plan: _Plan, growth: bool, resolution: float) -> None:
    """Woods, single trees and bushes; none where something stands or is built."""
    rng, site = plan.rng, plan.site
    assert plan.cleared is not None
    spacing = max(float(rng.uniform(3.4, 5.0)), 3.2 * resolution)
    large = max(float(rng.uniform(2.0, 3.2)), 2.0 * resolution)
    deciduous = float(rng.choice([0.1, 0.4, 0.8]))
    single = float(rng.choice([0.0, 0.02, 0.06]))
    extent = np.array((site.width + 2 * REACH, site.height + 2 * REACH))
    columns, rows = (int(length / spacing) for length in extent)
    noise = np.random.default_rng((site.texture, 5)).standard_normal((9, 9)).astype(np.float32)
    at = (np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1) + 0.5 + rng.uniform(-0.45, 0.45, (rows, columns, 2))) * spacing
    draws = rng.random((rows, columns, 5))
    wood = cv2.remap(noise, *((at / extent * 7 + 0.5).astype(np.float32)[..., k] for k in (0, 1)), cv2.INTER_CUBIC)
    inside = wood >= np.quantile(wood, 1 - min(plan.forest, 1.0)) if plan.forest else np.zeros(wood.shape, bool)
    wanted = np.where(inside, draws[..., 0] > 0.06, draws[..., 0] < single)
    removed = 0
    for row, column in np.argwhere(wanted):
        x, y = (float(value) for value in at[row, column] - REACH)
        _, size, change, tint, leaf = (float(value) for value in draws[row, column])
        radius = large * (0.55 + 1.0 * size**1.5) * (1.0 if inside[row, column] else 0.7)
        if not plan.taken.is_free_at(x, y, radius * 0.75):
            continue
        epochs: Epochs = ALWAYS
        if not plan.cleared.is_free_at(x, y, radius * 0.6):
            if not plan.surroundings:
                continue
            epochs = REMOVED
            removed += 0 < x < site.width and 0 < y < site.height
        elif growth and change < 0.04:
            epochs = REMOVED if change < 0.012 else BUILT
        site.trees.append(Tree(x, y, radius, radius * 1.9 + 1.0, 2 * tint - 1, leaf < deciduous, epochs))
    site.facts["trees_removed"] = int(removed)


def _park(plan: _Plan, moved: bool) -> None:
    """Cars on streets, drives and parking lots."""
    rng, site = plan.rng, plan.site
    stalls: list[tuple[float, float, float, Epochs, float]] = []
    for lot in plan.lots:
        if lot.building.epochs != (False, False) and lot.building.noun != "building":
            epochs = lot.building.epochs if plan.surroundings else ALWAYS
            if not plan.surroundings and lot.building.epochs != ALWAYS:
                continue
            middle = lot.drive[:2].mean(0) * 0.6 + lot.drive[3:5].mean(0) * 0.4
            stalls.append((*middle, lot.building.blocks[0].turn + math.pi / 2, epochs, 0.35))
    for road in site.roads:
        if road.surface != "dirt":
            for point, turn in along(road.points, 7.0, 3.0):
                for side in (-1, 1):
                    offset = (road.width / 2 - 1.7) if road.width < 10 else road.width * 0.25
                    x, y = point + np.array((-math.sin(turn), math.cos(turn))) * side * offset
                    stalls.append((float(x), float(y), turn, road.epochs, 0.10))
    for parking, land in site.facts.pop("parking", []):
        share = float(rng.uniform(0.05, 0.65))
        for row in np.arange(-parking.across + 2.6, parking.across, 8.0):
            for u in np.arange(-parking.along + 3.35, parking.along - 1.0, 2.7):
                stalls.append((*parking.at(u, row), parking.turn + math.pi / 2, land, share))
    for x, y, turn, epochs, share in stalls:
        draws, colors = rng.random(2), rng.integers(len(_CARS), size=2)
        if not moved:
            if epochs == ALWAYS and draws[0] < share:
                site.cars.append(Car(x, y, turn, tuple(srgb(*_CARS[colors[0]])), epochs=ALWAYS))  # type: ignore[arg-type]
            continue
        for epoch in (0, 1):
            if epochs[epoch] and draws[epoch] < share:
                only = (True, False) if epoch == 0 else (False, True)
                site.cars.append(Car(x, y, turn + 0.03 * (draws[0] - 0.5), tuple(srgb(*_CARS[colors[epoch]])), epochs=only))  # type: ignore[arg-type]
