"""The leaderboard in Chromium: its own policy lets its script sort, and it makes no request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from idc.report.leaderboard.boards import gather_boards
from idc.report.leaderboard.leaderboard_folder import write_leaderboard
from tests.report.test_leaderboard import a_run, pairs_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

COLUMN = """(name) => {
  const table = document.querySelector("table.sortable"), heads = [...table.tHead.rows[0].cells];
  const index = heads.findIndex((head) => head.textContent === name);
  return {
    orders: heads.filter((head) => head.hasAttribute("aria-sort")).map((head) => [head.textContent, head.ariaSort]),
    values: [...table.tBodies[0].rows].map((row) => row.cells[index].dataset.value),
  };
}"""


def sort_by(page: Page, name: str, order: str) -> list[str]:
    """The column after its heading was pressed by the keyboard."""
    page.locator("table.sortable").first.locator("th button").get_by_text(name, exact=True).press("Enter")
    column: dict[str, Any] = page.evaluate(COLUMN, name)
    assert column["orders"] == [[name, order]]
    return list(column["values"])


def test_headings_sort(tmp_path: Path, browser: Browser) -> None:
    pairs_folder(tmp_path / "data/clevr", {"format": "clevr_change"})
    for seed in range(2):
        a_run(tmp_path, f"fine-{seed}", seed, 1.0 + seed)
    write_leaderboard(tmp_path / "out", gather_boards([str(tmp_path / "runs")]))
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto((tmp_path / "out/clevr_change.html").as_uri())
    for order, sign in (("descending", -1), ("ascending", 1)):
        values = sort_by(page, "BLEU-4", order)
        numbers = [sign * float(value) for value in values if value]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 10
        assert values.index("") == len(numbers), "rows without the number come last"
    assert {"procap fine", "ProCap"} <= set(sort_by(page, "method", "ascending"))
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    page.close()
