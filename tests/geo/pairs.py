"""Small pairs of GeoTIFFs, and jobs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from idc.config import load
from idc.geo.config import SceneJob
from idc.geo.tiles import Span, Tile
from tests.geo.scenes import ground, write

SIDE = 120


def job(before: Path, after: Path, **settings: Any) -> SceneJob:
    raw_settings = {
        "before": str(before), "after": str(after), "out": str(before.parent / "out"), "artifact": "regions",
    }  # fmt: skip
    return load(SceneJob, None, raw_settings | settings)


def whole(side: int = SIDE) -> Tile:
    return Tile(Span(0, side, 0, side), Span(0, side, 0, side))


def pair(folder: Path, **after: Any) -> tuple[Path, Path]:
    """An image, and the same with other properties."""
    pixels = ground()[:SIDE, :SIDE]
    return write(folder / "before.tif", pixels), write(folder / "after.tif", **{"pixels": pixels} | after)
