"""The leaderboard in a real browser: its own policy lets its script sort, it fits a telephone, it makes no request."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path

import pytest

from idc.report.leaderboard import gather
from idc.report.leaderboard_page import write_leaderboard

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "report")]

pytestmark = pytest.mark.slow

DRIVER = """<!doctype html>
<iframe id="f" src="out/clevr_change.html" style="width:WIDTHpx;height:800px;border:0"></iframe>
<script>
document.getElementById("f").addEventListener("load", (event) => {
  const view = event.target.contentWindow, page = view.document;
  const table = page.querySelector("table.sortable"), heads = [...table.tHead.rows[0].cells];
  const column = (name) => heads.findIndex((head) => head.textContent === name);
  const values = (name) => [...table.tBodies[0].rows].map((row) => row.cells[column(name)].dataset.value);
  const press = (name) => {
    const button = heads[column(name)].querySelector("button");
    button.focus();
    const focused = page.activeElement === button;
    button.click();
    return {focused, order: heads[column(name)].getAttribute("aria-sort"), values: values(name)};
  };
  const found = {first: press("BLEU-4"), again: press("BLEU-4"), names: press("method"),
    marked: heads.filter((head) => head.hasAttribute("aria-sort")).length,
    wide: page.documentElement.scrollWidth, requests: view.performance.getEntriesByType("resource").length};
  document.title = JSON.stringify(found);
});
</script>"""
"""Drives the page, which is as it was written, from outside."""


@pytest.mark.parametrize("width", [360, 1280])
def test_headings_sort_and_the_page_fits(width: int, tmp_path: Path) -> None:
    from test_leaderboard import a_run, pairs_folder
    from test_report import browse

    pairs_folder(tmp_path / "data/clevr", {"format": "clevr_change"})
    for seed in range(2):
        a_run(tmp_path, f"fine-{seed}", seed, 1.0 + seed)
    write_leaderboard(tmp_path / "out", gather([str(tmp_path / "runs")]))
    (tmp_path / "outer.html").write_text(DRIVER.replace("WIDTH", str(width)), encoding="utf-8")
    flags = ("--dump-dom", "--allow-file-access-from-files", "--window-size=1400,900", "--virtual-time-budget=8000")
    dumped = browse(tmp_path, tmp_path / "outer.html", *flags)
    title = re.search(r"<title>(.*?)</title>", dumped)
    assert title is not None, dumped[:2000]
    found = json.loads(html.unescape(title[1]))

    def numbers(values: list[str]) -> list[float]:
        empty = [value == "" for value in values]
        assert empty == sorted(empty), "rows without the number stand last"
        return [float(value) for value in values if value]

    first, again = numbers(found["first"]["values"]), numbers(found["again"]["values"])
    assert (found["first"]["order"], found["again"]["order"]) == ("descending", "ascending")
    assert first == sorted(first, reverse=True)
    assert again == sorted(again)
    assert len(set(first)) > 10
    assert found["names"]["order"] == "ascending"
    assert {"procap fine", "ProCap"} <= set(found["names"]["values"])
    assert all(found[press]["focused"] for press in ("first", "again", "names"))
    assert found["marked"] == 1
    assert found["wide"] <= width
    assert found["requests"] == 0
