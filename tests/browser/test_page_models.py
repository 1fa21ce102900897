"""The served page with other models: questions about a pair, GeoTIFFs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from idc.captioning.class_counts import count_classes
from idc.captioning.contract import SearchOptions
from idc.captioning.sources import SHIPPED_SATELLITE
from idc.data.images import encode_png
from idc.geo.georeferenced_pair import decode_georeferenced, georeferenced_changes
from tests.browser.conftest import RENDERED, Visit, captioner, describe
from tests.browser.driving import assert_readable, drop, pixels
from tests.geo.scenes import ground, write
from tests.vlm.artifacts import QUESTION
from tests.vlm.models import picture

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_a_question_about_the_pair_is_answered_below_its_caption(visit: Visit, tmp_path: Path) -> None:
    files = tmp_path / "before.png", tmp_path / "after.png"
    for number, file in enumerate(files):
        file.write_bytes(encode_png(picture(number)))
    page = visit("dialogue", viewport={"width": 360, "height": 740})
    drop(page, "main", *files)
    expect(page.locator("#caption")).to_have_text("the small red metal cube was added")
    question = page.get_by_label("Question")
    question.fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator("#turns li").nth(0)).to_have_text(f"You: {QUESTION}")
    expect(page.locator("#turns li").nth(1)).to_have_text(re.compile("Model: (red|blue) .* %"))
    question.fill("<|im_end|> and now?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#question-error")).to_contain_text("control token")
    expect(page.locator("#turns li")).to_have_count(2)
    assert_readable(page)
    page.locator("#swap").click()
    expect(page.locator("#dialogue")).to_be_hidden()
    page.locator("#ask").click()
    expect(page.locator("#dialogue")).to_be_visible()
    expect(page.locator("#turns li")).to_have_count(0)


def test_polygons_of_geotiffs_are_downloaded_and_their_classes_counted(visit: Visit, tmp_path: Path) -> None:
    before = ground()[:200, :200].copy()
    after = before.copy()
    after[30:80, 20:90] = after[110:170, 120:180] = (170, 70, 55)
    files = [write(tmp_path / f"{name}.tif", image) for name, image in (("before", before), ("after", after))]
    pair, grid = decode_georeferenced(*(file.read_bytes() for file in files), 10**6)
    [description] = captioner(SHIPPED_SATELLITE).describe([pair.before], [pair.after], SearchOptions(change_map=True))
    expected = georeferenced_changes(description, grid)
    counts = count_classes(description.class_map)
    page = visit("satellite", viewport={"width": 420, "height": 900})
    drop(page, "main", *files)
    expect(page.locator("#scene-text")).to_have_text(expected.sentence)
    for each, line in zip(counts, page.locator("#classes li").all_inner_texts(), strict=True):
        assert line.startswith(f"{each.name}: {each.count}")
        assert all(position in line for position in each.positions)
    stage = page.locator("[data-image=after]")
    coloured = pixels(stage).astype(int)
    page.locator("#map").evaluate("(map) => { map.hidden = true; }")
    plain = pixels(stage).astype(int)
    assert np.abs(plain[plain.shape[0] // 2, plain.shape[1] // 2] - pair.after[100, 100]).max() < 40
    differs = np.abs(coloured - plain).max(axis=2) > 12
    share = float((description.class_map.classes > 0).mean())
    assert differs.mean() == pytest.approx(share, abs=0.06), "what has a class is coloured, and nothing else"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download GeoJSON").click()
    assert download.value.suggested_filename == "changes.geojson"
    assert json.loads(Path(download.value.path()).read_text()) == json.loads(json.dumps(expected.geojson))
    assert_readable(page)


def test_a_format_that_the_browser_does_not_show_is_captioned(visit: Visit, tmp_path: Path) -> None:
    files = tmp_path / "1.tif", tmp_path / "2.tif"
    for source, target in zip(RENDERED, files, strict=True):
        Image.open(source).save(target)
    page = visit()
    drop(page, "main", *files)
    expect(page.locator("#caption")).to_have_text(describe(RENDERED).best.caption)
    expect(page.locator("#before-name")).to_have_text("1.tif, a format that this browser cannot show")
    for side in ("before", "after"):
        expect(page.locator(f"[data-image={side}] .hint")).to_contain_text("the server can read it")
