"""Drawn GeoTIFF pairs of any size whose changes are known (the same small tiles of ground again and again, with new
buildings here and there), jobs of them, and a captioner without a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio
from rasterio.enums import ColorInterp
from rasterio.transform import Affine, from_origin

from idc.captioning.contract import Candidate, Capability, Captioner, ClassMap, Description, SearchOptions
from idc.config import load
from idc.geo.config import SceneJob

UTM = "EPSG:32632"
GRID = from_origin(500_000.0, 5_300_000.0, 0.5, 0.5)
"""Half a metre a pixel, north up."""
_PATCH = 250
SIDE = 120
"""Of the images of :func:`pair`."""
NAMES = ("background", "road", "building")
"""The classes of :class:`DifferenceCaptioner`."""


class DrawnPair(NamedTuple):
    """A pair of files, and the raster of what changed (1, else 0) on the same grid."""

    before: Path
    after: Path
    truth: Path


def ground(seed: int = 0, side: int = _PATCH) -> np.ndarray:
    """A patch of fields with soft textures, uint8 (side, side, 3)."""
    import cv2

    rng = np.random.default_rng(seed)
    around = np.tile(rng.normal(0, 1, (side, side)).astype(np.float32), (3, 3))  # so that patches have no seams
    noise = cv2.GaussianBlur(around, (0, 0), 3)[side:-side, side:-side]
    image = np.array([96, 120, 84], np.float32) + 60 * noise[..., None]
    image[: side // 3] += (18, -6, -20)  # another field
    return image.clip(1, 255).astype(np.uint8)


def draw_pair(folder: Path, size: int, *, bar: bool = False, **profile: Any) -> DrawnPair:
    """Write a pair of ``size`` times ``size`` pixels. Along either axis of three patches one has a new building of
    40 x 60 pixels, red in the image after; with ``bar`` a new road, 24 pixels wide, crosses all tiles from the left to
    the right. ``profile``: of the files of images."""
    count = -(-size // _PATCH)
    before = np.tile(ground(), (count, count, 1))[:size, :size]
    after, truth = before.copy(), np.zeros((size, size, 1), np.uint8)
    for row, column in product(range(1, count, 3), repeat=2):
        # In every row of patches elsewhere, so that buildings lie across borders of tiles.
        y, x = row * _PATCH + 20 + 29 * row % 150, column * _PATCH + 15 + 37 * row % 150
        after[y : y + 40, x : x + 60], truth[y : y + 40, x : x + 60] = (190, 40, 30), 1
    if bar:
        top = count // 2 * _PATCH + 100
        after[top : top + 24], truth[top : top + 24] = (60, 60, 70), 1
    tiled = {"tiled": True, "blockxsize": 256, "blockysize": 256} | profile
    images = (write(folder / f"{name}.tif", pixels, **tiled) for name, pixels in (("before", before), ("after", after)))
    return DrawnPair(*images, write(folder / "truth.tif", truth))


def write(path: Path, pixels: np.ndarray, *, crs: str | None = UTM, grid: Affine | None = GRID, **profile: Any) -> Path:
    """Write an image (H, W, bands) as GeoTIFF; without a ``grid`` it has no georeference."""
    path.parent.mkdir(parents=True, exist_ok=True)
    alpha = profile.pop("alpha", False)
    height, width, count = pixels.shape
    options = {"driver": "GTiff", "width": width, "height": height, "count": count, "dtype": pixels.dtype.name}
    if grid is not None:
        options |= {"transform": grid}
    with rasterio.open(path, "w", **options | {"crs": crs} | profile) as raster:
        raster.write(np.moveaxis(pixels, 2, 0))
        if alpha:
            raster.colorinterp = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha)
    return path


def job(before: Path, after: Path, **settings: Any) -> SceneJob:
    raw_settings = {
        "before": str(before), "after": str(after), "out": str(before.parent / "out"), "artifact": "regions",
    }  # fmt: skip
    return load(SceneJob, None, raw_settings | settings)


def pair(folder: Path, **after: Any) -> tuple[Path, Path]:
    """An image, and the same with other properties."""
    pixels = ground()[:SIDE, :SIDE]
    return write(folder / "before.tif", pixels), write(folder / "after.tif", **{"pixels": pixels} | after)


class DifferenceCaptioner(Captioner):
    """What differs by more than 30 in a channel changed: its change map is 1 there. Red is a building, everything else
    a road.

    Args:
        classes: it has class maps.
        log: a file that gets a line for each pair.
        pause: seconds per batch.
    """

    capabilities: frozenset[Capability] = frozenset({"map"})
    trained_on: str | None = None

    def __init__(self, classes: bool = False, log: Path | None = None, pause: float = 0.0) -> None:
        self.classes, self.log, self.pause = classes, log, pause

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        assert options.change_map
        time.sleep(self.pause)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write("pair\n" * len(befores))
        return [self._described(before, after) for before, after in zip(befores, afters, strict=True)]

    def _described(self, before: np.ndarray, after: np.ndarray) -> Description:
        assert before.shape == after.shape
        changed = abs(before.astype(int) - after).max(axis=2) > 30
        red = after[..., 0].astype(int) > after[..., 1].astype(int) + 60
        text = "a building appeared" if (changed & red).any() else "a road appeared"
        extras: dict[str, Any] = {}
        if self.classes:
            extras["class_map"] = ClassMap(np.where(changed, np.where(red, 2, 1), 0).astype(np.uint8), NAMES)
        caption = text if changed.any() else "there is no change"
        return Description((Candidate(caption, -0.1),), change_map=changed.astype(np.float32), **extras)


class CaptionerWithoutMap(DifferenceCaptioner):
    """It has no capability."""

    capabilities: frozenset[Capability] = frozenset()
