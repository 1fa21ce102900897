"""The report in a real browser: it fits a telephone, makes no request, and its pictures decode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from idc.report.run import write_run_page
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

    return write_run_page(tmp_path / "report.html", full())


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_and_loads_nothing(width: int, page: Path, browser: Browser) -> None:
    shown = browser.new_page(viewport={"width": width, "height": 800})
    shown.goto(page.as_uri())
    assert too_wide(shown) == []
    assert shown.evaluate(DECODED) == page.read_text(encoding="utf-8").count("<img ")
    assert shown.evaluate(REQUESTS) == 0
    shown.close()


def test_details_are_folded_and_no_table_is_cut_on_a_usual_screen(tmp_path: Path, browser: Browser) -> None:
    from tests.report.test_run_page import claimed, full, item, logs

    model = claimed(("the red cube is gone", "the red cube is missing"))
    many = [item(pair_id=f"p{number}") for number in range(12)]
    report = replace(
        full(), evaluations=[model], others={"Rival": [model]}, opening=many[:6],
        galleries=dict.fromkeys(("Drawn", "Best", "Worst"), many),
        logs={name: logs()["stage 1"] for name in ("tokenizer", "stage 1", "stage 2")},
    )  # fmt: skip
    shown = browser.new_page(viewport={"width": 1440, "height": 900})
    shown.goto(write_run_page(tmp_path / "report.html", report).as_uri())
    assert shown.evaluate("document.documentElement.scrollHeight") < 5 * 900
    shown.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert shown.evaluate("document.documentElement.scrollHeight") > 10 * 900, "they hold most of the page"
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert shown.locator(".scroll").evaluate_all(cut) == []
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
