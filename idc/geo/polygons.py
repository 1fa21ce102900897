"""The parts of a map as polygons: pixels to coordinates, areas on the ground, GeoJSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from rasterio.crs import CRS
from rasterio.features import shapes
from rasterio.transform import Affine
from rasterio.warp import transform_geom

from idc.geo.components import MapPart, keep_parts, map_parts
from idc.geo.georeference import LONGITUDE_LATITUDE, crs_name, to_degrees
from idc.geo.ground import ring_area, without_jumps
from idc.geo.scene_sentence import Tally, position_of

_DEGREES, _UNITS = 9, 4
"""Digits after the point: a tenth of a millimetre."""
_OTHER_SIDE = "+proj=eqc +lon_0=180 +datum=WGS84"
"""A plane in which a polygon across 180 degrees has no jump; GDAL cuts only what comes from a plane."""
_DEGREE = 6378137.0 * np.pi / 180
"""Length of a degree in this plane."""


class Polygon(NamedTuple):
    """The outline of a part.

    Attributes:
        number: of the part.
        geometry: GeoJSON, in longitude and latitude; in pixels where there is no coordinate system.
        native: GeoJSON, in the coordinate system of the image.
        area: in square metres, or in pixels.
    """

    number: int
    geometry: dict[str, Any]
    native: dict[str, Any]
    area: float


class SceneChange(NamedTuple):
    """A changed part of a scene with its outline.

    Attributes:
        name: of its class; None of a captioner without classes.
        position: its cell of a 3x3 grid over the image, in words.
    """

    polygon: Polygon
    part: MapPart
    name: str | None
    position: str

    def properties(self, unit: str, score: float, caption: str, confidence: float) -> dict[str, Any]:
        """The properties of its GeoJSON feature.

        Args:
            unit: of the area, ``m2`` or ``px``.
        """
        return {
            "class": class_name(self.name),
            f"area_{unit}": round(self.polygon.area, 2),
            "score": round(score, 4),
            "position": self.position,
            "caption": caption,
            "confidence": round(confidence, 4),
        }


def class_name(name: str | None) -> str:
    """The class of a change of a captioner with classes, else ``change``."""
    return "change" if name is None else name


def changes_of(
    kinds: np.ndarray,
    values: np.ndarray,
    grid: Affine,
    crs: str | None,
    least: float,
    names: Sequence[str] = (),
    borders: Sequence[Sequence[int]] = ((0,), (0,)),
) -> tuple[list[SceneChange], dict[str | None, Tally], np.ndarray]:
    """The connected parts of a map, row by row; their numbers and areas by class; and of every pixel the number of its
    part from 1 on, 0 where there is none.

    Args:
        kinds, values, borders: as :func:`idc.geo.components.map_parts`.
        grid, crs: as in :class:`idc.geo.rasters.ScenePair`.
        least: smallest area of a part, in square metres or pixels.
        names: of the classes, the first is what did not change; empty for a captioner without.
    """
    parts, numbers = map_parts(kinds, values, *borders)
    areas = np.array([part.pixels for part in parts], float)
    if crs is not None and parts:
        areas *= pixel_areas([part.centre for part in parts], grid, crs)
    parts, numbers = keep_parts(parts, numbers, areas.tolist(), least)
    height, width = kinds.shape
    tallies: dict[str | None, Tally] = {name: Tally() for name in names[1:]} or {None: Tally()}
    changes = []
    for polygon in outlines(numbers, grid, crs):
        part = parts[polygon.number - 1]
        name, position = (
            names[part.kind] if names else None,
            position_of(part.centre[0] / width, part.centre[1] / height),
        )
        tallies[name].add(polygon.area, position)
        changes.append(SceneChange(polygon, part, name, position))
    return changes, tallies, numbers


def outlines(numbers: np.ndarray, grid: Affine, crs: str | None) -> Iterator[Polygon]:
    """The outline of every part.

    Args:
        numbers: int32 (H, W): the number of each pixel's part, 0 where there is none.
        grid, crs: as in :class:`idc.geo.rasters.ScenePair`.
    """
    parts = [
        (int(number), [np.array(ring) for ring in geometry["coordinates"]])
        for geometry, number in shapes(numbers, mask=numbers > 0, connectivity=4)
    ]
    if not parts:
        return
    # All points in one call: one for each outline would take most of the time.
    x, y = _coordinates(np.concatenate([ring for _, rings in parts for ring in rings]), grid)
    native = np.stack([x, y], axis=1)
    ground = native if crs is None else to_degrees(CRS.from_wkt(crs), x, y).T
    end = 0
    for number, rings in parts:
        starts = [end, *(end := end + len(ring) for ring in rings)]
        mine = [slice(*ends) for ends in pairwise(starts)]
        if crs is None:
            yield _in_pixels(number, [native[ring] for ring in mine])
            continue
        polygon = _in_degrees(number, [ground[ring] for ring in mine], [native[ring] for ring in mine])
        if polygon is None:
            raise ValueError(
                f"a change in the coordinate system {crs_name(CRS.from_wkt(crs))} has no outline in longitude and "
                "latitude: it spans half the world or a pole; cut the image, or pass pixel_coordinates=true"
            )
        yield polygon


def pixel_areas(points: Sequence[tuple[float, float]], grid: Affine, crs: str) -> np.ndarray:
    """Area in square metres of a pixel around each point (column, row)."""
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)])
    rings = np.array(points).reshape(-1, 1, 2) + corners
    x, y = _coordinates(rings.reshape(-1, 2), grid)
    longitude, latitude = to_degrees(CRS.from_wkt(crs), x, y).reshape(2, -1, 5)
    return np.abs(ring_area(without_jumps(longitude), latitude))


def _in_pixels(number: int, rings: list[np.ndarray]) -> Polygon:
    areas = [abs(_plane_area(ring)) for ring in rings]
    geometry = _geometry(rings, _UNITS)
    return Polygon(number, geometry, geometry, areas[0] - sum(areas[1:]))


def _in_degrees(number: int, rings: list[np.ndarray], native: list[np.ndarray]) -> Polygon | None:
    outer = without_jumps(rings[0][:, 0])
    whole = [np.stack([without_jumps(ring[:, 0], outer[0]), ring[:, 1]], axis=1) for ring in rings]
    areas = [ring_area(*ring.T) for ring in whole]
    west, east = outer.min(), outer.max()
    geometry: dict[str, Any] | None
    if west >= -180 and east <= 180:
        geometry = _geometry(whole, _DEGREES)
    elif west >= 180 or east <= -180:
        turned = -360 if west >= 180 else 360
        geometry = _geometry([ring + np.array([turned, 0]) for ring in whole], _DEGREES)
    else:  # across the antimeridian, where GeoJSON has two polygons (RFC 7946, 3.1.9)
        geometry = _cut([ring - np.array([180 if east > 180 else -180, 0]) for ring in whole])
        if geometry is None:
            return None
    area = abs(areas[0]) - sum(map(abs, areas[1:]))
    return Polygon(number, geometry, _geometry(native, _DEGREES), float(area))


def _cut(rings: Sequence[np.ndarray]) -> dict[str, Any] | None:
    """The parts of a polygon on either side of the antimeridian, from which its longitudes are counted; None if it has
    none."""
    plane = {"type": "Polygon", "coordinates": [(ring * _DEGREE).tolist() for ring in rings]}
    cut = transform_geom(_OTHER_SIDE, LONGITUDE_LATITUDE, plane, antimeridian_cutting=True)
    if "coordinates" not in cut:  # an empty collection
        return None
    parts = cut["coordinates"] if cut["type"] == "MultiPolygon" else [cut["coordinates"]]
    geometries = [_geometry([np.array(ring) for ring in part], _DEGREES) for part in parts]
    return {"type": "MultiPolygon", "coordinates": [geometry["coordinates"] for geometry in geometries]}


def _geometry(rings: Sequence[np.ndarray], digits: int) -> dict[str, Any]:
    """A GeoJSON polygon: the outer ring counter-clockwise, holes clockwise (RFC 7946, 3.1.6)."""
    turned = [ring if (_plane_area(ring) > 0) == (i == 0) else ring[::-1] for i, ring in enumerate(rings)]
    return {"type": "Polygon", "coordinates": [ring.round(digits).tolist() for ring in turned]}


def _plane_area(ring: np.ndarray) -> float:
    """Positive if the ring runs counter-clockwise with x to the right and y up."""
    x, y = (ring - ring[0]).T
    return float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2)


def _coordinates(points: np.ndarray, grid: Affine) -> tuple[np.ndarray, np.ndarray]:
    columns, rows = points.T
    return grid.a * columns + grid.b * rows + grid.c, grid.d * columns + grid.e * rows + grid.f
