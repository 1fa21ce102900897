"""The page of a sweep: its table with the paper's numbers, a figure where the paper has one, and the cost. Also as
Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idc.evaluation.record import Spread
from idc.report import charts
from idc.report.collect import environment
from idc.report.page import SCORES_NOTE, Bullets, Cell, Code, Facts, Figure, Page, PageBlock, Section, Table, Text
from idc.report.sweep.sweep_table import baseline_lines, cost, meanings, sweep_markdown, sweep_table
from idc.sweep.summary import SweepResult
from idc.util.atomic import write_text


def write_sweep(folder: Path, result: SweepResult) -> Path:
    """Write ``report.html``, ``table.md`` and ``sweep.json`` into the sweep's folder. Returns the page's path."""
    record = {**result.model_dump(mode="json"), "environment": environment()}
    write_text(folder / "sweep.json", json.dumps(record, indent=1) + "\n")
    write_text(folder / "table.md", sweep_markdown(result) + "\n")
    return write_text(folder / "report.html", sweep_page(result, record["environment"]).html())


def sweep_page(result: SweepResult, machine: Mapping[str, str]) -> Page:
    """The page of a sweep that ran on ``machine``."""
    settings = {
        "Settings of all trials": result.settings,
        "Settings of the rows": {row.label: row.settings for row in result.rows},
    }
    codes = [Code(json.dumps(values, indent=1), title=title, folded=True) for title, values in settings.items()]
    below = Bullets([*meanings(result), *baseline_lines(result)])
    return Page(result.title, _subtitle(result), [
        Section("Table", [Text(note=result.note), sweep_table(result), below]),
        Section("Figure", _figure(result)),
        Section("Search", _search(result)),
        Section("Trials without a result", [Bullets([f"{label}: {why}" for label, why in result.failed.items()])]),
        Section("Cost", [Bullets([cost(result)])]),
        Section("Settings and machine", [*codes, Facts(machine, title="Machine", folded=True)]),
    ], SCORES_NOTE)  # fmt: skip


def _subtitle(result: SweepResult) -> str:
    parts = [result.paper]
    if result.split is not None:
        parts.append(f"{result.pairs} pairs of the split {result.split}")
    seeds = {len(row.seeds) for row in result.rows}
    if seeds and max(seeds) > 1:
        parts.append(f"mean ± standard deviation over {max(seeds)} seeds")
    elif seeds:
        parts.append("one seed")
    return "; ".join(part for part in parts if part)


def _figure(result: SweepResult) -> list[PageBlock]:
    """The chart of the paper's figure, and the numbers that the paper prints of it."""
    if result.plot is None:
        return []
    title = result.plot.column
    series: dict[str, list[tuple[float, Spread]]] = {}
    printed: dict[str, list[str]] = {}
    for row in result.rows:
        if row.x is None:
            continue
        points = series.setdefault(row.series, [])
        points += [(row.x, value)] if (value := row.values.get(title)) is not None else []
        if title in row.published:
            text = f"{row.series or title} at {row.x:g}: {row.published[title]:g}"
            printed.setdefault(row.series, []).append(text)
    texts = [text for name in series for text in printed.get(name, ())]
    note = f"The paper prints these of the figure's numbers: {', '.join(texts)}." if texts else ""
    chart = charts.means(title, result.plot.x, series)
    return [Figure([chart], note=note)] if chart else []


def _search(result: SweepResult) -> list[PageBlock]:
    """The trials of a search, best first."""
    settings = list(dict.fromkeys(key for trial in result.searched for key in trial.settings))
    rows = [
        [
            f"{100 * trial.value:.1f}" if trial.value is not None else "–", str(trial.step),
            Cell(trial.state, wide=True), *(_short(trial.settings.get(key, "")) for key in settings),
        ]
        for trial in result.searched
    ]  # fmt: skip
    finished = sum(trial.state == "finished" for trial in result.searched)
    note = (
        f"{len(rows)} trials, {finished} of them to their end, the best validation {result.search_metric} first (times "
        "100). The test split was scored for the best one alone: it is the row of the table."
    )
    return [Table([str(result.search_metric), "step", "end", *settings], rows, note=note)]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
