"""Pairs of GeoTIFFs from tiles to polygons: where they lie, and what is kept."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.features import rasterize
from rasterio.warp import transform_geom

from idc.config import cli
from idc.data.pipeline import TooManyRejects, run_local
from idc.data.store import read_manifest
from idc.geo.config import SceneJob
from idc.geo.scene_job import SceneResult, caption_scene
from idc.geo.tile_captions import tiles_of
from tests.conftest import Command
from tests.geo.scenes import (
    GRID,
    UTM,
    CaptionerWithoutMap,
    DifferenceCaptioner,
    DrawnPair,
    draw_pair,
    ground,
    job,
    write,
)  # fmt: skip


def caption(pair: DrawnPair, out: Path, captioner: Any = None, overwrite: bool = False, **settings: Any) -> SceneResult:
    captioner = DifferenceCaptioner() if captioner is None else captioner
    return caption_scene(
        job(pair.before, pair.after, **{"out": str(out), "chunk_size": 16} | settings),
        partial(run_local, progress=False),
        overwrite=overwrite,
        load=lambda: captioner,
    )


def features_of(out: Path) -> list[dict[str, Any]]:
    features: list[dict[str, Any]] = json.loads((out / "changes.geojson").read_text())["features"]
    return features


def overlap(pair: DrawnPair, out: Path) -> float:
    """Intersection over union of the truth and the polygons, which rasterio puts back onto the pixels."""
    with rasterio.open(pair.truth) as raster:
        truth = raster.read(1) > 0
        geometries = [transform_geom("EPSG:4326", raster.crs, feature["geometry"]) for feature in features_of(out)]
        mask = rasterize(geometries, truth.shape, transform=raster.transform) > 0
    return float((mask & truth).sum() / (mask | truth).sum())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> DrawnPair:
    """2,500 x 2,500 pixels with nine buildings and a road across all of it."""
    return draw_pair(tmp_path_factory.mktemp("drawn"), 2500, bar=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> DrawnPair:
    return draw_pair(tmp_path_factory.mktemp("small"), 700)


@pytest.fixture(scope="module")
def classified(drawn: DrawnPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the large pair by a captioner with classes."""
    out = tmp_path_factory.mktemp("classified") / "out"
    caption(drawn, out, DifferenceCaptioner(classes=True))
    return out


def test_polygons_lie_where_the_truth_is(drawn: DrawnPair, classified: Path) -> None:
    assert overlap(drawn, classified) > 0.999
    features = features_of(classified)
    assert len(features) == 10, "a road or building that spans tiles is one polygon"
    areas = {"building": 60 * 40, "road": 24 * 2500}
    for properties in (feature["properties"] for feature in features):
        kind = properties["class"]
        assert properties["area_m2"] == pytest.approx(areas[kind] * 0.25 / 0.9996**2, rel=1e-4)
        assert 0.99 < properties["score"] <= 1
        assert (properties["caption"], properties["confidence"]) == (f"a {kind} appeared", pytest.approx(0.9048))
    positions = [f["properties"]["position"] for f in features if f["properties"]["class"] == "building"]
    assert len(positions) == len(set(positions)) == 9, "one building in each ninth of the scene"
    (road,) = [feature for feature in features if feature["properties"]["class"] == "road"]
    assert len(road["geometry"]["coordinates"]) == 1
    west, east = (f(x for x, _ in road["geometry"]["coordinates"][0]) for f in (min, max))
    assert (west, east) == pytest.approx((9.0, 9.0167), abs=1e-4), "from the left to the right of the scene"


def test_one_sentence_for_the_whole(classified: Path) -> None:
    summary = json.loads((classified / "summary.json").read_text())
    assert summary["sentence"].startswith("10 changes, 20,416 m² in all: 1 of class road (15,012 m², in the middle); "
                                          "9 of class building (5,404 m², 1 at the top left, ")  # fmt: skip
    assert (summary["changes"], summary["area_m2"]) == (10, pytest.approx(20416.8, abs=5))
    assert summary["classes"]["building"]["count"] == 9
    assert summary["compared"] == 1.0
    assert summary["tiles"]["verdicts"] == {"changed": 40, "unchanged": 104}


def test_rasters_are_on_the_grid_of_the_image(drawn: DrawnPair, classified: Path) -> None:
    with rasterio.open(drawn.truth) as raster:
        truth = raster.read(1) > 0
    for name in ("change_map.tif", "changes.tif"):
        with rasterio.open(classified / name) as raster:
            assert (raster.crs, raster.transform, raster.shape) == (rasterio.CRS.from_string(UTM), GRID, truth.shape)
    with rasterio.open(classified / "changes.tif") as raster:
        changes = raster.read(1)
    assert ((changes > 0) == truth).all()
    assert set(np.unique(changes)) == {0, 1, 2}
    with rasterio.open(classified / "change_map.tif") as raster:
        assert (raster.nodata, int(raster.read(1).max())) == (255, 254)
    assert sorted(path.name for path in classified.iterdir()) == [
        "change_map.tif", "changes.geojson", "changes.tif", "summary.json", "tiles",
    ]  # fmt: skip


@pytest.mark.parametrize(("tile", "overlap_"), [(64, 32), (100, 0), (333, 33), (1024, 32)])
def test_the_result_does_not_depend_on_the_tiles(tile: int, overlap_: int, small: DrawnPair, tmp_path: Path) -> None:
    caption(small, tmp_path / "out", tile=tile, overlap=overlap_, chunk_size=7)
    assert overlap(small, tmp_path / "out") == 1.0
    assert len(features_of(tmp_path / "out")) == 1


def test_small_parts_are_left_out_by_their_area_on_the_ground(small: DrawnPair, tmp_path: Path) -> None:
    result = caption(small, tmp_path / "out", min_area=600.9)
    assert result.summary["sentence"] == "No change of at least 601 m² was found."
    assert features_of(tmp_path / "out") == []
    with rasterio.open(tmp_path / "out" / "changes.tif") as raster:
        assert not raster.read(1).any()
    result = caption(small, tmp_path / "out", min_area=600.4, overwrite=True)
    assert result.summary["changes"] == 1


def test_where_there_is_no_data_nothing_changed(tmp_path: Path) -> None:
    after = np.tile(ground(), (3, 3, 1))
    before = after.copy()
    after[:300] = 0
    after[700:, 700:] = (190, 40, 30)
    pair = DrawnPair(write(tmp_path / "before.tif", before), write(tmp_path / "after.tif", after, nodata=0), tmp_path)
    result = caption(pair, tmp_path / "out", DifferenceCaptioner(log=tmp_path / "log"), tile=128, overlap=16)
    (feature,) = features_of(tmp_path / "out")
    assert feature["properties"]["area_m2"] == pytest.approx(625, rel=1e-2)
    assert result.summary["sentence"].endswith("In 40 % of the scene there is nothing to compare.")
    tiles = result.summary["tiles"]
    assert tiles["captioned"] == len((tmp_path / "log").read_text().splitlines()) < tiles["all"]
    with rasterio.open(tmp_path / "out" / "change_map.tif") as raster:
        assert (raster.read(1)[:300] == 255).all()
        assert (raster.read(1)[300:] < 255).all()


def test_a_finished_job_does_nothing(small: DrawnPair, tmp_path: Path) -> None:
    captioner = DifferenceCaptioner(log=tmp_path / "log")
    first = caption(small, tmp_path / "out", captioner)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = caption(small, tmp_path / "out", captioner)
    assert again.summary == first.summary
    assert (first.done, again.done) == (9, 0)
    assert "9 of all done before" in again.text()
    assert len((tmp_path / "log").read_text().splitlines()) == 9
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times


def test_other_settings_or_images_need_overwrite_and_another_threshold_keeps_the_tiles(
    small: DrawnPair, tmp_path: Path
) -> None:
    captioner = DifferenceCaptioner(log=tmp_path / "log")
    caption(small, tmp_path / "out", captioner)
    with pytest.raises(ValueError, match=r"holds changes by other settings; .*--overwrite"):
        caption(small, tmp_path / "out", captioner, threshold=0.9)
    turned = small._replace(before=small.after, after=small.before)
    for pair, settings in ((turned, {}), (small, {"tile": 300}), (small, {"scaling": [0, 200]}), (small, {"beams": 1})):
        with pytest.raises(ValueError, match="scene tiles of another configuration or other inputs"):
            caption(pair, tmp_path / "out", captioner, **settings)
    caption(small, tmp_path / "out", captioner, overwrite=True, threshold=0.9)
    assert len((tmp_path / "log").read_text().splitlines()) == 9


def test_a_captioner_without_a_map_is_refused(small: DrawnPair, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot compute a change map"):
        caption(small, tmp_path / "out", CaptionerWithoutMap())


def test_damaged_tiles_end_the_job_or_are_left_out(tmp_path: Path) -> None:
    pair = draw_pair(tmp_path, 1000, compress="deflate", interleave="pixel")
    data = pair.after.read_bytes()
    pair.after.write_bytes(data[: len(data) * 9 // 10])
    with pytest.raises(TooManyRejects, match=r"of 25 rows.*'tile \d+': damaged image: .*after\.tif is damag"):
        caption(pair, tmp_path / "out")
    result = caption(pair, tmp_path / "out", max_reject_share=0.9)
    unreadable = read_manifest(tmp_path / "out" / "tiles").num_rejected
    assert result.summary["tiles"]["unreadable"] == unreadable > 0
    assert f"{unreadable} unreadable" in result.text()
    assert result.summary["compared"] < 1


def test_the_command_by_two_paths(small: DrawnPair, tmp_path: Path, command: Command) -> None:
    options = ("--out", tmp_path / "out", "--local", "--artifact", "regions", "tile=350")
    done = command("caption", small.before, small.after, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'out'}: 9 tiles, 9 captioned\nOne change, ")
    assert overlap(small, tmp_path / "out") > 0.7
    (feature,) = features_of(tmp_path / "out")
    assert "One region changed" in feature["properties"]["caption"]


def test_the_command_refuses_with_a_line(small: DrawnPair, tmp_path: Path, command: Command) -> None:
    options = ("--out", tmp_path / "out", "--local", "--artifact", "regions")
    done = command("caption", small.before, tmp_path / "no.tif", *options)
    assert done.returncode == 2
    assert "after: no such file or folder" in done.stderr
    assert not (tmp_path / "out").exists()


def test_settings_by_position_are_those_of_the_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("a.tif", "b=c.tif"):
        (tmp_path / name).write_bytes(b"")
    arguments = [str(tmp_path / "a.tif"), f"after={tmp_path / 'b=c.tif'}", "--out", "x", "--artifact", "regions"]
    config = cli(SceneJob, "", arguments, positional=("before", "after")).config
    assert (config.before, config.after) == (str(tmp_path / "a.tif"), str(tmp_path / "b=c.tif"))
    with pytest.raises(SystemExit):
        cli(SceneJob, "", [*arguments[:1], "third", "fourth", "--out=x"], positional=("before", "after"))
    assert "'fourth' is not of the form key=value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("height", "width", "side", "overlap_"),
    [(1, 63, 64, 0), (64, 65, 64, 32), (1000, 777, 256, 32), (777, 300, 100, 50), (301, 300, 100, 1)],
)
def test_cores_share_out_a_scene_within_their_tiles_half_the_overlap_from_the_next(
    height: int, width: int, side: int, overlap_: int
) -> None:
    count, order = np.zeros((height, width), int), []
    for tile in tiles_of(height, width, side, overlap_):
        (top, bottom), (left, right) = tile.window.toranges()
        count[tile.core.toslices()] += 1
        order.append((top, left))
        assert (bottom - top, right - left) == (min(side, height), min(side, width))
        pixels = np.arange(height * width).reshape(height, width)
        assert (tile.cut(pixels[tile.window.toslices()]) == pixels[tile.core.toslices()]).all()
        for core, window, length in zip(tile.core.toranges(), tile.window.toranges(), (height, width), strict=True):
            assert core[0] - window[0] >= overlap_ // 2 * (core[0] > 0)
            assert window[1] - core[1] >= overlap_ // 2 * (core[1] < length)
    assert (count == 1).all()
    assert order == sorted(order), "numbered row by row"
