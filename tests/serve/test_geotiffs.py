"""Pairs of GeoTIFFs: polygons and classes in the answer, one line for what cannot be compared, limits before work."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from rasterio.crs import CRS

from idc.captioning.apply import CaptionedPair, Fault, Pixels
from idc.captioning.class_counts import count_classes
from idc.captioning.contract import Candidate, Description
from idc.captioning.loading import SHIPPED_SATELLITE, artifact_folder
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image
from idc.geo.georeferenced_pair import decode_georeferenced, georeferenced_changes
from idc.geo.pixel_grid import PixelGrid
from idc.systems import load_captioner
from serve import intake
from serve.api import create_api
from serve.backend import EncodedPair, Options
from serve.captioner import captioned
from serve.decoding import Decoders
from serve.schema import CaptionAnswer
from tests.geo.scenes import ground, write
from tests.serve.bodies import picture
from tests.serve.local import LocalBackend, local_config, serving

SIDE = 200


def geotiff(folder: Path, name: str, seed: int = 0, **profile: Any) -> bytes:
    """A field, at the second date with two red roofs."""
    pixels = ground(seed)[:SIDE, :SIDE].copy()
    if name == "after":
        pixels[30:80, 20:90] = pixels[110:170, 120:180] = (170, 70, 55)
    return write(folder / f"{name}.tif", **{"pixels": pixels} | profile).read_bytes()


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> EncodedPair:
    folder = tmp_path_factory.mktemp("placed")
    return EncodedPair(geotiff(folder, "before"), geotiff(folder, "after"), placed=True)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    api = create_api(local_config(SHIPPED_SATELLITE), LocalBackend(SHIPPED_SATELLITE))
    with serving(api) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


def ask(client: httpx2.Client, before: bytes, after: bytes, **options: str) -> httpx2.Response:
    files = [("before", ("before.tif", before)), ("after", ("after.tif", after))]
    return client.post("/v1/captions", files=files, data=options)


def pixels_of(url: str) -> np.ndarray:
    return decode_image(base64.b64decode(url.removeprefix("data:image/png;base64,")))


def test_polygons_and_classes_are_those_of_the_captioner(client: httpx2.Client, placed: EncodedPair) -> None:
    answer = ask(client, placed.before, placed.after, polygons="georeferenced", change_map="true")
    (result,) = CaptionAnswer.model_validate_json(answer.raise_for_status().content).results
    pixels, grid = decode_georeferenced(placed.before, placed.after, 10**6)
    captioner = load_captioner(artifact_folder(SHIPPED_SATELLITE))
    [description] = captioner.describe([pixels.before], [pixels.after], change_map=True)
    expected = georeferenced_changes(description, grid)
    assert expected.geojson["features"], "the pair must have changes, or nothing is tested"
    assert result.scene is not None
    assert (result.scene.sentence, result.scene.geojson) == (expected.sentence, expected.geojson)
    for shown, image in zip((result.scene.before, result.scene.after), pixels.images, strict=True):
        assert np.array_equal(pixels_of(shown), image)
    assert result.classes is not None
    assert description.class_map is not None
    assert [count.model_dump() for count in result.classes.counts] == [
        count.to_dict() for count in count_classes(description.class_map)
    ]
    assert np.array_equal(pixels_of(result.classes.map)[..., 0], description.class_map.classes)


def test_polygons_are_returned_where_they_are_asked_for(client: httpx2.Client, placed: EncodedPair) -> None:
    """With the map or without it; a pair that is no GeoTIFF has its caption as before."""
    (alone,) = ask(client, placed.before, placed.after, polygons="always").raise_for_status().json()["results"]
    assert alone["scene"]["geojson"]["features"]
    assert (alone["change_map"], alone["classes"]) == (None, None)
    (never,) = ask(client, placed.before, placed.after, change_map="true").raise_for_status().json()["results"]
    assert never["scene"] is None
    assert never["classes"]["counts"][1]["name"] == "building"
    for after in (placed.after, picture()):
        (plain,) = ask(client, picture(), after, polygons="georeferenced").raise_for_status().json()["results"]
        assert plain["caption"]
        assert plain["scene"] is None


def test_without_rasterio_the_extra_is_named(
    client: httpx2.Client, placed: EncodedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "find_spec", lambda name: None)
    refused = ask(client, placed.before, placed.after, polygons="georeferenced")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "extra_missing")
    assert "pip install 'idc[geo]'" in refused.json()["error"]["message"]
    assert ask(client, placed.before, placed.after).status_code == 200, "a caption alone needs none"


def test_a_change_without_degrees_refuses_its_pair_alone() -> None:
    """Of a coordinate system that gives longitude and latitude where it was checked, and none around a change."""
    wkt = CRS.from_string("+proj=adams_ws2 +datum=WGS84").to_wkt()
    grid = PixelGrid((1, 0, 0, 0, -1, 0), wkt, np.ones((24, 24), bool))
    changed = np.zeros((24, 24), np.float32)
    changed[20:23] = 1
    image = np.zeros((24, 24, 3), np.uint8)
    pair = CaptionedPair(Pixels(image, image), Description((Candidate("new", -1.0),), change_map=changed))
    error = captioned(pair, Options(), grid, ObjectsConfig()).error
    assert error is not None
    assert error.startswith("after: the coordinate system ")
    assert "gives no longitude and latitude" in error


def test_the_decoder_process_has_the_same_pixels_and_grid(placed: EncodedPair) -> None:
    async def decoded() -> None:
        pool = Decoders(1, 60)
        result = await pool.pair(placed)
        expected, grid = decode_georeferenced(placed.before, placed.after, 10**6)
        assert isinstance(result.pixels, Pixels)
        assert result.grid is not None
        assert all(map(np.array_equal, result.pixels.images, expected.images))
        assert result.grid[:2] == grid[:2]
        assert np.array_equal(result.grid.valid, grid.valid)
        cut = await pool.pair(EncodedPair(placed.before, placed.after[:9000], placed=True))
        assert isinstance(cut.pixels, Fault)
        assert cut.pixels.role == "after"

    asyncio.run(decoded())
    gc.collect()
