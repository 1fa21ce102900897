"""A pair of GeoTIFFs on the served page: shown though the browser cannot, classes in colours, polygons to download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from idc.captioning.class_counts import count_classes
from idc.captioning.loading import SHIPPED_SATELLITE, artifact_folder
from idc.geo.placed_pair import decode_placed, placed_changes
from idc.systems import load_captioner
from serve.api import create_api
from tests.browser.driving import CONTRASTS, drop, pixels, too_wide, unnamed
from tests.browser.served import LIMITS, Visit
from tests.serve.local import LocalBackend, local_config, serving
from tests.serve.test_geotiffs import SIDE, geotiff

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    config = local_config(SHIPPED_SATELLITE, limits=LIMITS)
    with serving(create_api(config, LocalBackend(SHIPPED_SATELLITE))) as address:
        yield address


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("before", "after"):
        geotiff(tmp_path, name)
    return tmp_path / "before.tif", tmp_path / "after.tif"


def test_its_polygons_are_downloaded_and_its_classes_are_counted(files: tuple[Path, Path], visit: Visit) -> None:
    placed, grid = decode_placed(*(file.read_bytes() for file in files), 10**6)
    [description] = load_captioner(artifact_folder(SHIPPED_SATELLITE)).describe(
        [placed.before], [placed.after], change_map=True
    )
    expected = placed_changes(description, grid)
    assert description.class_map is not None
    counts = count_classes(description.class_map)
    with visit(viewport={"width": 420, "height": 900}) as seen:
        page = seen.open()
        drop(page, page.locator("main"), *files)
        expect(page.locator("#scene-text")).to_have_text(expected.sentence)
        expect(page.locator("#missing")).not_to_contain_text("cannot show the format")

        items = page.locator("#classes li").all_inner_texts()
        assert [item.split(",")[0] for item in items] == [f"{each.name}: {each.count}" for each in counts]
        for each, item in zip(counts, items, strict=True):
            assert all(position in item for position in each.positions)

        page.locator("#map[data-drawn]").wait_for()
        stage = page.locator("#map-figure .stage")
        coloured = pixels(stage)
        page.locator("#opacity").focus()
        page.keyboard.press("Home")
        plain = pixels(stage)
        shown = plain[plain.shape[0] // 2, plain.shape[1] // 2].astype(int)
        middle = placed.after[SIDE // 2, SIDE // 2]
        assert np.abs(shown - middle).max() < 40, "the image after, as the server decoded it"
        differs = np.abs(coloured.astype(int) - plain).max(axis=2) > 12
        share = float((description.class_map.classes > 0).mean())
        assert differs.mean() == pytest.approx(share, abs=0.06), "what a class has, and nothing else"

        with page.expect_download() as started:
            page.get_by_role("button", name="Download GeoJSON").click()
        assert started.value.suggested_filename == "changes.geojson"
        assert json.loads(Path(started.value.path()).read_text()) == json.loads(json.dumps(expected.geojson))

        page.locator("#copy-curl").click()
        expect(page.locator("#copied")).to_contain_text("Copied")
        assert "-F polygons=always" in page.evaluate("navigator.clipboard.readText()")
        page.locator("#copy-json").click()
        expect(page.locator("#copied")).to_have_text("Copied, without the pictures.")
        copied = json.loads(page.evaluate("navigator.clipboard.readText()"))["results"][0]
        assert copied["scene"].keys() == {"sentence", "geojson"}
        assert copied["classes"].keys() == {"counts"}
        assert unnamed(page) == []
        assert too_wide(page) == []
        for theme in ("light", "dark"):
            page.locator("#theme").select_option(theme)
            assert [found for found in page.evaluate(CONTRASTS) if found[0] < 4.5] == []

        page.reload()
        expect(page.locator("#scene-text")).to_have_text(expected.sentence)
        assert [error for error in seen.errors if "422" not in error] == [], "the page asks any model for a map first"
