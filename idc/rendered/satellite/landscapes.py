"""The landscapes: ground, lines of streets, and buildings along them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from idc.rendered.satellite.canvas import color_of
from idc.rendered.satellite.site import (
    REACH,
    Building,
    Lot,
    Patch,
    Plan,
    Road,
    Roof,
    RoofBlock,
    outline,
    rectangle,
)

_HOUSE_ROOFS = (
    (92, 88, 84),
    (104, 98, 90),
    (84, 86, 88),
    (118, 108, 96),
    (98, 106, 114),
    (128, 120, 110),
    (108, 92, 82),
)
_VILLAGE_ROOFS = (
    (172, 172, 170),
    (150, 150, 150),
    (86, 112, 164),
    (108, 130, 172),
    (158, 108, 84),
    (200, 202, 204),
    (126, 122, 118),
)
_LARGE_ROOFS = ((226, 230, 230), (206, 206, 202), (176, 172, 164), (214, 204, 188), (150, 152, 156))


def _suburb(plan: Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["meadow", "dry", "meadow"]))
    plan.forest = float(rng.choice([0.0, 0.12, 0.3, 0.5]))
    lay_streets(plan, float(rng.uniform(7.5, 9.5)), walks=bool(rng.random() < 0.6))
    _lots(plan, "house")


def _woods(plan: Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["dry", "meadow"]))
    plan.forest = float(rng.uniform(0.55, 0.95))
    if plan.work == "houses" or rng.random() < 0.7:
        lay_streets(plan, float(rng.uniform(5.5, 7.5)), walks=False, dirt=bool(rng.random() < 0.25))
        _lots(plan, "villa")


def _fields(plan: Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = "crop"
    plan.forest = 0.02
    turn = float(rng.uniform(-0.6, 0.6))
    _strips_of_crop(plan, turn)
    if rng.random() < 0.8:
        lay_streets(plan, float(rng.uniform(4.5, 8.0)), walks=False, dirt=bool(rng.random() < 0.5), angle=turn)
        if plan.work not in ("large_building", "road"):
            _lots(plan, "farm")


def _village(plan: Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["mud", "soil", "dry"]))
    plan.forest = float(rng.choice([0.02, 0.06]))
    turn = float(rng.uniform(-0.5, 0.5))
    if rng.random() < 0.6:
        _strips_of_crop(plan, turn, part=True)
    lay_streets(plan, float(rng.uniform(4.5, 6.5)), walks=False, dirt=bool(rng.random() < 0.3), angle=turn)
    _lots(plan, "village")


def _commercial(plan: Plan) -> None:
    rng, site = plan.rng, plan.site
    site.ground = str(rng.choice(["dry", "meadow", "mud", "soil"]))
    plan.forest = float(rng.choice([0.0, 0.05, 0.15]))
    lay_streets(plan, float(rng.uniform(10.0, 15.0)), walks=bool(rng.random() < 0.5), marks=True)
    place_large_buildings(plan, 1 if plan.work == "large_building" else 0)


def _strips_of_crop(plan: Plan, turn: float, part: bool = False) -> None:
    """Fields: long rectangles side by side, each with its own shade."""
    rng, (width, height) = plan.rng, plan.size
    reach = math.hypot(width, height)
    centre = RoofBlock(width / 2, height / 2, 1, 1, turn)
    rows = np.arange(-reach / 2, reach / 2, float(rng.uniform(35, 60)))
    for row, (low, high) in enumerate(pairwise(rows)):
        if part and row % 2:
            continue
        at = -reach / 2
        while at < reach / 2:
            wide = float(rng.choice([rng.uniform(5, 12), rng.uniform(12, 30)]))
            covers = ["crop", "crop", "crop", "mud", "meadow", "dry"]
            cover = str(rng.choice(covers, p=[0.3, 0.2, 0.1, 0.2, 0.1, 0.1]))
            x, y = centre.at(at + wide / 2, (low + high) / 2)
            polygon, shade = rectangle(x, y, wide / 2, (high - low) / 2 - 0.5, turn), float(rng.normal(0, 0.13))
            furrows = turn + (math.pi / 2 if rng.random() < 0.9 else 0)
            plan.site.patches.append(Patch(polygon, cover, shade, 0.25, furrows))
            at += wide
    if rng.random() < 0.25:  # a greenhouse or a bare rectangle
        x, y = rng.uniform(0.15, 0.85, 2) * (width, height)
        plan.site.patches.append(Patch(rectangle(x, y, rng.uniform(5, 14), rng.uniform(4, 8), turn), "sand", 0.0, 0.2))


def lay_streets(
    plan: Plan, width: float, walks: bool, dirt: bool = False, marks: bool = False, angle: float | None = None
) -> None:
    """One or two streets that are there at both dates, unless the work is to build them."""
    rng, site, (w, h) = plan.rng, plan.site, plan.size
    turn = float(rng.uniform(0, math.pi)) if angle is None else angle + (math.pi / 2 if rng.random() < 0.5 else 0)
    bend = float(rng.choice([0.0, rng.uniform(-0.35, 0.35), rng.uniform(-1.1, 1.1)]))
    through = (w * float(rng.uniform(0.3, 0.7)), h * float(rng.uniform(0.3, 0.7)))
    main = curve(rng, w, h, through, turn, 0.0 if marks else bend)
    surface = "dirt" if dirt else str(rng.choice(["concrete", "concrete", "asphalt"]))
    if marks:
        surface = "asphalt"
    look: dict[str, Any] = {
        "surface": surface,
        "shade": float(rng.normal(0, 0.08)),
        "walks": walks and not dirt,
        "marks": marks,
    }
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
                ground.take_circle(road.points[-1], road.circle + 3.0)


def _lots(plan: Plan, style: str) -> None:
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
                    if not (
                        -REACH < centre[0] < plan.site.width + REACH and -REACH < centre[1] < plan.site.height + REACH
                    ):
                        continue
                    lot = _lot(plan, style, centre, facing, wide, deep, gap, back + walk, yard, shared, roofs)
                    if lot is not None:
                        order += 1
                        plan.lots.append(replace(lot, street=number, side=side * (row + 1), order=order))
                        plan.land.take(lot.ground)


def _lot(
    plan: Plan, style: str, centre: np.ndarray, facing: float, wide: float, deep: float, gap: float, front: float,
    yard: float, shared: np.ndarray, roofs: list[np.ndarray],
) -> Lot | None:  # fmt: skip
    rng = plan.rng
    x, y = float(centre[0]), float(centre[1])
    turn = facing + float(rng.normal(0, 0.02))
    if style in ("village", "farm"):
        form: Roof = "flat" if rng.random() < 0.5 else "gable"
        main = RoofBlock(x, y, wide / 2, deep / 2 * 0.8, turn, float(rng.uniform(3, 6)), form)
        blocks: tuple[RoofBlock, ...] = (main,)
        if rng.random() < 0.45:
            half = deep * 0.22
            at = main.at((wide / 2 - half) * rng.choice([-1, 1]), deep * 0.35)
            blocks += (RoofBlock(*at, half, deep * 0.3, turn, 3.0, form),)
        roof = roofs[rng.integers(len(roofs))] * rng.uniform(0.85, 1.1)
    else:
        blocks = house_blocks(rng, x, y, turn, wide, deep, style)
        if rng.random() < 0.75:
            roof = shared * rng.uniform(0.88, 1.12)
        else:
            roof = roofs[rng.integers(len(roofs))] * rng.uniform(0.85, 1.12)
    if not plan.taken.is_free(outline(blocks, 1.3)):
        return None
    plan.taken.take(outline(blocks, 0.4))
    house = RoofBlock(x, y, wide / 2, deep / 2, turn)
    half_wide, street, back = wide / 2 + gap / 2, -deep / 2 - front, deep / 2 + yard
    corners = ((-half_wide, street), (half_wide, street), (half_wide, back), (-half_wide, back))
    ground = np.array([house.at(*corner) for corner in corners])
    garage = blocks[1] if len(blocks) > 1 and style in ("house", "villa") else blocks[0]
    c, s = math.cos(turn), math.sin(turn)
    dx, dy = garage.x - x, garage.y - y
    u, v = dx * c + dy * s, -dx * s + dy * c
    half_drive = min(garage.along * 0.85, 3.2) if style in ("house", "villa") else 1.4
    start, end, flare = v - garage.across, street - 0.4, 0.6
    left, right = u - half_drive, u + half_drive
    drive_corners = ((left, start), (right, start), (right, end + 1.5), (right + flare, end), (left - flare, end))
    drive = np.array([house.at(*corner) for corner in (*drive_corners, (left, end + 1.5))])
    noun = {"house": "house", "villa": "villa"}.get(style, "building")
    color = color_of(*np.clip(roof, 0, 245))
    building = Building(blocks, color, float(rng.uniform(0.5, 0.75)), int(rng.integers(2**31)), noun=noun)
    return Lot(ground, drive, building, 0, 0, 0)


def place_large_buildings(plan: Plan, fewest: int) -> None:
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
        x, y = (float(value) for value in centre)
        main = RoofBlock(x, y, half_long, half_deep, turn, float(rng.uniform(6, 10)), "flat")
        blocks = [main]
        if rng.random() < 0.5:
            half = half_long * float(rng.uniform(0.2, 0.4))
            at = main.at((half_long - half) * rng.choice([-1, 1]), side * half_deep * 0.9)
            blocks.append(RoofBlock(*at, half, half_deep * 0.35, turn, main.eaves - 1, "flat"))
        if not plan.taken.is_free(outline(tuple(blocks), 4.0)):
            continue
        plan.taken.take(outline(tuple(blocks), 9.0))
        plan.land.take(outline(tuple(blocks), 3.5))
        roof = np.array(_LARGE_ROOFS[int(rng.integers(len(_LARGE_ROOFS)))]) * rng.uniform(0.9, 1.05)
        color = color_of(*np.clip(roof, 0, 240))
        plan.spots.append(Building(tuple(blocks), color, 0.0, int(rng.integers(2**31)), noun="building"))


LANDSCAPES: dict[str, Callable[[Plan], None]] = {
    "suburb": _suburb,
    "woods": _woods,
    "fields": _fields,
    "village": _village,
    "commercial": _commercial,
}


def curve(
    rng: np.random.Generator, width: float, height: float, through: tuple[float, float], angle: float, bend: float
) -> np.ndarray:
    """A line across the site through a point, (n, 2); ``bend`` is its turn from one end to the other, radians."""
    half = 0.5 * math.hypot(width, height) + REACH
    steps = np.linspace(-half, half, max(int(2 * half / 3), 8))
    wave = 0.35 * bend * rng.uniform(-1, 1)
    turn = angle + bend * (steps / (2 * half)) + wave * np.sin(steps / half * math.pi * 1.3)
    delta = np.stack((np.cos(turn), np.sin(turn)), 1) * (steps[1] - steps[0])
    points = np.cumsum(delta, 0)
    middle = points[len(points) // 2]
    return points - middle + through


def branch(rng: np.random.Generator, main: np.ndarray, at: float, side: int, length: float, bend: float) -> np.ndarray:
    """A line that leaves another one at a share of its length, to one side."""
    start = int(at * (len(main) - 1))
    tangent = main[min(start + 1, len(main) - 1)] - main[max(start - 1, 0)]
    angle = math.atan2(tangent[1], tangent[0]) + side * math.pi / 2 + rng.uniform(-0.15, 0.15)
    steps = np.linspace(0, length, max(int(length / 3), 4))
    turn = angle + bend * (steps / length) ** 2
    delta = np.stack((np.cos(turn), np.sin(turn)), 1) * (steps[1] - steps[0])
    return np.concatenate((main[start : start + 1], main[start] + np.cumsum(delta[1:], 0)))


def along(points: np.ndarray, step: float, first: float = 0.0) -> list[tuple[np.ndarray, float]]:
    """Points of a line at equal distances, and its direction there."""
    length = np.concatenate(([0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))))
    at = np.arange(first, length[-1], step)
    here, ahead, behind = (
        np.stack([np.interp(at + shift, length, points[:, k]) for k in (0, 1)], 1) for shift in (0.0, 1.0, -1.0)
    )
    return [(point, math.atan2(dy, dx)) for point, (dx, dy) in zip(here, ahead - behind, strict=True)]


def house_blocks(
    rng: np.random.Generator, x: float, y: float, turn: float, wide: float, deep: float, style: str
) -> tuple[RoofBlock, ...]:
    """A main block and wings. ``turn`` is the direction of the street; the front is at negative ``across``."""
    eaves = float(rng.uniform(2.6, 3.4) if style != "villa" else rng.uniform(3.5, 5.5))
    gable = rng.random() < 0.3
    main = RoofBlock(x, y, wide / 2, deep * 0.36, turn, eaves, "gable" if gable else "hip")
    blocks = [main]
    side = 1 if rng.random() < 0.5 else -1
    garage_wide = wide * rng.uniform(0.19, 0.25)
    at = main.at(side * (wide / 2 - garage_wide), -deep * 0.22)
    blocks.append(RoofBlock(*at, garage_wide, deep * 0.30, turn, eaves - 0.2, "hip"))
    if rng.random() < 0.8:
        half = wide * rng.uniform(0.16, 0.24)
        at = main.at(-side * (wide / 2 - half) * rng.uniform(0.6, 1.0), deep * rng.uniform(0.16, 0.26))
        blocks.append(RoofBlock(*at, float(half), deep * 0.26, turn, eaves, "hip"))
    if rng.random() < 0.6:
        half = wide * rng.uniform(0.1, 0.15)
        at = main.at(-side * wide * rng.uniform(0.0, 0.25), -deep * rng.uniform(0.3, 0.36))
        blocks.append(RoofBlock(*at, float(half), deep * 0.12, turn, eaves - 0.1, "gable" if gable else "hip"))
    return tuple(blocks)
