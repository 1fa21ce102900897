"""The leaderboard in a real browser: its own policy lets its script sort, it fits a telephone, it makes no request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from idc.report.leaderboard.boards import gather_boards
from idc.report.leaderboard.leaderboard_folder import write_leaderboard

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

COLUMN = """(name) => {
  const table = document.querySelector("table.sortable"), heads = [...table.tHead.rows[0].cells];
  const place = heads.findIndex((head) => head.textContent === name);
  return {
    order: heads[place].getAttribute("aria-sort"),
    values: [...table.tBodies[0].rows].map((row) => row.cells[place].dataset.value),
    marked: heads.filter((head) => head.hasAttribute("aria-sort")).length,
  };
}"""


def press(page: Page, name: str) -> dict[str, Any]:
    """The column after its heading was pressed by the keyboard."""
    button = page.locator("table.sortable").first.locator("th button").get_by_text(name, exact=True)
    button.press("Enter")
    found: dict[str, Any] = page.evaluate(COLUMN, name)
    return found


def numbers(values: list[str]) -> list[float]:
    empty = [value == "" for value in values]
    assert empty == sorted(empty), "rows without the number come last"
    return [float(value) for value in values if value]


def test_headings_sort(tmp_path: Path, browser: Browser) -> None:
    from tests.report.test_leaderboard import a_run, pairs_folder

    pairs_folder(tmp_path / "data/clevr", {"format": "clevr_change"})
    for seed in range(2):
        a_run(tmp_path, f"fine-{seed}", seed, 1.0 + seed)
    write_leaderboard(tmp_path / "out", gather_boards([str(tmp_path / "runs")]))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto((tmp_path / "out/clevr_change.html").as_uri())
    cut = page.locator(".scroll").evaluate_all("(all) => all.filter((one) => one.scrollWidth > one.clientWidth).length")
    assert cut == 0, "on a usual screen"
    found, again, names = press(page, "BLEU-4"), press(page, "BLEU-4"), press(page, "method")
    assert (found["order"], again["order"], names["order"]) == ("descending", "ascending", "ascending")
    assert numbers(found["values"]) == sorted(numbers(found["values"]), reverse=True)
    assert numbers(again["values"]) == sorted(numbers(again["values"]))
    assert len(set(found["values"])) > 10
    assert {"procap fine", "ProCap"} <= set(names["values"])
    assert names["marked"] == 1
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    page.close()
