"""Outlines of parts, and where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.features import rasterize
from rasterio.transform import Affine, from_origin
from rasterio.warp import transform_geom

from idc.geo.polygons import changes_of, outlines
from tests.geo.scenes import GRID, UTM


def outlined(numbers: np.ndarray, grid: Affine, crs: str) -> dict[int, tuple[dict[str, Any], float]]:
    """Number of a part -> polygon and area."""
    wkt = CRS.from_string(crs).to_wkt()
    return {number: (geometry, area) for number, geometry, area in outlines(numbers.astype(np.int32), grid, wkt)}


def drawn() -> np.ndarray:
    numbers = np.zeros((60, 80), int)
    numbers[5:25, 5:45] = 1
    numbers[10:15, 10:20] = 0  # a hole
    numbers[30:50, 20:22] = 2
    numbers[30:32, 20:60] = 2
    numbers[40, 70] = 3
    return numbers


@pytest.mark.parametrize(
    ("crs", "grid"),
    [(UTM, GRID), ("EPSG:4326", from_origin(9, 47.8, 1e-5, 1e-5)), ("EPSG:3857", from_origin(1e6, 6e6, 2, 2)),
     (UTM, Affine.translation(5e5, 5.3e6) @ Affine.rotation(33) @ Affine.scale(0.5, -0.5)),
     (UTM, Affine(0.5, 0, 5e5, 0, 0.5, 5.3e6)), ("EPSG:32733", from_origin(5e5, 1e7, 10, 10))],
)  # fmt: skip
def test_outlines_cover_the_pixels_of_their_parts(crs: str, grid: Affine) -> None:
    numbers = drawn()
    parts = outlined(numbers, grid, crs)
    assert sorted(parts) == [1, 2, 3]
    for number, (geometry, _) in parts.items():
        mask = rasterize([transform_geom("EPSG:4326", crs, geometry)], numbers.shape, transform=grid)
        assert (mask == (numbers == number)).all(), number
        for i, ring in enumerate(geometry["coordinates"]):
            x, y = np.array(ring).T
            assert ring[0] == ring[-1]
            assert ((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0) == (i == 0), "outer rings run counter-clockwise"
        assert all(8 < x < 16 and -1 < y < 48 for x, y in geometry["coordinates"][0]), "longitude first"


def test_areas_without_holes() -> None:
    parts = outlined(drawn(), GRID, UTM)
    counts = np.bincount(drawn().ravel())
    for number, (_, area) in parts.items():
        assert area == pytest.approx(counts[number] * 0.25 / 0.9996**2, rel=1e-5)


@pytest.mark.parametrize(("crs", "grid"), [
    ("EPSG:4326", from_origin(179.9998, 10, 1e-5, 1e-5)),
    ("EPSG:4326", from_origin(-180.0002, 10, 1e-5, 1e-5)),
    ("EPSG:32660", from_origin(833_000, 100_000, 20, 20)),
])  # fmt: skip
def test_longitudes_across_the_antimeridian_go_on(crs: str, grid: Affine) -> None:
    numbers = np.zeros((60, 500), int)
    numbers[10:20] = 1
    numbers[30:32, :2] = 2
    numbers[30:32, 450:452] = 3
    parts = outlined(numbers, grid, crs)
    x, y = np.array(parts[1][0]["coordinates"][0]).T
    assert 179 < x.min() < 180 < x.max() < 181
    assert (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0, "outer rings run counter-clockwise"
    assert {round(x) for x, _ in parts[2][0]["coordinates"][0]} == {180}
    assert {round(x) for x, _ in parts[3][0]["coordinates"][0]} == {-180}
    assert parts[1][1] == pytest.approx(250 * parts[2][1] * 5, rel=5e-3)


def test_where_there_are_no_degrees_the_system_is_named() -> None:
    adams = CRS.from_string("+proj=adams_ws2 +datum=WGS84").to_wkt()  # without an inverse at some points
    with pytest.raises(ValueError, match=r"the coordinate system PROJCS.* gives no longitude and latitude"):
        list(outlines(np.eye(24, dtype=np.int32), from_origin(0, 0, 1, 1), adams))


def test_parts_below_the_least_area_are_left_out() -> None:
    kinds = (drawn() > 0).astype(np.uint8)
    kinds[0, 0] = 1  # the first part of all
    changes, tallies, inside = changes_of(kinds, kinds, GRID, CRS.from_string(UTM).to_wkt(), least=20)
    assert ([change.number for change in changes], tallies[None].count) == ([1, 2], 2), "numbered without gaps"
    assert (inside == ((drawn() > 0) & (drawn() < 3))).all()
