"""Lots, parking lots, the land of what is built, trees and cars."""

from __future__ import annotations

import math

import cv2
import numpy as np

from idc.rendered.satellite.aerial import beside
from idc.rendered.satellite.canvas import color_of
from idc.rendered.satellite.landscapes import along, curve
from idc.rendered.satellite.site import (
    ALWAYS,
    BUILT,
    REACH,
    REMOVED,
    Building,
    Car,
    Cover,
    Epochs,
    Lot,
    Patch,
    Plan,
    Road,
    RoofBlock,
    SiteTree,
    Strip,
    outline,
    rectangle,
    scaled_polygon,
)


def furnish(plan: Plan) -> None:
    """Lots, parking lots and the land of what is built."""
    rng, site = plan.rng, plan.site
    before: Cover = "soil"
    context = "none"
    works_land = [lot.ground for lot in plan.lots if lot.building.epochs == BUILT]
    built_roads = [road for road in site.roads if road.epochs == BUILT]
    built_spots = [spot for spot in plan.spots if spot.epochs == BUILT]
    if works_land or built_roads or built_spots:
        chance_of_woods = 0.75 if plan.forest > 0.5 else 0.18 if plan.forest else 0.0
        open_land = ["bareland", "bareland", "grass" if site.ground in ("meadow", "dry") else "bareland"]
        context = "woods" if rng.random() < chance_of_woods else str(rng.choice(open_land))
        before = str(rng.choice(["soil", "sand", "mud", "dry"]))
    site.facts["context"] = "desert" if context == "bareland" and before in ("sand", "dry") else context
    shade = float(rng.normal(0, 0.07))
    if context == "bareland":
        epochs: Epochs = REMOVED if plan.surroundings else ALWAYS
        for ground in works_land:
            grown = scaled_polygon(ground, 1.12)
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
            plan.cleared.take_circle(road.points[-1], road.circle + 4.0)
        if plan.surroundings and rng.random() < 0.7:
            site.patches.append(Patch(_corridor(road, 4.0), "soil", shade, 1.2, epochs=BUILT))
    if context == "woods":
        plan.forest = max(plan.forest, 0.88)
    _trails(plan)


def _corridor(road: Road, wider: float) -> np.ndarray:
    left, right = (beside(road.points, sign * (road.width / 2 + wider)) for sign in (-1, 1))
    return np.concatenate((left, right[::-1]))


def _furnish_lot(plan: Plan, lot: Lot) -> None:
    rng, site, building = plan.rng, plan.site, lot.building
    epochs = building.epochs
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
            yard = scaled_polygon(lot.ground, 1.05)
            site.patches.append(Patch(yard, str(rng.choice(["soil", "gravel", "mud"])), shade - 0.12, 0.8, epochs=land))
        return
    if land == REMOVED and plan.surroundings:
        site.patches.append(Patch(lot.ground, "soil", shade, 1.5, epochs=BUILT))
    site.patches.append(Patch(lot.ground, cover, shade, 0.2 if style == "house" else 1.2, epochs=land, layer=0))
    site.patches.append(Patch(lot.drive, "concrete", float(rng.normal(0.05, 0.06)), epochs=land, layer=2))
    block = building.blocks[0]
    if rng.random() < 0.5:  # a terrace
        x, y = block.at(float(rng.uniform(-0.5, 0.5)) * block.along, block.across * 1.35)
        site.patches.append(Patch(rectangle(x, y, 2.4, 1.8, block.turn), "concrete", 0.0, epochs=land, layer=2))
    back = scaled_polygon(lot.ground, 0.92)[2:4].repeat(2, 0) + np.array([(0, 0), (0.5, 0.5)] * 2)
    if fence and style == "house" and plan.streets.is_free(back):
        a, b, c, d = lot.ground
        line = np.array([a + (d - a) * 0.45, d, c, b + (c - b) * 0.45])
        site.strips.append(Strip(line, 0.3, color_of(74, 62, 50), 1.7, epochs=land))
    if pool and style != "building":
        x, y = block.at(float(rng.uniform(-0.5, 0.5)) * block.along, block.across + 6.0)
        site.patches.append(Patch(rectangle(x, y, 4.6, 3.0, block.turn), "concrete", 0.0, epochs=land, layer=2))
        water = RoofBlock(x, y, 1, 1, block.turn)
        ends = np.array([water.at(-2, 0), water.at(2, 0)])
        site.strips.append(Strip(ends, 3.2, color_of(76, 142, 160), epochs=land))
    for share in spots:
        x, y = lot.ground[0] + (lot.ground[1] - lot.ground[0]) * share[0] + (lot.ground[3] - lot.ground[0]) * share[1]
        radius = float(rng.uniform(0.8, 1.6) if young < 0.4 or epochs == BUILT else rng.uniform(1.2, 3.4))
        if plan.taken.is_free_at(float(x), float(y), radius * 0.7):
            site.trees.append(
                SiteTree(float(x), float(y), radius, radius * 1.7, float(rng.normal()), bool(rng.random() < 0.5), land)
            )


def _furnish_large(plan: Plan, spot: Building) -> None:
    rng, site = plan.rng, plan.site
    site.buildings.append(spot)
    main = spot.blocks[0]
    land: Epochs = spot.epochs if plan.surroundings else ALWAYS
    if spot.epochs == BUILT:
        plan.cleared.take(outline(spot.blocks, 16.0 if plan.surroundings else 2.0))
        if not plan.surroundings:
            return
    if spot.epochs == REMOVED and plan.surroundings:
        site.patches.append(Patch(outline(spot.blocks, 5.0), "soil", 0.0, 2.0, epochs=BUILT, layer=2))
    dark = rng.random() < 0.6
    apron = RoofBlock(main.x, main.y, main.along + 5.0, main.across + 5.0, main.turn)
    site.patches.append(Patch(apron.corners(), "concrete", -0.1, 0.0, epochs=land, layer=2))
    parking = None
    for side, deep in rng.permutation([(-1.0, 9.0), (1.0, 9.0), (-1.0, 16.0), (1.0, 16.0)]):
        at, half = main.at(0, side * (main.across + 4.0 + deep)), main.along + float(rng.uniform(-4, 6))
        block = RoofBlock(*at, half, float(deep), main.turn)
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
    white = color_of(214, 212, 206)
    for row in np.arange(-deep + 2.6, deep, 8.0):
        for u in np.arange(-parking.along + 2.0, parking.along - 1.0, 2.7):
            ends = np.array([parking.at(u, row - 2.4), parking.at(u, row + 2.4)])
            site.strips.append(Strip(ends, 0.16, white, 0.0, 0.75, epochs=land))


def _trails(plan: Plan) -> None:
    rng, site = plan.rng, plan.site
    for _ in range(int(rng.poisson(0.8 if plan.forest > 0.4 else 1.3))):
        through, angle = tuple(rng.uniform(0, 1, 2) * plan.size), float(rng.uniform(0, math.pi))
        line = curve(rng, site.width, site.height, through, angle, float(rng.normal(0, 0.6)))
        pieces = line[: int(len(line) * rng.uniform(0.4, 1.0))]
        if all(plan.taken.is_free_at(float(x), float(y), 1.2) for x, y in pieces):
            light = color_of(166, 150, 122)
            for side in (-0.8, 0.8):
                site.strips.append(Strip(beside(pieces, side), 0.7, light, 0.0, float(rng.uniform(0.15, 0.4))))


_CARS = (
    (210, 210, 212),
    (228, 228, 228),
    (60, 60, 64),
    (34, 34, 38),
    (130, 132, 136),
    (140, 34, 30),
    (40, 54, 98),
    (168, 160, 146),
)


def plant_trees(plan: Plan, growth: bool, resolution: float) -> None:
    """Woods, single trees and bushes; none where something stands or is built."""
    rng, site = plan.rng, plan.site
    spacing = max(float(rng.uniform(3.4, 5.0)), 3.2 * resolution)
    large = max(float(rng.uniform(2.0, 3.2)), 2.0 * resolution)
    deciduous = float(rng.choice([0.1, 0.4, 0.8]))
    single = float(rng.choice([0.0, 0.02, 0.06]))
    extent = np.array((site.width + 2 * REACH, site.height + 2 * REACH))
    columns, rows = (int(length / spacing) for length in extent)
    noise = np.random.default_rng((site.texture, 5)).standard_normal((9, 9)).astype(np.float32)
    at = (
        np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1)
        + 0.5
        + rng.uniform(-0.45, 0.45, (rows, columns, 2))
    ) * spacing
    draws = rng.random((rows, columns, 5))
    samples = (at / extent * 7 + 0.5).astype(np.float32)
    wood = cv2.remap(noise, samples[..., 0], samples[..., 1], cv2.INTER_CUBIC)
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
        site.trees.append(SiteTree(x, y, radius, radius * 1.9 + 1.0, 2 * tint - 1, leaf < deciduous, epochs))
    site.facts["trees_removed"] = int(removed)


def park_cars(plan: Plan, moved: bool) -> None:
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
                site.cars.append(Car(x, y, turn, color_of(*_CARS[colors[0]]), epochs=ALWAYS))
            continue
        for epoch in (0, 1):
            if epochs[epoch] and draws[epoch] < share:
                only = (True, False) if epoch == 0 else (False, True)
                site.cars.append(
                    Car(x, y, turn + 0.03 * (draws[0] - 0.5), color_of(*_CARS[colors[epoch]]), epochs=only)
                )
