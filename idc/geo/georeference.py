"""Where the pixels of two open GeoTIFFs are on the ground, and which pairs are refused for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform

from idc.geo.config import SceneJob

LONGITUDE_LATITUDE = "EPSG:4326"
"""The coordinate system of GeoJSON; rasterio gives longitude first, as GeoJSON has it."""
_SAME_GRID = 0.1
"""Two grids are the same if no corner is further off than this, in pixels."""


def check_georeference(path: str, dataset: Any) -> None:
    unless = "or pass pixel_coordinates=true for polygons in pixels"
    if dataset.transform == Affine.identity() or dataset.transform.is_degenerate:
        if dataset.gcps[0] or dataset.rpcs is not None:
            raise ValueError(
                f"{path} is placed by control points and has no grid; warp it to one: "
                f"rio warp --dst-crs {LONGITUDE_LATITUDE} {path} {renamed(path, 'warped')}"
            )
        raise ValueError(
            f"{path} has no georeference (files next to it, as .tfw, are not read); write it into the file: "
            f"rio edit-info --crs EPSG:32632 --transform \"[0.5, 0, WEST, 0, -0.5, NORTH]\" {path}, {unless}"
        )  # fmt: skip
    if dataset.crs is None:
        raise ValueError(
            f"{path} has coordinates of an unknown system; name it: rio edit-info --crs EPSG:32632 {path}, {unless}"
        )


def check_pixel_coordinates(job: SceneJob, before: Any, after: Any) -> None:
    if before.crs is not None and after.crs is not None:
        raise ValueError(f"pixel_coordinates: {job.before} and {job.after} have a georeference; leave it out")
    if job.reproject:
        raise ValueError("reproject: without a georeference there is nothing to resample by; leave it out")
    if before.shape != after.shape:
        raise ValueError(
            f"{job.before} has {_size(before)} pixels and {job.after} {_size(after)}; without a georeference both need "
            "the same size"
        )


def check_grids(job: SceneJob, before: Any, after: Any) -> bool:
    """Whether the image before has to be resampled.

    Raises:
        ValueError: it has to be, and reproject is off; or the images do not overlap.
    """
    columns, rows = _outline_in_pixels(before, after)
    if not (columns.min() < after.width and columns.max() > 0 and rows.min() < after.height and rows.max() > 0):
        raise ValueError(
            f"{job.before} and {job.after} do not overlap: the first covers {_covers(before)}, the second "
            f"{_covers(after)}; give two images of one place"
        )
    same_system = before.crs == after.crs
    outline = np.array(_outline(after))
    if same_system and before.shape == after.shape and abs(outline - (columns, rows)).max() < _SAME_GRID:
        return False
    if job.reproject:
        return True
    if not same_system:
        what = f"has the coordinate system {_crs_name(before.crs)}, and {job.after} has {_crs_name(after.crs)}"
    elif before.shape != after.shape:
        what = f"has {_size(before)} pixels, and {job.after} has {_size(after)}"
    else:
        what = f"has pixels of {_grid(before)}, and {job.after} of {_grid(after)}"
    raise ValueError(f"{job.before} {what}; reproject=true resamples the first to the grid of the second")


def check_crs(job: SceneJob, after: Any) -> None:
    if not np.isfinite(_outline_in(after, LONGITUDE_LATITUDE)).all():
        raise ValueError(
            f"{job.after}: its coordinate system {_crs_name(after.crs)} gives no longitude and latitude there; "
            f"warp both images: rio warp --dst-crs EPSG:32632 {job.after} {renamed(job.after, 'warped')}"
        )
    if job.native and after.crs.to_authority() is None:
        raise ValueError(f"native: the coordinate system of {job.after} has no code to name it by; leave native out")


def _outline(dataset: Any) -> tuple[list[float], list[float]]:
    """Columns and rows of points around an image, its corners among them."""
    along = np.linspace(0, 1, 9)
    x = np.concatenate([along, np.ones(9), along, np.zeros(9)]) * dataset.width
    y = np.concatenate([np.zeros(9), along, np.ones(9), along]) * dataset.height
    return x.tolist(), y.tolist()


def _on_grid(grid: Affine, points: Sequence[Sequence[float]] | np.ndarray) -> tuple[list[float], list[float]]:
    """Points (their x, their y) under an affine transform."""
    columns, rows = np.array(points[0]), np.array(points[1])
    x, y = grid.a * columns + grid.b * rows + grid.c, grid.d * columns + grid.e * rows + grid.f
    return x.tolist(), y.tolist()


def _outline_in_pixels(before: Any, after: Any) -> tuple[np.ndarray, np.ndarray]:
    """Columns and rows, on the grid of the second, of points around the first; infinite where there are none."""
    x, y = _on_grid(~after.transform, _outline_in(before, after.crs))
    return np.array(x), np.array(y)


def _outline_in(dataset: Any, crs: CRS | str) -> np.ndarray:
    """Points around an image in another coordinate system, their x and their y; infinite where there are none."""
    points = _on_grid(dataset.transform, _outline(dataset))
    if dataset.crs == crs:
        return np.array(points)
    try:
        return np.array(transform(dataset.crs, crs, *points))
    except Exception:  # GDAL's own errors have no public class: no conversion leads from one system to the other
        return np.full((2, len(points[0])), math.inf)


def _covers(dataset: Any) -> str:
    """What an image covers, for messages."""
    x, y = _outline_in(dataset, LONGITUDE_LATITUDE)
    return f"longitude {min(x):.4f} to {max(x):.4f}, latitude {min(y):.4f} to {max(y):.4f}"


def _grid(dataset: Any) -> str:
    grid = dataset.transform
    steps = f"{math.hypot(grid.a, grid.d):.6g} x {math.hypot(grid.b, grid.e):.6g}"
    return f"{steps} from {grid.c:.10g}, {grid.f:.10g}"


def _crs_name(crs: CRS) -> str:
    authority = crs.to_authority()
    return crs.to_string()[:60] if authority is None else ":".join(authority)


def _size(dataset: Any) -> str:
    return f"{dataset.width} x {dataset.height}"


def renamed(path: str, ending: str) -> str:
    return str(Path(path).with_name(f"{Path(path).stem}_{ending}.tif"))
