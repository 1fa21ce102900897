"""Pairs of GeoTIFFs: polygons and classes in the answer, one line for what cannot be compared."""

from __future__ import annotations

import base64
import sys
from typing import Any

import httpx2
import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.transform import Affine

from idc.captioning.apply import CaptionedPair, Pixels
from idc.captioning.class_counts import count_classes
from idc.captioning.contract import Candidate, Description
from idc.captioning.loading import SHIPPED_SATELLITE
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image
from idc.geo.georeferenced_pair import PixelGrid, decode_georeferenced, georeferenced_changes
from serve.backend import Options
from serve.captioner import captioned
from serve.schema import CaptionAnswer
from tests.geo.scenes import ground, write
from tests.serve.bodies import CAPTIONS, PAIR, Pair, result, upload
from tests.serve.local import loaded


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A field, at the second date with two red roofs."""
    before = ground()[:200, :200]
    after = before.copy()
    after[30:80, 20:90] = after[110:170, 120:180] = (170, 70, 55)
    folder = tmp_path_factory.mktemp("placed")
    named = zip(Pair._fields, (before, after), strict=True)
    return Pair(*(write(folder / f"{name}.tif", pixels).read_bytes() for name, pixels in named))


def pixels_of(url: str) -> np.ndarray:
    return decode_image(base64.b64decode(url.removeprefix("data:image/png;base64,")))


def ask(client: httpx2.Client, *pair: bytes, **options: str) -> dict[str, Any]:
    return result(client, Pair(*pair), model="satellite", **options)


def test_polygons_and_classes_are_those_of_the_captioner(client: httpx2.Client, placed: Pair) -> None:
    form = upload(placed, model="satellite", polygons="georeferenced", change_map="true")
    answer = client.post(CAPTIONS, **form).raise_for_status()
    (served,) = CaptionAnswer.model_validate_json(answer.content).results
    pixels, grid = decode_georeferenced(placed.before, placed.after, 10**6)
    [description] = loaded(SHIPPED_SATELLITE).captioner.describe([pixels.before], [pixels.after], change_map=True)
    expected = georeferenced_changes(description, grid)
    assert expected.geojson["features"], "the pair must have changes, or nothing is tested"
    assert served.scene is not None
    assert (served.scene.sentence, served.scene.geojson) == (expected.sentence, expected.geojson)
    for shown, image in zip((served.scene.before, served.scene.after), pixels.images, strict=True):
        assert np.array_equal(pixels_of(shown), image)
    assert served.classes is not None
    assert description.class_map is not None
    assert [count.model_dump() for count in served.classes.counts] == [
        count.to_dict() for count in count_classes(description.class_map)
    ]
    assert np.array_equal(pixels_of(served.classes.map)[..., 0], description.class_map.classes)


def test_polygons_are_returned_where_they_are_asked_for(client: httpx2.Client, placed: Pair) -> None:
    """With the map or without it; a pair that is no GeoTIFF has its caption as before."""
    alone = ask(client, *placed, polygons="always")
    assert alone["scene"]["geojson"]["features"]
    assert (alone["change_map"], alone["classes"]) == (None, None)
    never = ask(client, *placed, change_map="true")
    assert never["scene"] is None
    assert never["classes"]["counts"][1]["name"] == "building"
    for after in (placed.after, PAIR.after):
        plain = ask(client, PAIR.before, after, polygons="georeferenced")
        assert (bool(plain["caption"]), plain["scene"]) == (True, None)
    cut = upload(Pair(placed.before, placed.after[:9000]), model="satellite", polygons="always")
    refused = client.post(CAPTIONS, **cut)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


def test_without_rasterio_the_extra_is_named(
    client: httpx2.Client, placed: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rasterio", None)  # as if it were not installed
    refused = client.post(CAPTIONS, **upload(placed, model="satellite", polygons="georeferenced"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "extra_missing")
    assert "pip install 'idc[geo]'" in refused.json()["error"]["message"]
    assert ask(client, *placed)["caption"], "a caption alone needs none"


def test_a_change_without_degrees_refuses_its_pair_alone() -> None:
    """Of a coordinate system that gives longitude and latitude where it was checked, and none around a change."""
    wkt = CRS.from_string("+proj=adams_ws2 +datum=WGS84").to_wkt()
    grid = PixelGrid(Affine(1, 0, 0, 0, -1, 0), wkt, np.ones((24, 24), bool))
    changed = np.zeros((24, 24), np.float32)
    changed[20:23] = 1
    image = np.zeros((24, 24, 3), np.uint8)
    pair = CaptionedPair(Pixels(image, image), Description((Candidate("new", -1.0),), change_map=changed))
    error = captioned(pair, Options(), grid, ObjectsConfig()).error or ""
    assert error.startswith("after: the coordinate system ")
    assert "gives no longitude and latitude" in error
