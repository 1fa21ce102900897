"""Areas on the ellipsoid against other ways to compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.transform import from_origin
from rasterio.warp import transform

from idc.geo.polygons import outlines, pixel_areas, ring_area, without_jumps
from tests.geo.scenes import GRID, UTM

A, F = 6378137.0, 1 / 298.257223563


def rectangle(west: float, south: float, east: float, north: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array([west, east, east, west, west]), np.array([south, south, north, north, south])


def summed(west: float, south: float, east: float, north: float) -> float:
    """The area between meridians and parallels, by summing thin strips: radius of curvature along the meridian times
    radius of the parallel."""
    edges = np.radians(np.linspace(south, north, 20_001))
    middle = (edges[1:] + edges[:-1]) / 2
    e2 = F * (2 - F)
    root = np.sqrt(1 - e2 * np.sin(middle) ** 2)
    meridian, parallel = A * (1 - e2) / root**3, A / root * np.cos(middle)
    return float((meridian * parallel * np.diff(edges)).sum() * math.radians(east - west))


@pytest.mark.parametrize("box", [(9.0, 47.0, 9.01, 47.01), (-70.0, -0.5, -69.0, 0.5), (20.0, 78.0, 20.1, 78.2)])
def test_the_area_of_a_square_of_degrees(box: tuple[float, float, float, float]) -> None:
    assert ring_area(*rectangle(*box)) == pytest.approx(summed(*box), rel=1e-8)


def test_an_eighth_of_the_ellipsoid() -> None:
    """Known from Karney, Algorithms for geodesics (2013): the ellipsoid of WGS 84 has 510065621724088.44 m2."""
    assert 8 * ring_area(*rectangle(0, 0, 90, 90)) == pytest.approx(510065621724088.44, rel=1e-12)


def test_the_sign_is_that_of_the_direction() -> None:
    longitude, latitude = rectangle(9.0, 47.0, 9.01, 47.01)
    assert ring_area(longitude[::-1], latitude[::-1]) == -ring_area(longitude, latitude)


@pytest.mark.parametrize(("east", "scale"), [(500_000, 0.9996), (680_000, 0.9996 * (1 + 180_000**2 / 2 / 6.38e6**2))])
def test_a_square_of_a_kilometre_in_utm_is_larger_on_the_ground_by_the_scale(east: float, scale: float) -> None:
    x, y = rectangle(east, 5_300_000, east + 1000, 5_301_000)
    area = abs(ring_area(*np.array(transform(UTM, "EPSG:4326", x, y))))
    assert area == pytest.approx(1e6 / scale**2, rel=2e-5)


@pytest.mark.parametrize(
    ("crs", "left", "top", "side", "scale"),
    [("EPSG:3857", *(v[0] for v in transform("EPSG:4326", "EPSG:3857", [9.0], [60.0])), 2, 2),
     (UTM, GRID.c, GRID.f, 0.5, 0.9996)],
)  # fmt: skip
def test_a_pixel_has_its_area_on_the_ground(crs: str, left: float, top: float, side: float, scale: float) -> None:
    where = from_origin(left, top, side, side), CRS.from_string(crs).to_wkt()
    ((_, _, area),) = outlines(np.ones((1, 1), np.int32), *where)
    assert area == pytest.approx((side / scale) ** 2, rel=0.01)
    assert pixel_areas([(0.5, 0.5)], *where) == pytest.approx([area], rel=1e-6)


def test_longitudes_without_a_jump() -> None:
    assert without_jumps(np.array([179.0, -179.0, 178.0])).tolist() == [179.0, 181.0, 178.0]
    assert without_jumps(np.array([-179.0, -178.0]), near=179.0).tolist() == [181.0, 182.0]
