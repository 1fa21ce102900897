"""Parts of a map against scipy's, outlines against rasterio's pixels, areas against other ways to compute them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.features import rasterize
from rasterio.transform import Affine, from_origin
from rasterio.warp import transform, transform_geom
from scipy import ndimage

from idc.geo.polygons import (
    POSITIONS,
    Tally,
    changes_of,
    map_parts,
    outlines,
    pixel_areas,
    position_of,
    ring_area,
    scene_sentence,
    without_jumps,
)  # fmt: skip
from tests.geo.scenes import GRID, UTM


def by_scipy(kinds: np.ndarray) -> np.ndarray:
    labels = np.zeros(kinds.shape, int)
    for kind in np.unique(kinds[kinds > 0]):
        mine, _ = ndimage.label(kinds == kind)
        labels[mine > 0] = mine[mine > 0] + labels.max()
    return labels


@pytest.mark.parametrize("seed", range(8))
def test_parts_and_what_is_measured_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(60, 40)), 1.5)
    kinds = np.where(smooth > 0.05, np.where(rng.random((60, 40)) < 0.95, 1, 0), 0).astype(np.uint8)
    kinds[:, 20:] *= 2
    values, borders = rng.random((60, 40)), ([0, 7, 30], [0, 10, 25])
    parts, numbers = map_parts(kinds, values, *borders)
    expected = by_scipy(kinds)
    assert len(parts) == expected.max() > 5
    assert ((numbers > 0) == (expected > 0)).all()
    for label in range(1, len(parts) + 1):
        mask = expected == label
        (number,) = np.unique(numbers[mask]).tolist()
        part = parts[number - 1]
        rows, columns = np.nonzero(mask)
        assert (numbers == number).sum() == mask.sum() == part.pixels
        assert part.kind == kinds[rows[0], columns[0]]
        assert part.centre == pytest.approx((columns.mean() + 0.5, rows.mean() + 0.5))
        assert part.value == pytest.approx(values[mask].mean())
        in_tiles = [3 * (row >= 7) + 3 * (row >= 30) + (column >= 10) + (column >= 25)
                    for row, column in zip(rows.tolist(), columns.tolist(), strict=True)]  # fmt: skip
        assert part.tiles == {tile: in_tiles.count(tile) for tile in set(in_tiles)}


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
    wkt = CRS.from_string(UTM).to_wkt()
    changes = changes_of(kinds, kinds, GRID, wkt, 20, caption_of=lambda *_: ("a change", 0.5))
    numbers = [feature["id"] for feature in changes.features]
    assert (numbers, changes.tallies[None].count) == ([1, 2], 2), "numbered without gaps"
    assert (changes.mask == ((drawn() > 0) & (drawn() < 3))).all()


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


def tally(area: float, *positions: str) -> Tally:
    result = Tally()
    for position in positions:
        result.add(area, position)
    return result


@pytest.mark.parametrize(
    ("tallies", "sentence"),
    [
        ({None: tally(600, "at the top left")}, "One change, 600 m²: at the top left."),
        ({None: tally(600, "in the middle", "at the top", "in the middle")},
         "3 changes, 1,800 m² in all: 2 in the middle and 1 at the top."),
        ({"road": tally(3e6, "at the top"), "building": tally(100, "at the left", "at the left")},
         "3 changes, 3.00 km² in all: 1 of class road (3.00 km², at the top); "
         "2 of class building (200 m², at the left)."),
        ({"road": Tally(), "building": tally(100, "at the left")},
         "One change, 100 m²: 1 of class building (100 m², at the left)."),
        ({None: Tally()}, "No change of at least 10 m² was found."),
        ({"road": Tally(), "building": Tally()}, "No change of at least 10 m² was found."),
    ],
)  # fmt: skip
def test_numbers_areas_and_positions(tallies: dict[str | None, Tally], sentence: str) -> None:
    assert scene_sentence(tallies, 10, 1.0) == sentence


def test_what_was_not_compared_is_said() -> None:
    nothing = {None: Tally()}
    assert scene_sentence(nothing, 0, 0.88) == (
        "No change was found. In 12 % of the scene there is nothing to compare."
    )
    assert scene_sentence(nothing, 0, 0.9999).endswith("In less than 0.5 % of the scene there is nothing to compare.")
    assert "no pixel in common" in scene_sentence(nothing, 0, 0.0)


def test_the_nine_positions() -> None:
    cells = [position_of(x, y) for y in (0.0, 0.5, 1.0) for x in (0.1, 0.4, 0.99)]
    assert cells == list(POSITIONS)
