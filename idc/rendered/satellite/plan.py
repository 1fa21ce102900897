"""A site while it is laid out: what is on it, which ground is taken, what shall change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from idc.rendered.satellite.config import Work
from idc.rendered.satellite.site import Building, Site
from idc.rendered.satellite.streets import Lot, TakenGround


class UnusableSite(Exception):
    """A draw that does not meet the settings; another one may."""


@dataclass
class Plan:
    """A site that is being laid out.

    Attributes:
        taken: where nothing else can be: buildings and streets; ``land``: lots, streets and ponds; ``streets`` alone.
        surroundings: whether the land of what is built changes with it.
        forest: share of the site that is wood.
        cleared: land on which no tree is left when something is built.
        spots: large buildings.
    """

    site: Site
    taken: TakenGround
    land: TakenGround
    streets: TakenGround
    cleared: TakenGround
    rng: np.random.Generator
    work: Work | None
    surroundings: bool
    lots: list[Lot] = field(default_factory=list)
    forest: float = 0.0
    spots: list[Building] = field(default_factory=list)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return self.site.width, self.site.height


def is_in_view(plan: Plan, building: Building, share: float = 0.45) -> bool:
    """Whether enough of a building is in the image to be seen as one."""
    points = np.concatenate(
        [
            np.array(
                [
                    block.at(a * block.along, b * block.across)
                    for a in (-0.9, -0.45, 0, 0.45, 0.9)
                    for b in (-0.9, -0.45, 0, 0.45, 0.9)
                ]
            )
            for block in building.blocks
        ]
    )
    w, h = plan.size
    inside = (points[:, 0] > 0) & (points[:, 0] < w) & (points[:, 1] > 0) & (points[:, 1] < h)
    return bool(inside.mean() >= share)


def is_outside(plan: Plan, building: Building) -> bool:
    corners, (w, h) = np.concatenate([block.corners(1.0) for block in building.blocks]), plan.size
    low, high = corners.min(0), corners.max(0)
    return bool(high[0] < 0 or high[1] < 0 or low[0] > w or low[1] > h)
