"""The report in Chromium: it fits the screen, follows the reader's colours, makes no request, its pictures decode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from idc.util.atomic import write_text
from tests.browser.driving import assert_readable
from tests.report.test_run_page import full

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

DECODED = """async () => {
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map((image) => image.decode()));
  return [...document.images].filter((image) => image.naturalWidth > 0).length;
}"""
REQUESTS = """() => performance.getEntriesByType("resource").filter((one) => !one.name.startsWith("data:")).length"""


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_it_is_readable_and_loads_nothing(
    width: int, scheme: Literal["light", "dark"], tmp_path: Path, browser: Browser
) -> None:
    file = write_text(tmp_path / "report.html", full().html())
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(file.as_uri())
    assert page.evaluate(DECODED) == file.read_text(encoding="utf-8").count("<img ")
    assert_readable(page, scheme)
    assert page.evaluate(REQUESTS) == 0
    page.close()
