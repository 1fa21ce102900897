"""Trees and cars."""

from __future__ import annotations

import math

import cv2
import numpy as np

from idc.rendered.satellite.covers import color_of
from idc.rendered.satellite.plan import Plan
from idc.rendered.satellite.site import ALWAYS, BUILT, REMOVED, Car, Epochs, SiteTree
from idc.rendered.satellite.streets import REACH, along

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
