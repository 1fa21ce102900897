"""The page of a sweep: its numbers with the paper's, baselines, figure, order, cost; well formed, loads nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

from idc.evaluation.record import Interval, spread
from idc.evaluation.significance import SeededEffect
from idc.report.sweep_page import sweep_markdown, sweep_page, write_sweep
from idc.sweep.config import ColumnConfig, PlotConfig
from idc.sweep.summary import BaselineRow, Cost, ResultRow, SearchedTrial, SweepResult
from tests.report.html_page import HtmlPage


def result(**changes: object) -> SweepResult:
    rows = [
        ResultRow(label="k = 1", settings={"build.num_keyframes": 1}, seeds=[0, 1],
                  published={"C": 128.5, "TPS": 766.02},
                  values={"C": spread([90.0, 94.0]), "TPS": spread([812.4])}, series="ours", x=1),
        ResultRow(label="k = 2 | <two>", settings={}, seeds=[0, 1], published={"C": 135.6, "TPS": 699.04},
                  values={"C": spread([101.0, 103.0]), "TPS": spread([700.6])}, series="ours", x=2),
        ResultRow(label="DUDA", settings={}, seeds=[], published={"C": 112.3}, quoted=True,
                  values={"C": None, "TPS": None}),
    ]  # fmt: skip
    columns = [ColumnConfig(title="TPS", metric="tokens_per_second"), ColumnConfig(title="C", metric="CIDEr")]
    values = {
        "name": "table03", "title": "Number of key frames", "paper": "ProCap, table 3", "note": "Rendered <pairs>.",
        "system": "procap", "plot": PlotConfig(column="C", x="key frames k"),
        "columns": columns, "rows": rows,
        "baselines": [BaselineRow(name="constant", group="", values={"C": 89.1}, text="one for all")],
        "cost": Cost(cpu_hours=0.5, gpu_hours=0.25, steps=9, shared_steps=2), "trials": 5,
        "failed": {"k = 4, seed 0": "ValueError: no"}, "searched": [], "search_metric": None, "split": "test",
        "pairs": 440, "settings": {"pairs": "data/pairs"}, "seconds": 90.0, **changes,
    }  # fmt: skip
    return SweepResult.model_validate(values)


def test_the_files_have_all_numbers_and_load_nothing(tmp_path: Path) -> None:
    text = write_sweep(tmp_path / "table03", result()).read_text(encoding="utf-8")
    page = HtmlPage(text)
    for wanted in (
        "440 pairs of the split test", "over 2 seeds", "92.0 ± 2.8", "812", "766.02", "k = 2 | <two>", "quoted",
        "112.3", "Rendered <pairs>.", "baseline, constant", "one for all", "89.1",
        "0.50 CPU-hours and 0.25 GPU-hours for 5 trials, 9 steps",
        "2 served several trials", "k = 4, seed 0: ValueError: no", "ours at 1: 128.5",
    ):  # fmt: skip
        assert wanted in page.text, wanted
    table = (tmp_path / "table03" / "table.md").read_text(encoding="utf-8")
    assert "| k = 1 | 2 | 812 | 92.0 ± 2.8 | 766.02 | 128.5 |" in table
    assert "| k = 2 \\| <two> | 2 |" in table
    record = json.loads((tmp_path / "table03" / "sweep.json").read_text(encoding="utf-8"))
    assert record["rows"][0]["values"]["C"]["values"] == [90.0, 94.0]
    assert "cores" in record["environment"]
    (x1, y1), (x2, y2) = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)
    assert float(x1) < float(x2)
    assert float(y1) > float(y2), "more CIDEr is higher up"
    assert not re.search(r"<script|https?://", text)


def test_a_search_lists_its_trials() -> None:
    searched = [
        SearchedTrial(settings={"lr": 0.00123456}, value=0.91, step=200, state="finished"),
        SearchedTrial(settings={"lr": 0.5}, value=None, step=0, state="ValueError: the loss is nan"),
    ]
    page = HtmlPage(sweep_page(result(searched=searched, search_metric="CIDEr"), {}).html())
    for wanted in ("2 trials, 1 of them to their end", "91.0", "0.001235", "ValueError: the loss is nan"):
        assert wanted in page.text, wanted


def test_differences_from_the_control_row_have_columns() -> None:
    effect = SeededEffect(seeds=2, pairs=440, effect=0.1, interval=Interval(low=-0.012, high=0.212))
    rows = result().rows
    rows[1] = rows[1].model_copy(update={"effects": {"C": effect}})
    compared = result(rows=rows, control="k = 1")
    shown = sweep_markdown(compared)
    assert "| TPS | C | C, less k = 1 | TPS (paper) |" in shown
    assert "| 102.0 ± 1.4 | +10.0 (-1.2 to +21.2) | 699.04 |" in shown
    assert "| baseline, constant |  |  | 89.1 |  |  |  |" in shown
    text = HtmlPage(sweep_page(compared, {}).html()).text
    assert "+10.0 (-1.2 to +21.2)" in text
    assert "over seeds and pairs" in text
