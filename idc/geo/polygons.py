"""The connected parts of a map as polygons on the ground (GeoJSON), and one sentence about all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from rasterio.crs import CRS
from rasterio.features import shapes
from rasterio.transform import Affine

from idc.geo.georeference import to_degrees

POSITIONS = (
    "at the top left", "at the top", "at the top right",
    "at the left", "in the middle", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
"""The cells of a 3x3 grid over the scene's extent on the map, row by row."""
_DIGITS = 9
"""Of a degree, after the point: a tenth of a millimetre."""
_A, _F = 6378137.0, 1 / 298.257223563
"""Equatorial radius in metres and flattening of WGS 84."""
_E2 = _F * (2 - _F)
_E = np.sqrt(_E2)


class MapPart(NamedTuple):
    """A connected part of one class. Pixels are connected by their sides, so that the outline of a part is a valid
    polygon.

    Attributes:
        kind: its class, from 1 on.
        pixels: number of pixels.
        centre: mean column and row, of the pixels' centres.
        value: mean of the map's values.
        tiles: number of a tile, row by row -> pixels in it.
    """

    kind: int
    pixels: int
    centre: tuple[float, float]
    value: float
    tiles: dict[int, int]


@dataclass
class Tally:
    """Number, area in square metres, and positions of changes."""

    count: int = 0
    area: float = 0.0
    positions: Counter[str] = field(default_factory=Counter)

    def add(self, area: float, position: str) -> None:
        """Count a change."""
        self.count += 1
        self.area += area
        self.positions[position] += 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dict."""
        return {"count": self.count, "area": round(self.area, 2), "positions": dict(self.positions)}


class SceneChanges(NamedTuple):
    """The connected parts of a map, row by row.

    Attributes:
        features: GeoJSON features, in longitude and latitude; longitudes from -180 on, beyond 180 across the
            antimeridian.
        tallies: by the name of a class; None of a captioner without classes.
        mask: where they are, bool (H, W).
    """

    features: list[dict[str, Any]]
    tallies: dict[str | None, Tally]
    mask: np.ndarray


def changes_of(
    kinds: np.ndarray,
    values: np.ndarray,
    grid: Affine,
    crs: str,
    least: float,
    caption_of: Callable[[str | None, Mapping[int, int]], tuple[str, float]],
    *,
    names: Sequence[str] = (),
    borders: tuple[Sequence[int], Sequence[int]] = ((0,), (0,)),
    steps: int = 1,
) -> SceneChanges:
    """The changes of a map on the ground.

    Args:
        kinds, values, borders: as :func:`map_parts`; ``steps`` is the value of 1.
        grid, crs: as in :class:`idc.geo.rasters.ScenePair`.
        least: smallest area of a part, in square metres.
        caption_of: caption and confidence of a part, by the name of its class and its pixels in each tile.
        names: of the classes, the first is what did not change; empty for a captioner without.
    """
    parts, numbers = map_parts(kinds, values, *borders)
    # Outlines of specks would take most of the time: parts are kept by their number of pixels.
    areas = np.array([part.pixels for part in parts]) * pixel_areas([part.centre for part in parts], grid, crs)
    kept = np.concatenate([[False], areas >= least])
    parts = [part for part, keep in zip(parts, kept[1:], strict=True) if keep]
    numbers = np.where(kept, np.cumsum(kept), 0).astype(np.int32)[numbers]
    height, width = kinds.shape
    x, y = grid @ (np.array([0, width, 0, width]), np.array([0, 0, height, height]))
    tallies: dict[str | None, Tally] = {name: Tally() for name in names[1:]} or {None: Tally()}
    features = []
    for number, geometry, area in outlines(numbers, grid, crs):
        part = parts[number - 1]
        name = names[part.kind] if names else None
        across, up = grid @ part.centre  # of the map: a grid may be turned, or have south at the top
        position = position_of((across - x.min()) / np.ptp(x), (y.max() - up) / np.ptp(y))
        tallies[name].add(area, position)
        caption, confidence = caption_of(name, part.tiles)
        properties = {
            "class": name or "change",
            "area_m2": round(area, 2),
            "score": round(part.value / steps, 4),
            "position": position,
            "caption": caption,
            "confidence": round(confidence, 4),
        }
        features.append({"type": "Feature", "id": number, "properties": properties, "geometry": geometry})
    return SceneChanges(features, tallies, numbers > 0)


def map_parts(
    kinds: np.ndarray, values: np.ndarray, rows: Sequence[int] = (0,), columns: Sequence[int] = (0,)
) -> tuple[list[MapPart], np.ndarray]:
    """The parts of a map, and of every pixel the number of its part from 1 on, int32 (H, W); 0 for none.

    Args:
        kinds: uint8 (H, W), class of every pixel, 0 for none.
        values: of the map, (H, W).
        rows, columns: the first ones of the tiles.
    """
    labels, count = np.zeros(kinds.shape, np.int32), 0
    for kind in np.unique(kinds[kinds > 0]).tolist():
        number, parts = cv2.connectedComponents((kinds == kind).astype(np.uint8), connectivity=4, ltype=cv2.CV_32S)
        labels += np.where(parts > 0, parts + count, 0)
        count += number - 1
    y, x = np.nonzero(labels)
    of = labels[y, x] - 1
    pixels = np.bincount(of, minlength=count)
    means = [np.bincount(of, weights, minlength=count) / pixels for weights in (x + 0.5, y + 0.5, values[y, x])]
    classes = np.zeros(count, np.uint8)
    classes[of] = kinds[y, x]
    tile = np.searchsorted(rows, y, side="right") - 1
    tile = tile * len(columns) + np.searchsorted(columns, x, side="right") - 1
    number_of_tiles = len(rows) * len(columns)
    tiles: list[dict[int, int]] = [{} for _ in range(count)]
    for key, inside in zip(*np.unique(of.astype(np.int64) * number_of_tiles + tile, return_counts=True), strict=True):
        tiles[key // number_of_tiles][int(key % number_of_tiles)] = int(inside)
    measured = zip(classes.tolist(), pixels.tolist(), *(mean.tolist() for mean in means), tiles, strict=True)
    return [
        MapPart(kind, size, (column, row), value, of_part) for kind, size, column, row, value, of_part in measured
    ], labels


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
    points = np.concatenate([ring for _, rings in parts for ring in rings])
    ground = _ground(points, grid, crs).T
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
        areas = [ring_area(*ring.T) for ring in whole]
        # The outer ring counter-clockwise, holes clockwise (RFC 7946, 3.1.6).
        turned = [ring if (areas[i] > 0) == (i == 0) else ring[::-1] for i, ring in enumerate(whole)]
        geometry = {"type": "Polygon", "coordinates": [ring.round(_DIGITS).tolist() for ring in turned]}
        yield number, geometry, float(abs(areas[0]) - sum(map(abs, areas[1:])))


def pixel_areas(points: Sequence[tuple[float, float]], grid: Affine, crs: str) -> np.ndarray:
    """Area in square metres of a pixel around each point (column, row)."""
    if not points:
        return np.zeros(0)
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)])
    rings = (np.array(points)[:, None] + corners).reshape(-1, 2)
    longitude, latitude = _ground(rings, grid, crs).reshape(2, -1, 5)
    return np.abs(ring_area(without_jumps(longitude), latitude))


def _ground(points: np.ndarray, grid: Affine, crs: str) -> np.ndarray:
    """Longitude and latitude (2, N) of points (column, row)."""
    return to_degrees(CRS.from_wkt(crs), *(grid @ (points[:, 0], points[:, 1])))


def ring_area(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Area of a ring, or of several (..., points), in square metres on the ellipsoid of WGS 84, positive if it runs
    counter-clockwise.

    It is computed under the cylindrical equal-area projection: exact for edges along meridians and parallels, and for
    edges of a few pixels as good as exact. Not for a ring around a pole.

    Args:
        longitude, latitude: of its points in degrees, the first again at the end; without a jump by 360 degrees.
    """
    sine = np.sin(np.radians(latitude))
    # Snyder, Map Projections: A Working Manual (1987), equation (3-12), without the factor of the sphere.
    q = (1 - _E2) * (sine / (1 - _E2 * sine**2) + np.arctanh(_E * sine) / _E)
    heights = _A**2 * q / 2
    return -(np.diff(np.radians(longitude)) * (heights[..., 1:] + heights[..., :-1]) / 2).sum(axis=-1)


def without_jumps(longitude: np.ndarray, near: float | None = None) -> np.ndarray:
    """Longitudes along a ring, or several, without jumps by 360 degrees; the first one within 180 degrees of
    ``near``."""
    degrees = np.unwrap(longitude, period=360.0)
    return degrees if near is None else degrees + 360 * np.round((near - degrees[0]) / 360)


def position_of(x: float, y: float) -> str:
    """The cell of a point, whose coordinates are shares of width and height in [0, 1]."""
    column, row = (min(2, int(3 * share)) for share in (x, y))
    return POSITIONS[3 * row + column]


def scene_sentence(tallies: dict[str | None, Tally], least: float, compared: float) -> str:
    """What changed in a scene.

    Args:
        tallies: by the name of a class; None where there are no classes.
        least: smallest area that counts, in square metres.
        compared: share of the scene in which both images have data.
    """
    if compared == 0:
        return "The two images have no pixel in common at which both have data."
    seen = {name: tally for name, tally in tallies.items() if tally.count}
    if not seen:
        size = f" of at least {_area(least)}" if least else ""
        text = f"No change{size} was found."
    else:
        count, area = (sum(getattr(tally, name) for tally in seen.values()) for name in ("count", "area"))
        changes = "One change" if count == 1 else f"{count:,} changes"
        in_all = "" if count == 1 else " in all"
        if set(seen) == {None}:
            parts = _where(seen[None])
        else:
            largest = sorted(seen.items(), key=lambda item: -item[1].area)
            parts = "; ".join(
                f"{tally.count:,} of class {name} ({_area(tally.area)}, {_where(tally)})" for name, tally in largest
            )
        text = f"{changes}, {_area(area)}{in_all}: {parts}."
    if (missing := 1 - compared) > 0:
        share = f"{100 * missing:.0f} %" if missing >= 0.005 else "less than 0.5 %"
        text += f" In {share} of the scene there is nothing to compare."
    return text


def _where(tally: Tally) -> str:
    cells = sorted(tally.positions.items(), key=lambda item: (-item[1], POSITIONS.index(item[0])))
    if len(cells) == 1:
        return cells[0][0]
    words = [f"{count:,} {position}" for position, count in cells]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _area(value: float) -> str:
    return f"{value / 1e6:,.2f} km²" if value >= 1e6 else f"{value:,.0f} m²"
