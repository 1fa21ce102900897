"""The parts of a map as polygons: pixels to coordinates, areas on the ground, GeoJSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from rasterio.crs import CRS
from rasterio.features import shapes
from rasterio.transform import Affine

from idc.geo.components import MapPart, keep_parts, map_parts
from idc.geo.georeference import to_degrees
from idc.geo.ground import ring_area, without_jumps
from idc.geo.scene_sentence import Tally, position_of

_DIGITS = 9
"""Of a degree, after the point: a tenth of a millimetre."""


class SceneChange(NamedTuple):
    """A changed part of a scene with its outline.

    Attributes:
        number: of the part in the map of numbers.
        geometry: GeoJSON, in longitude and latitude; longitudes from -180 on, beyond 180 across the antimeridian.
        area: in square metres.
        name: of its class; None of a captioner without classes.
        position: its cell of a 3x3 grid over the image, in words.
    """

    number: int
    geometry: dict[str, Any]
    area: float
    part: MapPart
    name: str | None
    position: str

    def feature(self, number: int, score: float, caption: str, confidence: float) -> dict[str, Any]:
        """Its GeoJSON feature."""
        properties = {
            "class": class_name(self.name),
            "area_m2": round(self.area, 2),
            "score": round(score, 4),
            "position": self.position,
            "caption": caption,
            "confidence": round(confidence, 4),
        }
        return {"type": "Feature", "id": number, "properties": properties, "geometry": self.geometry}


def class_name(name: str | None) -> str:
    """The class of a change of a captioner with classes, else ``change``."""
    return "change" if name is None else name


def changes_of(
    kinds: np.ndarray,
    values: np.ndarray,
    grid: Affine,
    crs: str,
    least: float,
    names: Sequence[str] = (),
    borders: Sequence[Sequence[int]] = ((0,), (0,)),
) -> tuple[list[SceneChange], dict[str | None, Tally], np.ndarray]:
    """The connected parts of a map, row by row; their numbers and areas by class; and of every pixel the number of its
    part from 1 on, 0 where there is none.

    Args:
        kinds, values, borders: as :func:`idc.geo.components.map_parts`.
        grid, crs: as in :class:`idc.geo.rasters.ScenePair`.
        least: smallest area of a part, in square metres.
        names: of the classes, the first is what did not change; empty for a captioner without.
    """
    parts, numbers = map_parts(kinds, values, *borders)
    areas = np.array([part.pixels for part in parts], float)
    if parts:
        areas *= pixel_areas([part.centre for part in parts], grid, crs)
    parts, numbers = keep_parts(parts, numbers, areas.tolist(), least)
    height, width = kinds.shape
    tallies: dict[str | None, Tally] = {name: Tally() for name in names[1:]} or {None: Tally()}
    changes = []
    for number, geometry, area in outlines(numbers, grid, crs):
        part = parts[number - 1]
        name = names[part.kind] if names else None
        position = position_of(part.centre[0] / width, part.centre[1] / height)
        tallies[name].add(area, position)
        changes.append(SceneChange(number, geometry, area, part, name, position))
    return changes, tallies, numbers


def outlines(numbers: np.ndarray, grid: Affine, crs: str) -> Iterator[tuple[int, dict[str, Any], float]]:
    """Number, GeoJSON polygon in longitude and latitude, and area in square metres of every part.

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
    ground = to_degrees(CRS.from_wkt(crs), x, y).T
    end = 0
    for number, rings in parts:
        starts = [end, *(end := end + len(ring) for ring in rings)]
        outer, *holes = (ground[slice(*ends)] for ends in pairwise(starts))
        longitude = without_jumps(outer[:, 0])
        if abs(longitude[-1] - longitude[0]) > 180:
            raise ValueError(
                "a changed part goes around a pole, where it has no outline in longitude and latitude; cut the image"
            )
        longitude -= 360 * np.floor((longitude.min() + 180) / 360)
        whole = [np.stack([longitude, outer[:, 1]], axis=1)]
        whole += [np.stack([without_jumps(hole[:, 0], longitude[0]), hole[:, 1]], axis=1) for hole in holes]
        areas = [abs(ring_area(*ring.T)) for ring in whole]
        yield number, _geometry(whole), float(areas[0] - sum(areas[1:]))


def pixel_areas(points: Sequence[tuple[float, float]], grid: Affine, crs: str) -> np.ndarray:
    """Area in square metres of a pixel around each point (column, row)."""
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)])
    rings = np.array(points).reshape(-1, 1, 2) + corners
    x, y = _coordinates(rings.reshape(-1, 2), grid)
    longitude, latitude = to_degrees(CRS.from_wkt(crs), x, y).reshape(2, -1, 5)
    return np.abs(ring_area(without_jumps(longitude), latitude))


def _geometry(rings: Sequence[np.ndarray]) -> dict[str, Any]:
    """A GeoJSON polygon: the outer ring counter-clockwise, holes clockwise (RFC 7946, 3.1.6)."""
    turned = [ring if (_plane_area(ring) > 0) == (i == 0) else ring[::-1] for i, ring in enumerate(rings)]
    return {"type": "Polygon", "coordinates": [ring.round(_DIGITS).tolist() for ring in turned]}


def _plane_area(ring: np.ndarray) -> float:
    """Positive if the ring runs counter-clockwise with x to the right and y up."""
    x, y = (ring - ring[0]).T
    return float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2)


def _coordinates(points: np.ndarray, grid: Affine) -> tuple[np.ndarray, np.ndarray]:
    columns, rows = points.T
    return grid.a * columns + grid.b * rows + grid.c, grid.d * columns + grid.e * rows + grid.f
