"""Pairs with drawn differences, as records without pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from idc.rendered.config import RenderConfig, SeveralConfig
from idc.rendered.differences import Difference, differences_of
from idc.rendered.draw import draw_scene
from idc.rendered.scene import View

Record = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A pair: see :class:`idc.metrics.scene_scores.TrueDifferences`."""

    differences: tuple[Difference, ...]
    before: list[Record]
    after: list[Record]
    views: tuple[View, View]


def drawn_pairs(count: int, seed: int, jitter: str = "moderate") -> list[Drawn]:
    """Pairs with 0 to 5 differences, of which each can be described."""
    config = RenderConfig(
        width=60, height=45, min_visible_pixels=4, max_objects=9, jitter=jitter, several=SeveralConfig(), seed=seed,
        large_radius=0.8, small_radius=0.4, camera_distance=10.5,
    )  # fmt: skip
    pairs = []
    for index in range(count):
        meta = draw_scene(config, index)[0].record()
        first, second = (View.of_record(view) for view in meta["views"])
        pairs.append(Drawn(tuple(differences_of(meta) or ()), meta["before"], meta["after"], (first, second)))
    return pairs
