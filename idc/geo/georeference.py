"""Where the pixels of two open GeoTIFFs are on the ground, and which pairs are refused for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform

from idc.geo.config import SceneJob

LONGITUDE_LATITUDE = "EPSG:4326"
"""The coordinate system of GeoJSON; rasterio gives longitude first, as GeoJSON has it."""
_SAME_GRID = 0.1
"""Two grids are the same if no corner is further off than this, in pixels."""


def check_georeference(path: str, dataset: Any) -> None:
    if dataset.transform == Affine.identity() or dataset.transform.is_degenerate:
        if dataset.gcps[0] or dataset.rpcs is not None:
            raise ValueError(
                f"{path} is placed by control points and has no grid; warp it to one: "
                f"rio warp --dst-crs {LONGITUDE_LATITUDE} {path} {renamed(path, 'warped')}"
            )
        raise ValueError(
            f"{path} has no georeference (files next to it, as .tfw, are not read); write it into the file: "
            f"rio edit-info --crs EPSG:32632 --transform \"[0.5, 0, WEST, 0, -0.5, NORTH]\" {path}"
        )  # fmt: skip
    if dataset.crs is None:
        raise ValueError(f"{path} has coordinates of an unknown system; name it: rio edit-info --crs EPSG:32632 {path}")
    x, y = np.meshgrid(np.linspace(0, dataset.width, 9), np.linspace(0, dataset.height, 9))
    try:
        to_degrees(dataset.crs, *(dataset.transform @ (x.ravel(), y.ravel())))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_grids(job: SceneJob, before: Any, after: Any) -> bool:
    """Whether the image before has to be resampled.

    Raises:
        ValueError: it has to be, and reproject is off; or the images do not overlap.
    """
    columns, rows = ~after.transform @ tuple(_outline_in(before, after.crs))
    if not (columns.min() < after.width and columns.max() > 0 and rows.min() < after.height and rows.max() > 0):
        raise ValueError(
            f"{job.before} and {job.after} do not overlap: the first covers {_covers(before)}, the second "
            f"{_covers(after)}; give two images of one place"
        )
    same = before.crs == after.crs and before.shape == after.shape
    if same and abs(np.array(_outline(after)) - (columns, rows)).max() < _SAME_GRID:
        return False
    if job.reproject:
        return True
    raise ValueError(
        f"{job.before} has {_grid(before)}, and {job.after} has {_grid(after)}; reproject=true resamples the first to "
        "the grid of the second"
    )


def to_degrees(crs: CRS, x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Longitudes and latitudes of points (2, n).

    Raises:
        ValueError: the coordinate system has none there; its name.
    """
    try:
        degrees = np.array(transform(crs, LONGITUDE_LATITUDE, x, y))
    except Exception:  # GDAL's own errors have no public class
        degrees = np.full((2, 1), math.inf)
    # Coordinates of other kinds (geocentric, vertical, of a building site) are transformed to nothing of sense.
    if not np.isfinite(degrees).all() or not (crs.is_geographic or crs.is_projected):
        raise ValueError(
            f"the coordinate system {crs_name(crs)} gives no longitude and latitude at all points; cut the image to "
            "where it does"
        )
    return degrees


def _outline(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Columns and rows of points around an image, its corners among them."""
    along = np.linspace(0, 1, 9)
    x = np.concatenate([along, np.ones(9), along, np.zeros(9)]) * dataset.width
    y = np.concatenate([np.zeros(9), along, np.ones(9), along]) * dataset.height
    return x, y


def _outline_in(dataset: Any, crs: CRS | str) -> np.ndarray:
    """Points around an image in another coordinate system, their x and their y; infinite where there are none."""
    points = dataset.transform @ _outline(dataset)
    if dataset.crs == crs:
        return np.array(points)
    try:
        return np.array(transform(dataset.crs, crs, *points))
    except Exception:  # GDAL's own errors have no public class: no conversion leads from one system to the other
        return np.full((2, len(points[0])), math.inf)


def _covers(dataset: Any) -> str:
    x, y = _outline_in(dataset, LONGITUDE_LATITUDE)
    return f"longitude {min(x):.4f} to {max(x):.4f}, latitude {min(y):.4f} to {max(y):.4f}"


def _grid(dataset: Any) -> str:
    grid = dataset.transform
    steps = f"{math.hypot(grid.a, grid.d):.6g} x {math.hypot(grid.b, grid.e):.6g}"
    size = f"{dataset.width} x {dataset.height}"
    return f"{size} pixels of {steps} from {grid.c:.10g}, {grid.f:.10g} in {crs_name(dataset.crs)}"


def crs_name(crs: CRS) -> str:
    """The code of a coordinate system, or the begin of its definition."""
    authority = crs.to_authority()
    return crs.to_string()[:60] if authority is None else ":".join(authority)


def renamed(path: str, ending: str) -> str:
    return str(Path(path).with_name(f"{Path(path).stem}_{ending}.tif"))
