"""The report in a real browser: it fits a telephone, makes no request, and its pictures decode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from idc.atomic import write_text
from tests.browser.driving import CONTRASTS, too_wide

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

DECODED = """async () => {
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map((image) => image.decode()));
  return [...document.images].filter((image) => image.naturalWidth > 0).length;
}"""
REQUESTS = """() => performance.getEntriesByType("resource").filter((one) => !one.name.startsWith("data:")).length"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    from tests.report.test_run_page import full

    return write_text(tmp_path / "report.html", full().html())


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_and_loads_nothing(width: int, page: Path, browser: Browser) -> None:
    shown = browser.new_page(viewport={"width": width, "height": 800})
    shown.goto(page.as_uri())
    assert too_wide(shown) == []
    assert shown.evaluate(DECODED) == page.read_text(encoding="utf-8").count("<img ")
    assert shown.evaluate(REQUESTS) == 0
    shown.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_readers_colours(scheme: Literal["light", "dark"], page: Path, browser: Browser) -> None:
    shown = browser.new_page(color_scheme=scheme)
    shown.goto(page.as_uri())
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(paper.removeprefix("rgb(").split(",")[0]) < 60) == (scheme == "dark"), paper
    contrasts = shown.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [found for found in contrasts if found[0] < 4.5] == []
    shown.close()
