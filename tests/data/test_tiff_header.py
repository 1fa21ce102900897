"""What a TIFF declares is bounded before a decoder opens it, and files of every usual kind are within the bounds."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image

from idc.data.images import ImageError, decode_image, encode_png, image_size
from idc.data.tiff_header import geo_header, tiff_directories
from idc.geo.georeferenced_pair import decode_georeferenced
from tests.data.tiffs import FIRST, FURTHER, IMAGE, PLACE, SIDE, SMALLER, Of, Tags, tiff, tiled
from tests.geo.scenes import write

KINDS = [("<", False), (">", False), ("<", True), (">", True)]
PICTURE = np.arange(SIDE * SIDE, dtype=np.uint8).reshape(SIDE, SIDE)


@pytest.mark.parametrize(("order", "big"), KINDS)
@pytest.mark.parametrize("name", [*FIRST, *FURTHER])
def test_too_much_is_refused_from_the_header(name: str, order: str, big: bool) -> None:
    """By the decoder of images and by that of GeoTIFFs, which share the reader."""
    make, reason = (FIRST | FURTHER)[name]
    first, *others = make()
    image = first if 322 in first else IMAGE | first
    data = tiff(image | PLACE, *others, order=order, big=big)
    with pytest.raises(ValueError, match=rf"before\.tif: .*{reason}"):
        decode_georeferenced(data, data, 10**6)
    if (order, big) == (">", True):
        reason = "a BigTIFF of big-endian numbers"
    elif name in FURTHER:
        assert np.array_equal(decode_image(data)[..., 0], PICTURE)
        return
    with pytest.raises(ImageError, match=rf"^(too much metadata|too many pixels|not an image): .*{reason}"):
        image_size(data)


@pytest.mark.parametrize(("order", "big"), KINDS)
def test_a_usual_file_is_read(order: str, big: bool) -> None:
    data = tiff(IMAGE | PLACE | {282: (5, bytes(8)), 42112: (2, b"<GDALMetadata/>\0")}, order=order, big=big)
    assert geo_header(data) == (SIDE, SIDE, 1, 8)
    assert np.array_equal(decode_georeferenced(data, data, 100)[0].after[..., 1], PICTURE)
    if (order, big) != (">", True):
        assert np.array_equal(decode_image(data)[..., 0], PICTURE)


@pytest.mark.parametrize(
    ("directories", "then"),
    [([{}, SMALLER], 0), ([{330: (4, Of(1))}, SMALLER | {330: (4, Of(0))}], None), ([{34665: (4, Of(0))}], None)],
)
def test_directories_in_a_loop_are_read_once(directories: list[Tags], then: int | None) -> None:
    data = tiff(IMAGE | PLACE | directories[0], *directories[1:], then=then)
    assert len(tiff_directories(io.BytesIO(data))) == len(directories)
    assert np.array_equal(decode_georeferenced(data, data, 100)[0].after[..., 1], PICTURE)
    assert np.array_equal(decode_image(data)[..., 0], PICTURE)


def test_large_tiles_masks_overviews_and_many_pages_are_usual(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (600, 700, 3), np.uint8)
    path = write(tmp_path / "a.tif", pixels, tiled=True, blockxsize=2048, blockysize=2048, compress="deflate")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as raster:
        raster.write_mask(np.full((600, 700), 255, np.uint8))
        raster.build_overviews([2, 4, 8])
        raster.update_tags(**{f"key {n}": "a value" for n in range(500)})
    data = path.read_bytes()
    assert len(tiff_directories(io.BytesIO(data))) == 8
    assert np.array_equal(decode_georeferenced(data, data, 10**6)[0].after, pixels)
    assert np.array_equal(decode_image(data), pixels)
    pages = io.BytesIO()
    page = Image.fromarray(pixels[:8, :8])
    page.save(pages, "TIFF", save_all=True, append_images=[page] * 1200)
    assert decode_image(pages.getvalue()).shape == (8, 8, 3)


def test_what_is_cut_or_no_tiff_has_no_directories_and_a_doubled_size_is_refused() -> None:
    whole = tiff(tiled(16, 16) | PLACE)
    assert len(tiff_directories(io.BytesIO(whole))) == 1
    twice = struct.pack("<2sHIH", b"II", 42, 8, 2) + struct.pack("<HHII", 322, 4, 1, 16) * 2 + bytes(4)
    with pytest.raises(ImageError, match="too much metadata: tag 322 is there twice"):
        image_size(twice)
    for data in (b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"II+\0\x08\0\0\0" + b"\xff" * 8, whole[:-60], b"\x89PNG"):
        assert tiff_directories(io.BytesIO(data)) == []


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
    assert all(geo_header(placed[:length]) is None for length in (4, 8, 9, 60))
