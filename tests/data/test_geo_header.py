"""The header of a GeoTIFF, read without GDAL: what it declares, and which files are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from idc.data.images import encode_png
from idc.data.tiff_header import geo_header
from tests.geo.scenes import write


@pytest.mark.parametrize(
    ("kind", "bands", "profile"),
    [
        ("uint8", 3, {}),
        ("uint8", 1, {"compress": "deflate", "tiled": True, "blockxsize": 16, "blockysize": 16}),
        ("uint16", 4, {"BIGTIFF": "YES"}),
        ("float32", 2, {"grid": Affine(0.4, 0.1, 500_000, 0.1, -0.4, 5_300_000)}),
        ("uint16", 13, {"ENDIANNESS": "BIG"}),
    ],
)
def test_what_it_declares(kind: str, bands: int, profile: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "image.tif", np.zeros((20, 30, bands), kind), **profile)
    assert geo_header(path.read_bytes()) == (20, 30, bands, 8 * np.dtype(kind).itemsize)


def test_files_without_a_georeference_have_none(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    placed = write(tmp_path / "placed.tif", pixels).read_bytes()
    assert geo_header(placed) is not None
    assert geo_header(encode_png(pixels)) is None
    assert geo_header(b"") is None
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning):
        assert geo_header(write(tmp_path / "plain.tif", pixels, crs=None, grid=None).read_bytes()) is None
    unnamed = write(tmp_path / "unnamed.tif", pixels, crs=None).read_bytes()  # a grid in no coordinate system
    assert geo_header(unnamed) is None
