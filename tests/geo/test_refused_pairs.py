"""The line for each pair that cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.transform import Affine, from_origin
from rasterio.warp import transform

from idc.geo.config import SceneJob
from idc.geo.rasters import open_scene
from tests.geo.pairs import SIDE, job, pair
from tests.geo.scenes import GRID, UTM, ground, write


def other_size(folder: Path) -> SceneJob:
    return job(*pair(folder, pixels=ground()[:100, :SIDE]))


def other_place(folder: Path) -> SceneJob:
    return job(*pair(folder, grid=from_origin(500_010, 5_300_000, 0.5, 0.5)))


def other_resolution(folder: Path) -> SceneJob:
    return job(*pair(folder, grid=from_origin(500_000, 5_300_000, 0.6, 0.6)))


def other_system(folder: Path) -> SceneJob:
    (x,), (y,) = transform(UTM, "EPSG:32633", [GRID.c], [GRID.f])
    return job(*pair(folder, crs="EPSG:32633", grid=from_origin(x, y, 0.5, 0.5)))


def far_away(folder: Path, **settings: Any) -> SceneJob:
    return job(*pair(folder, grid=from_origin(600_000, 5_300_000, 0.5, 0.5)), **settings)


def far_away_on_request(folder: Path) -> SceneJob:
    return far_away(folder, reproject=True)


def other_zone_far_away(folder: Path) -> SceneJob:
    return job(*pair(folder, crs="EPSG:32651"), reproject=True)


def no_georeference(folder: Path) -> SceneJob:
    return job(*pair(folder, crs=None, grid=None))


def no_system(folder: Path) -> SceneJob:
    return job(*pair(folder, crs=None))


def control_points(folder: Path) -> SceneJob:
    points = [GroundControlPoint(row, column, 9 + column / 1e5, 47 - row / 1e5) for row in (0, 100) for column in
              (0, 100)]  # fmt: skip
    return job(*pair(folder, grid=None, crs="EPSG:4326", gcps=points))


def pixels_of_two_sizes(folder: Path) -> SceneJob:
    return job(*pair(folder, pixels=ground()[:100, :SIDE], crs=None, grid=None), pixel_coordinates=True)


def pixels_although_placed(folder: Path) -> SceneJob:
    return job(*pair(folder, grid=from_origin(500_010, 5_300_000, 0.5, 0.5)), pixel_coordinates=True)


def sixteen_bits(folder: Path) -> SceneJob:
    pixels = ground()[:SIDE, :SIDE].astype(np.uint16) * 12
    return job(write(folder / "before.tif", pixels), write(folder / "after.tif", pixels))


def sixteen_and_eight(folder: Path) -> SceneJob:
    return job(*pair(folder, pixels=ground()[:SIDE, :SIDE].astype(np.uint16)), scaling=[0, 255])


def complex_numbers(folder: Path) -> SceneJob:
    return job(*pair(folder, pixels=ground()[:SIDE, :SIDE].astype(np.complex64)), scaling=[0, 1])


def four_bands(folder: Path) -> SceneJob:
    pixels = np.repeat(ground()[:SIDE, :SIDE, :1], 4, axis=2)
    return job(*pair(folder, pixels=pixels, photometric="MINISBLACK", ALPHA="NO"))


def too_few_bands(folder: Path) -> SceneJob:
    return job(*pair(folder), bands=[5, 3, 2])


def palette(folder: Path) -> SceneJob:
    before, after = pair(folder, pixels=ground()[:SIDE, :SIDE, :1], photometric="PALETTE")
    with rasterio.open(after, "r+") as raster:
        raster.write_colormap(1, {i: (i, 0, 255 - i, 255) for i in range(256)})
    return job(before, after)


def too_large(folder: Path) -> SceneJob:
    """A file of some hundred bytes that declares 10^12 pixels, none of which is stored."""
    options = {"driver": "GTiff", "width": 10**6, "height": 10**6, "count": 3, "dtype": "uint8", "crs": UTM}
    before, after = pair(folder)
    with rasterio.open(after, "w", **options, transform=GRID, tiled=True, SPARSE_OK=True, blockxsize=16384,
                       blockysize=16384):  # fmt: skip
        pass
    return job(before, after)


def one_block(folder: Path) -> SceneJob:
    options = {"driver": "GTiff", "width": 20_000, "height": 20_000, "count": 3, "dtype": "uint8", "crs": UTM}
    before, after = pair(folder)
    with rasterio.open(after, "w", **options, transform=GRID, SPARSE_OK=True, tiled=True, blockxsize=16384,
                       blockysize=16384):  # fmt: skip
        pass
    return job(before, after)


def no_image(folder: Path) -> SceneJob:
    before, after = pair(folder)
    after.write_bytes(b"II*\0no image" * 50)
    return job(before, after)


def png(folder: Path) -> SceneJob:
    from idc.data.images import encode_png

    before, after = pair(folder)
    after.write_bytes(encode_png(ground()))
    return job(before, after)


LOCAL = 'LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]'


def local_system(folder: Path) -> SceneJob:
    return of_system(folder, LOCAL)


def moon(folder: Path) -> SceneJob:
    return of_system(folder, "IAU_2015:30100")


def geocentric(folder: Path) -> SceneJob:
    return of_system(folder, "EPSG:4978")


def edge_of_a_projection(folder: Path) -> SceneJob:
    return of_system(folder, "EPSG:2985")  # polar, without an inverse here


def of_system(folder: Path, crs: str, **settings: Any) -> SceneJob:
    before, after = (write(folder / f"{name}.tif", ground()[:SIDE, :SIDE], crs=crs) for name in ("before", "after"))
    return job(before, after, **settings)


def flat(folder: Path) -> SceneJob:
    pixels = np.full((SIDE, SIDE, 3), 700, np.uint16)
    return job(write(folder / "before.tif", pixels), write(folder / "after.tif", pixels), scaling="percentiles")


Refused = list[tuple[Callable[[Path], SceneJob], list[str]]]
REFUSED: Refused = [
    (other_size, ["before.tif has 120 x 120 pixels, and", "after.tif has 120 x 100", "reproject=true resamples"]),
    (other_place, ["pixels of 0.5 x 0.5 from 500000, 5300000, and", "from 500010", "reproject=true"]),
    (other_resolution, ["pixels of 0.5 x 0.5", "0.6 x 0.6", "reproject=true"]),
    (other_system, ["before.tif has the coordinate system EPSG:32632", "has EPSG:32633", "reproject=true"]),
    (far_away, ["do not overlap", "longitude 9.0000 to 9.0008, latitude 47.8", "longitude 10.33", "of one place"]),
    (far_away_on_request, ["do not overlap"]),
    (other_zone_far_away, ["do not overlap"]),
    (no_georeference, ["after.tif has no georeference", "rio edit-info", "pixel_coordinates=true"]),
    (no_system, ["after.tif has coordinates of an unknown system", "rio edit-info --crs", "pixel_coordinates=true"]),
    (control_points, ["after.tif is placed by control points", "rio warp --dst-crs EPSG:4326"]),
    (pixels_of_two_sizes, ["120 x 120 pixels", "120 x 100", "need the same size"]),
    (pixels_although_placed, ["pixels of 0.5 x 0.5 from 500000, 5300000, and", "from 500010", "reproject=true"]),
    (sixteen_bits, ["before.tif holds uint16", "scaling=[0,3000]", "scaling=percentiles"]),
    (sixteen_and_eight, ["before.tif holds uint8", "after.tif uint16", "rio convert --dtype uint16"]),
    (complex_numbers, ["after.tif holds complex64"]),
    (four_bands, ["after.tif has 4 bands (gray, undefined", "bands=[3,2,1]"]),
    (too_few_bands, ["bands:", "before.tif has 3 bands, so that there is no 5"]),
    (palette, ["after.tif has a palette", "-expand rgb"]),
    (too_large, ["after.tif has 1000000 x 1000000 pixels, more than max_pixels=2500000000"]),
    (one_block, ["after.tif is stored in blocks of 16384 x 16384 pixels", "--co TILED=YES"]),
    (no_image, ["after.tif cannot be read as a GeoTIFF", "copy it again"]),
    (png, ["after.tif cannot be read as a GeoTIFF", "convert another format: rio convert"]),
    (local_system, ["before.tif: the coordinate system LOCAL_CS", "gives no longitude", "pixel_coordinates=true"]),
    (moon, ["before.tif: the coordinate system IAU_2015:30100 gives no longitude", "pixel_coordinates=true"]),
    (geocentric, ["before.tif: the coordinate system EPSG:4978 gives no longitude", "pixel_coordinates=true"]),
    (edge_of_a_projection, ["before.tif: the coordinate system EPSG:2985 gives no longitude", "cut the image"]),
    (flat, ["scaling:", "no different values"]),
]


@pytest.mark.parametrize(("make", "lines"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_pair_that_cannot_be_compared_has_a_line(
    make: Callable[[Path], SceneJob], lines: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"(before|after)\.tif|^scaling|^bands") as refused:
        open_scene(make(tmp_path))
    for line in lines:
        assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("crs", [UTM, LOCAL, "IAU_2015:30100", "EPSG:4978", "EPSG:2985"])
def test_a_coordinate_system_is_left_out_on_request(crs: str, tmp_path: Path) -> None:
    scene = open_scene(of_system(tmp_path, crs, pixel_coordinates=True))
    assert (scene.crs, scene.transform) == (None, Affine.identity())
    assert scene.notes[0].startswith("The coordinate system ")
    assert scene.notes[0].endswith("is not used: coordinates are pixels, areas numbers of pixels.")


@pytest.mark.parametrize(
    ("name", "line"),
    [("https://example.org/a.tif", "is a URI; download it"), ("s3://bucket/a.tif", "is a URI"),
     ("/vsicurl/https://example.org/a.tif", "is a URI"), ("/vsizip/a.zip/a.tif", "is a URI"),
     ("nowhere.tif", "no such file"), (".", "is not a file")],
)  # fmt: skip
def test_an_image_is_a_file_of_this_machine(name: str, line: str, tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    (fault,) = job(before, after).model_copy(update={"after": name}).preflight()
    assert fault.startswith("after: ")
    assert line in fault


def test_settings_that_contradict_are_refused(tmp_path: Path) -> None:
    for settings, fault in [
        ({"overlap": 200}, "overlap: 200 is more than half of tile=256; take at most 128"),
        ({"bands": [1, 2]}, "bands: [1, 2] are not one band or three"),
        ({"bands": [0]}, "bands: [0] are not one band"),
        ({"scaling": [3000, 0]}, "white must be the larger value"),
        ({"native": True, "pixel_coordinates": True}, "native: with pixel_coordinates"),
        ({"out": "s3://bucket/x"}, "out: 's3://bucket/x' is a URI"),
    ]:
        with pytest.raises(ValueError, match=r"after|overlap|bands|scaling|native|out") as refused:
            job(tmp_path / "a.tif", tmp_path / "b.tif", **settings)
        assert fault in str(refused.value)


def test_without_rasterio_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idc.geo.config.find_spec", lambda name: None)
    (fault,) = job(*pair(tmp_path)).preflight()
    assert fault == "rasterio, which reads GeoTIFFs, is not installed; pip install 'idc[geo]'"
