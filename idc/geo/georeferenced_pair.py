"""A pair of GeoTIFFs small enough for memory: decoded from bytes by the rules of large scenes, and its changes as
GeoJSON."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rasterio.transform import Affine
from rasterio.windows import Window

from idc.captioning.apply import Pixels
from idc.captioning.contract import MAP_SIDE, Description
from idc.geo.config import SceneJob
from idc.geo.polygons import changes_of, scene_sentence
from idc.geo.rasters import SceneReader, gdal, open_scene
from idc.metrics.change_maps import upsample

NAMES = ("before.tif", "after.tif")
MOST_POLYGONS = 1000
"""Polygons of a pair, the largest; how many more there are is in the collection's ``left_out``."""
_STRIP = 256
"""Rows of pixels that are read at once."""
_SETTINGS = ("reproject=true", "scaling=", "bands=", "max_pixels=")
"""What refusals of a scene advise."""


class PixelGrid(NamedTuple):
    """The grid that both images of a pair have.

    Attributes:
        transform: from columns and rows of pixels to coordinates.
        crs: WKT of the coordinate system.
        valid: where both images have data, bool (H, W).
    """

    transform: Affine
    crs: str
    valid: np.ndarray


def decode_georeferenced(
    before: bytes, after: bytes, max_pixels: int, names: tuple[str, str] = NAMES
) -> tuple[Pixels, PixelGrid]:
    """Both images in whole, 8-bit RGB, black where either has no data.

    Args:
        max_pixels: of each image.
        names: of the files, for messages.

    Raises:
        ValueError: they cannot be compared: which, why, and what to do.
    """
    with tempfile.TemporaryDirectory(prefix="geotiff-") as folder:
        paths = [Path(folder) / name for name in NAMES]
        for path, data in zip(paths, (before, after), strict=True):
            path.write_bytes(data)
        try:
            scene = open_scene(SceneJob(before=str(paths[0]), after=str(paths[1]), out=folder, max_pixels=max_pixels))
            shape = scene.height, scene.width
            images = Pixels(np.empty((*shape, 3), np.uint8), np.empty((*shape, 3), np.uint8))
            valid = np.empty(shape, bool)
            with SceneReader(scene) as reader:
                for top in range(0, scene.height, _STRIP):  # so that little more than the images is in memory
                    strip = slice(top, top + _STRIP)
                    tile = reader.read(Window(0, top, scene.width, min(_STRIP, scene.height - top)))
                    images.before[strip], images.after[strip], valid[strip] = *tile.pixels.images, tile.valid
        except ValueError as error:
            text = str(error)
            for path, name in zip(paths, names, strict=True):
                text = text.replace(str(path), name).replace(str(path.with_suffix("")), str(Path(name).with_suffix("")))
            if any(setting in text for setting in _SETTINGS):
                text += " (a setting of jobs/caption.py --out)"
            raise ValueError(text) from None
    return images, PixelGrid(scene.transform, scene.crs, valid)


class GeoreferencedChanges(NamedTuple):
    """What changed in a pair: a sentence, and a feature collection with the features that :mod:`idc.geo.scene_job`
    writes, the largest first."""

    sentence: str
    geojson: dict[str, Any]


def georeferenced_changes(
    description: Description, grid: PixelGrid, threshold: float = 0.5, min_area: float = 10.0
) -> GeoreferencedChanges:
    """The changes of a described pair, which has a change map.

    They are outlined on a grid of at most :data:`MAP_SIDE` pixels a side, which is finer than maps are.

    Args:
        threshold: a pixel changed where the map is at least this and, of a captioner with classes, its class is not
            the background.
        min_area: smallest area of a polygon in square metres.
    """
    assert description.change_map is not None
    height, width = grid.valid.shape
    scale = min(1.0, MAP_SIDE / max(height, width))
    rows, columns = (max(1, round(scale * side)) for side in (height, width))
    valid = _nearest(grid.valid.astype(np.uint8), rows, columns) > 0
    values = np.where(valid, upsample(description.change_map, (rows, columns)).clip(0, 1), 0)
    kinds = (values >= threshold).astype(np.uint8)
    names: tuple[str, ...] = ()
    if description.class_map is not None:
        names = description.class_map.names
        kinds *= _nearest(description.class_map.classes, rows, columns)
    coarse = grid.transform @ Affine.scale(width / columns, height / rows)
    best = description.best
    with gdal():
        changes = changes_of(
            kinds, values, coarse, grid.crs, min_area, lambda *_: (best.caption, best.confidence), names=names
        )
    largest = sorted(changes.features, key=lambda feature: -feature["properties"]["area_m2"])
    features = [feature | {"id": number} for number, feature in enumerate(largest[:MOST_POLYGONS], 1)]
    left_out = {"left_out": len(largest) - len(features)} if len(largest) > len(features) else {}
    return GeoreferencedChanges(
        scene_sentence(changes.tallies, min_area, float(grid.valid.mean())),
        {"type": "FeatureCollection", **left_out, "features": features},
    )


def _nearest(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return np.asarray(Image.fromarray(values).resize((columns, rows), Image.Resampling.NEAREST))
