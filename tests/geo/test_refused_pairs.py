"""The line for each pair that cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

PIXELS = ground()[:SIDE, :SIDE]
LOCAL = 'LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]'
FAR = {"grid": from_origin(600_000, 5_300_000, 0.5, 0.5)}
SHIFTED = {"grid": from_origin(500_010, 5_300_000, 0.5, 0.5)}
POINTS = [GroundControlPoint(row, column, 9 + column / 1e5, 47 - row / 1e5) for row in (0, 100) for column in (0, 100)]


def corner_in(crs: str) -> Affine:
    (x,), (y,) = transform(UTM, crs, [GRID.c], [GRID.f])
    return from_origin(x, y, 0.5, 0.5)


def both(folder: Path, pixels: np.ndarray = PIXELS, **profile: Any) -> tuple[Path, Path]:
    before, after = (write(folder / f"{name}.tif", pixels, **profile) for name in ("before", "after"))
    return before, after


def palette(folder: Path) -> SceneJob:
    before, after = pair(folder, pixels=PIXELS[..., :1], photometric="PALETTE")
    with rasterio.open(after, "r+") as raster:
        raster.write_colormap(1, {i: (i, 0, 255 - i, 255) for i in range(256)})
    return job(before, after)


def declared(folder: Path, side: int) -> SceneJob:
    """A file of some hundred bytes that declares up to 10^12 pixels, none of which is stored."""
    options = {"driver": "GTiff", "width": side, "height": side, "count": 3, "dtype": "uint8", "crs": UTM}
    before, after = pair(folder)
    with rasterio.open(after, "w", **options, transform=GRID, tiled=True, SPARSE_OK=True, blockxsize=16384,
                       blockysize=16384):  # fmt: skip
        pass
    return job(before, after)


def holding(folder: Path, data: bytes) -> SceneJob:
    before, after = pair(folder)
    after.write_bytes(data)
    return job(before, after)


Make = Callable[[Path], SceneJob]
REFUSED: dict[str, tuple[Make, list[str]]] = {
    "other size": (
        lambda folder: job(*pair(folder, pixels=PIXELS[:100])),
        ["before.tif has 120 x 120 pixels, and", "after.tif has 120 x 100", "reproject=true resamples"],
    ),
    "other place": (
        lambda folder: job(*pair(folder, **SHIFTED)),
        ["pixels of 0.5 x 0.5 from 500000, 5300000, and", "from 500010", "reproject=true"],
    ),
    "other system": (
        lambda folder: job(*pair(folder, crs="EPSG:32633", grid=corner_in("EPSG:32633"))),
        ["before.tif has the coordinate system EPSG:32632", "has EPSG:32633", "reproject=true"],
    ),
    "far away": (
        lambda folder: job(*pair(folder, **FAR)),
        ["do not overlap", "longitude 9.0000 to 9.0008, latitude 47.8", "longitude 10.33", "of one place"],
    ),
    "far away on request": (lambda folder: job(*pair(folder, **FAR), reproject=True), ["do not overlap"]),
    "no georeference": (
        lambda folder: job(*pair(folder, crs=None, grid=None)),
        ["after.tif has no georeference", "rio edit-info"],
    ),
    "no system": (
        lambda folder: job(*pair(folder, crs=None)),
        ["after.tif has coordinates of an unknown system", "rio edit-info --crs"],
    ),
    "control points": (
        lambda folder: job(*pair(folder, grid=None, crs="EPSG:4326", gcps=POINTS)),
        ["after.tif is placed by control points", "rio warp --dst-crs EPSG:4326"],
    ),
    "sixteen bits": (
        lambda folder: job(*both(folder, PIXELS.astype(np.uint16) * 12)),
        ["before.tif holds uint16", "scaling=[0,3000]", "scaling=percentiles"],
    ),
    "sixteen and eight": (
        lambda folder: job(*pair(folder, pixels=PIXELS.astype(np.uint16)), scaling=[0, 255]),
        ["before.tif holds uint8", "after.tif uint16", "rio convert --dtype uint16"],
    ),
    "four bands": (
        lambda folder: job(*pair(folder, pixels=np.repeat(PIXELS[..., :1], 4, axis=2), photometric="MINISBLACK",
                                 ALPHA="NO")),
        ["after.tif has 4 bands (gray, undefined", "bands=[3,2,1]"],
    ),
    "too few bands": (
        lambda folder: job(*pair(folder), bands=[5, 3, 2]),
        ["bands:", "before.tif has 3 bands, so that there is no 5"],
    ),
    "palette": (palette, ["after.tif has a palette", "-expand rgb"]),
    "too large": (
        partial(declared, side=10**6), ["after.tif has 1000000 x 1000000 pixels, more than max_pixels=500000000"]
    ),
    "one block": (
        partial(declared, side=20_000),
        ["after.tif is stored in blocks of 16384 x 16384 pixels", "--co TILED=YES"],
    ),
    "no image": (
        partial(holding, data=b"II*\0no image" * 50), ["after.tif cannot be read as a GeoTIFF", "copy it again"]
    ),
    "local system": (
        lambda folder: job(*both(folder, crs=LOCAL)),
        ["before.tif: the coordinate system LOCAL_CS", "gives no longitude"],
    ),
    "polar, without an inverse here": (
        lambda folder: job(*both(folder, crs="EPSG:2985")),
        ["before.tif: the coordinate system EPSG:2985 gives no longitude", "cut the image"],
    ),
    "flat": (
        lambda folder: job(*both(folder, np.full((SIDE, SIDE, 3), 700, np.uint16)), scaling="percentiles"),
        ["scaling:", "no different values"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_pair_that_cannot_be_compared_has_a_line(name: str, tmp_path: Path) -> None:
    make, lines = REFUSED[name]
    with pytest.raises(ValueError, match=r"(before|after)\.tif|^scaling|^bands") as refused:
        open_scene(make(tmp_path))
    for line in lines:
        assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [("https://example.org/a.tif", "is a URI; download it"), ("/vsizip/a.zip/a.tif", "is a URI"),
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
        ({"out": "s3://bucket/x"}, "out: 's3://bucket/x' is a URI"),
    ]:
        with pytest.raises(ValueError, match=r"after|overlap|bands|scaling|out") as refused:
            job(tmp_path / "a.tif", tmp_path / "b.tif", **settings)
        assert fault in str(refused.value)


def test_without_rasterio_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idc.geo.config.find_spec", lambda name: None)
    (fault,) = job(*pair(tmp_path)).preflight()
    assert fault == "rasterio, which reads GeoTIFFs, is not installed; pip install 'idc[geo]'"
