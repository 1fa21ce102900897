"""What is read of GeoTIFFs, which files are not, and the line for each pair that cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin
from rasterio.warp import Resampling, calculate_default_transform, reproject, transform
from rasterio.windows import Window

from idc.geo.config import SceneJob
from idc.geo.rasters import SceneReader, eight_bits, open_scene
from tests.geo.scenes import GRID, SIDE, UTM, ground, job, pair, write

PIXELS = ground()[:SIDE, :SIDE]
LOCAL = 'LOCAL_CS["site",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]'
FAR = {"grid": from_origin(600_000, 5_300_000, 0.5, 0.5)}
SHIFTED = {"grid": from_origin(500_010, 5_300_000, 0.5, 0.5)}
POINTS = [GroundControlPoint(row, column, 9 + column / 1e5, 47 - row / 1e5) for row in (0, 100) for column in (0, 100)]


def read(job: SceneJob) -> Any:
    with SceneReader(open_scene(job)) as reader:
        return reader.read(Window(0, 0, SIDE, SIDE))


def vrt(folder: Path, of: Path) -> str:
    return (
        f'<VRTDataset rasterXSize="{SIDE}" rasterYSize="{SIDE}"><SRS>{UTM}</SRS><GeoTransform>5e5,.5,0,5.3e6,0,-.5'
        '</GeoTransform><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        f"<SourceFilename>{of}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>"
    )


def test_a_vrt_is_not_read_whatever_its_name(tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    secret = write(tmp_path / "secret.tif", ground()[:SIDE, :SIDE])
    after.write_text(vrt(tmp_path, secret))
    with rasterio.open(after) as raster:
        assert raster.driver == "VRT", "GDAL itself would read it"
    with pytest.raises(ValueError, match=r"after.tif cannot be read as a GeoTIFF"):
        open_scene(job(before, after))


def test_a_geotiff_whose_metadata_name_another_file_is_refused(tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    other = tmp_path / "other.vrt"
    other.write_text(vrt(tmp_path, write(tmp_path / "secret.tif", ground()[:60, :60])))
    named = f'<GDALMetadata><Item name="OVERVIEW_FILE" domain="OVERVIEWS">{other}</Item></GDALMetadata>\0'
    tifffile.imwrite(after, ground()[:SIDE, :SIDE], photometric="rgb", extratags=[(42112, "s", 0, named, True)])
    with rasterio.open(after) as raster:
        assert raster.overviews(1) != [], "GDAL itself would open it"
    with pytest.raises(ValueError, match="names a file of overviews, which is not opened"):
        open_scene(job(before, after))


def test_files_next_to_an_image_are_not_read(tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    reference = read(job(before, after))
    mask = np.zeros((SIDE, SIDE, 1), np.uint8)
    write(tmp_path / "after.tif.msk", mask)
    (tmp_path / "after.tif.aux.xml").write_text("<PAMDataset><SRS>EPSG:32633</SRS></PAMDataset>")
    (tmp_path / "after.tif.ovr").write_text(vrt(tmp_path, before))
    (tmp_path / "after.tfw").write_text("2\n0\n0\n-2\n0\n0\n")
    tile = read(job(before, after))
    assert open_scene(job(before, after)).transform == GRID
    assert tile.valid.all()
    assert (tile.pixels.after == reference.pixels.after).all()
    pixels = ground()[:SIDE, :SIDE]
    bare = write(tmp_path / "bare.tif", pixels, crs=None, grid=None)
    (tmp_path / "bare.tfw").write_text("2\n0\n0\n-2\n0\n0\n")
    with pytest.raises(ValueError, match=r"has no georeference \(files next to it, as \.tfw, are not read\)"):
        open_scene(job(before, bare))


def test_bands_by_their_names_by_number_and_grey(tmp_path: Path) -> None:
    pixels = ground()[:SIDE, :SIDE]
    four = np.concatenate([pixels[..., ::-1], np.full((SIDE, SIDE, 1), 9, np.uint8)], axis=2)  # blue, green, red, NIR
    files = [write(tmp_path / name, four, photometric="MINISBLACK", ALPHA="NO") for name in ("before.tif", "after.tif")]
    assert (read(job(*files, bands=[3, 2, 1])).pixels.after == pixels).all()
    assert (read(job(*files, bands=[2])).pixels.after == pixels[..., 1:2]).all()
    for file in files:
        with rasterio.open(file, "r+") as raster:
            raster.colorinterp = [rasterio.enums.ColorInterp[name] for name in ("blue", "green", "red", "undefined")]
    assert (read(job(*files)).pixels.after == pixels).all(), "names decide over the order"
    grey = [write(tmp_path / f"grey_{name}.tif", pixels[..., :1]) for name in ("before", "after")]
    assert (read(job(*grey)).pixels.after == pixels[..., :1]).all()


def test_sixteen_bits_by_values_and_by_percentiles(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.array([[[np.nan], [-1.0], [0.5], [1.0], [np.inf]]], np.float32)
    assert eight_bits(values, (0.0, 1.0))[0, :, 0].tolist() == [0, 0, 128, 255, 255], "what is no number is black"
    first, second = (rng.integers(100, 2100, (SIDE, SIDE, 3)).astype(np.uint16) for _ in range(2))
    second += 500
    files = write(tmp_path / "before.tif", first), write(tmp_path / "after.tif", second)
    pixels = read(job(*files, scaling=[100, 2655])).pixels
    expected = ((second.astype(float) - 100) / (2655 - 100) * 255).clip(0, 255).round()
    assert (pixels.after == expected).all()
    scene = open_scene(job(*files, scaling="percentiles"))
    assert scene.scaling is not None
    assert scene.scaling == pytest.approx(np.percentile(np.stack([first, second]), (2, 98)), abs=2)
    assert pixels.before.mean() < pixels.after.mean(), "one scaling for both keeps their difference"


@pytest.mark.parametrize("how", ["nodata", "alpha", "nan", "mask"])
def test_where_there_is_no_data_both_images_are_black(how: str, tmp_path: Path) -> None:
    pixels = ground()[:SIDE, :SIDE]
    profile: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    holed = pixels.copy()
    if how == "nodata":
        holed[20:40, 50:90] = 0
        holed[60, 60] = (0, 50, 50)  # dark in one band is not "no data"
        profile["nodata"] = 0
    elif how == "alpha":
        alpha = np.full((SIDE, SIDE, 1), 255, np.uint8)
        alpha[20:40, 50:90] = 0
        holed, profile["alpha"] = np.concatenate([pixels, alpha], axis=2), True
    elif how == "nan":
        holed = holed.astype(np.float32)
        holed[20:40, 50:90] = np.nan
        settings["scaling"] = [0, 255]
    before, after = pair(tmp_path, pixels=holed, **profile)
    if how == "nan":
        write(before, pixels.astype(np.float32))
    if how == "mask":
        mask = np.full((SIDE, SIDE), 255, np.uint8)
        mask[20:40, 50:90] = 0
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(after, "r+") as raster:
            raster.write_mask(mask)
    tile = read(job(before, after, **settings))
    expected = np.ones((SIDE, SIDE), bool)
    expected[20:40, 50:90] = False
    assert (tile.valid == expected).all()
    for image in tile.pixels.images:
        assert not image[~expected].any()
        assert image[expected].any(axis=1).all()


def resampled_with_hole(path: Path, crs: str) -> Path:
    """The ground of the standard grid in another coordinate system, by GDAL itself; what is outside is no data."""
    source = ground()[:SIDE, :SIDE]
    source[20:40, 50:90] = 0
    side = CRS.from_string(crs)
    bounds = (GRID.c, GRID.f - SIDE / 2, GRID.c + SIDE / 2, GRID.f)
    grid, width, height = calculate_default_transform(UTM, side, SIDE, SIDE, *bounds)
    target = np.zeros((3, height, width), np.uint8)
    reproject(np.moveaxis(source, 2, 0), target, src_transform=GRID, src_crs=UTM, src_nodata=0, dst_transform=grid,
              dst_crs=side, dst_nodata=0, resampling=Resampling.bilinear)  # fmt: skip
    return write(path, np.moveaxis(target, 0, 2), crs=crs, grid=grid, nodata=0)


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857", "EPSG:32633"])
def test_another_coordinate_system_on_request(crs: str, tmp_path: Path) -> None:
    before = resampled_with_hole(tmp_path / "before.tif", crs)
    after = write(tmp_path / "after.tif", ground()[:SIDE, :SIDE])
    scene = open_scene(job(before, after, reproject=True))
    assert scene.resampled
    assert scene.transform == GRID
    tile = read(job(before, after, reproject=True))
    assert not tile.valid[24:36, 54:86].any(), "the hole is where it was"
    assert tile.valid[45:100, 5:100].mean() > 0.99
    inside = tile.valid.copy()
    inside[16:44, 46:94] = False
    difference = abs(tile.pixels.before.astype(int) - tile.pixels.after)[inside]
    assert difference.mean() < 6, "resampled twice, and at the same position"
    shifted = abs(np.roll(tile.pixels.before, 6, axis=1).astype(int) - tile.pixels.after)[inside]
    assert shifted.mean() > 2 * difference.mean()


TURNED = Affine.translation(500_000, 5_300_000) @ Affine.rotation(20) @ Affine.scale(0.5, -0.5)


@pytest.mark.parametrize(("before", "after"), [(TURNED, GRID), (GRID, TURNED), (TURNED, TURNED @ Affine.rotation(25))])
@pytest.mark.parametrize("nodata", [None, 0])
def test_a_turned_grid_moves_no_pixel(before: Affine, after: Affine, nodata: int | None, tmp_path: Path) -> None:
    """Each pixel of the image before holds its column and row; what is read of them after is compared."""
    rows, columns = np.mgrid[:300, :300]
    pixels = np.stack([columns * 100 + 50, rows * 100 + 50, 0 * rows + 100], axis=2).astype(np.uint16)
    paths = (write(tmp_path / f"{name}.tif", pixels, grid=grid, nodata=nodata) for name, grid in (
        ("before", before), ("after", after)))  # fmt: skip
    with SceneReader(open_scene(job(*paths, reproject=True, scaling=[0, 30000]))) as reader:
        for window in (Window(0, 0, 300, 300), Window(140, 140, 60, 60)):
            (values, valid), _ = reader._windows(window)
            rows, columns = np.mgrid[0 : window.height, 0 : window.width] + 0.5
            expected = np.array(~before @ after @ (columns + window.col_off, rows + window.row_off))
            inside = valid & (expected > 1).all(axis=0) & (expected < 299).all(axis=0)
            errors = abs(values[..., :2] / 100 - np.moveaxis(expected, 0, 2))[inside]
            assert errors.max() < 0.03


def test_of_unequal_extents_only_what_both_have_is_compared(tmp_path: Path) -> None:
    before = write(tmp_path / "before.tif", ground()[:SIDE, :80])
    after = write(tmp_path / "after.tif", ground()[:SIDE, 30 : 30 + SIDE], grid=GRID @ Affine.translation(30, 0))
    tile = read(job(before, after, reproject=True))
    assert tile.valid[:, :50].all()
    assert not tile.valid[:, 50:].any()
    assert (tile.pixels.before[:, :50] == ground()[:SIDE, 30:80]).all()
    assert not tile.pixels.after[:, 50:].any()


def test_a_grid_that_is_the_same_to_a_tenth_of_a_pixel_is_the_same(tmp_path: Path) -> None:
    before, after = pair(tmp_path, grid=GRID @ Affine.translation(0.05, 0.0))
    assert not open_scene(job(before, after)).resampled
    write(after, ground()[:SIDE, :SIDE], grid=GRID @ Affine.translation(0.3, 0.0))
    with pytest.raises(ValueError, match="reproject=true"):
        open_scene(job(before, after))


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
        ["before.tif has 120 x 120 pixels of", "after.tif has 120 x 100", "reproject=true resamples"],
    ),
    "other place": (
        lambda folder: job(*pair(folder, **SHIFTED)),
        ["pixels of 0.5 x 0.5 from 500000, 5300000 in", "from 500010"],
    ),
    "other system": (
        lambda folder: job(*pair(folder, crs="EPSG:32633", grid=corner_in("EPSG:32633"))),
        ["in EPSG:32632, and", "in EPSG:32633; reproject=true"],
    ),
    "far away": (
        lambda folder: job(*pair(folder, **FAR), reproject=True),
        ["do not overlap", "longitude 9.0000 to 9.0008, latitude 47.8", "longitude 10.33", "of one place"],
    ),
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
        ({"out": "s3://bucket/x"}, "out: must be on a disk that all its processes see, not a URI, got 's3://bucket/x'"),
    ]:
        with pytest.raises(ValueError, match=r"after|overlap|bands|scaling|out") as refused:
            job(tmp_path / "a.tif", tmp_path / "b.tif", **settings)
        assert fault in str(refused.value)


def test_without_rasterio_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idc.geo.config.find_spec", lambda name: None)
    (fault,) = job(*pair(tmp_path)).preflight()
    assert fault == "rasterio, which reads GeoTIFFs, is not installed; pip install 'idc[geo]'"
