"""A pair of GeoTIFFs in memory has the polygons that the job of large scenes writes, and its refusals."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rasterio.transform import Affine
from rasterio.warp import transform_geom

from idc.captioning.contract import Candidate, Description, SearchOptions
from idc.data.pipeline import run_local
from idc.geo.georeferenced_pair import MOST_POLYGONS, GeoreferencedChanges, decode_georeferenced, georeferenced_changes
from idc.geo.scene_job import caption_scene
from tests.geo.scenes import SIDE, UTM, DifferenceCaptioner, DrawnPair, draw_pair, job, pair, write

WITH_MAP = SearchOptions(change_map=True)

MOST = 10**7


def changes_of(before: bytes, after: bytes) -> GeoreferencedChanges:
    pixels, grid = decode_georeferenced(before, after, MOST)
    [description] = DifferenceCaptioner(classes=True).describe([pixels.before], [pixels.after], WITH_MAP)
    return georeferenced_changes(description, grid)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> DrawnPair:
    """700 x 700 pixels with a building and a road."""
    return draw_pair(tmp_path_factory.mktemp("drawn"), 700, bar=True)


def test_polygons_and_sentence_are_those_of_the_job(drawn: DrawnPair, tmp_path: Path) -> None:
    """Of which a single tile holds the whole scene."""
    changes = changes_of(drawn.before.read_bytes(), drawn.after.read_bytes())
    scene = job(drawn.before, drawn.after, out=str(tmp_path / "out"), tile=1024)
    result = caption_scene(scene, partial(run_local, progress=False), load=lambda: DifferenceCaptioner(classes=True))
    written = json.loads((tmp_path / "out" / "changes.geojson").read_text())["features"]
    assert changes.sentence == result.summary["sentence"]
    assert [feature["geometry"] for feature in changes.geojson["features"]] == [
        feature["geometry"] for feature in sorted(written, key=lambda feature: -feature["properties"]["area_m2"])
    ]
    by_class = {feature["properties"]["class"]: feature["properties"] for feature in written}
    properties = [feature["properties"] for feature in changes.geojson["features"]]
    assert {each["class"]: each for each in properties} == by_class
    assert by_class.keys() == {"road", "building"}


def test_position_and_corners_in_a_wide_pair_on_a_turned_grid(tmp_path: Path) -> None:
    """A building in columns 1200 to 1400 of 2300 and rows 620 to 700 of 900: its cell of the map is named, and its
    corners lie where the grid has them, also where outlines are drawn at a coarser scale."""
    turned = Affine.translation(500_000, 5_300_000) @ Affine.rotation(20) @ Affine.scale(0.5, -0.8)
    pixels = np.full((900, 2300, 3), 90, np.uint8)
    before = write(tmp_path / "before.tif", pixels, grid=turned)
    pixels[620:700, 1200:1400] = (190, 40, 30)
    after = write(tmp_path / "after.tif", pixels, grid=turned)
    [placed] = changes_of(before.read_bytes(), after.read_bytes()).geojson["features"]
    scene = job(before, after, out=str(tmp_path / "out"), tile=512)
    caption_scene(scene, partial(run_local, progress=False), load=lambda: DifferenceCaptioner(classes=True))
    [written] = json.loads((tmp_path / "out" / "changes.geojson").read_text())["features"]
    radians = np.radians(20)
    for feature, tolerance in ((placed, 2300 / 1024), (written, 0.1)):
        assert feature["properties"]["position"] == "in the middle"
        corners = np.array(transform_geom("EPSG:4326", UTM, feature["geometry"])["coordinates"][0])
        for column, row in ((1200, 620), (1400, 620), (1400, 700), (1200, 700)):
            across, down = 0.5 * column, -0.8 * row
            x = 500_000 + across * np.cos(radians) - down * np.sin(radians)
            y = 5_300_000 + across * np.sin(radians) + down * np.cos(radians)
            assert np.linalg.norm(corners - (x, y), axis=1).min() < tolerance


def test_the_position_is_that_on_the_map_also_of_a_scene_with_south_at_the_top(tmp_path: Path) -> None:
    pixels = np.full((90, 90, 3), 90, np.uint8)
    south_up = Affine(0.5, 0, 500_000, 0, 0.5, 5_300_000)
    before = write(tmp_path / "before.tif", pixels, grid=south_up)
    pixels[5:20, 5:20] = (190, 40, 30)
    after = write(tmp_path / "after.tif", pixels, grid=south_up)
    changes = changes_of(before.read_bytes(), after.read_bytes())
    assert [feature["properties"]["position"] for feature in changes.geojson["features"]] == ["at the bottom left"]
    assert "at the bottom left" in changes.sentence


def test_of_very_many_polygons_the_largest_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    _, grid = decode_georeferenced(*(path.read_bytes() for path in pair(tmp_path)), MOST)
    dots = np.zeros((SIDE, SIDE), np.float32)
    dots[::2, ::2] = 1
    dots[60, 0:19] = 1  # ten of the dots, joined
    changes = georeferenced_changes(Description((Candidate("dots", -1.0),), change_map=dots), grid, min_area=0)
    areas = [feature["properties"]["area_m2"] for feature in changes.geojson["features"]]
    assert [feature["id"] for feature in changes.geojson["features"]] == list(range(1, MOST_POLYGONS + 1))
    assert areas[0] == pytest.approx(max(areas)) == pytest.approx(19 * 0.25, rel=0.01)
    assert changes.geojson["left_out"] == (SIDE // 2) ** 2 - 9 - MOST_POLYGONS
    assert changes.sentence.startswith("3,591 changes, ")


def test_refusals_name_the_file_as_the_client_does(tmp_path: Path) -> None:
    before, after = (path.read_bytes() for path in pair(tmp_path))
    with pytest.raises(ValueError, match=r"^after.tif is damaged in rows"):
        decode_georeferenced(before, after[: len(after) // 2], MOST)
    with pytest.raises(ValueError, match=r"^b.tif cannot be read as a GeoTIFF.* rio convert b.tif b_converted.tif"):
        decode_georeferenced(before, b"II*\0 no TIFF", MOST, ("a.tif", "b.tif"))
    with pytest.raises(ValueError, match=r"before.tif has 120 x 120 pixels, more than max_pixels=14000.*a setting of"):
        decode_georeferenced(before, after, 14_000)
