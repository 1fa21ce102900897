"""The page of a sweep: its table with the paper's numbers, the order of its rows, a figure where the paper has one, and
the cost. Also as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idc.atomic import write_text
from idc.evaluation.record import Spread
from idc.report import charts
from idc.report.collect import environment
from idc.report.page import render_template
from idc.report.sweep.sweep_table import cost, sweep_markdown, table_of
from idc.sweep.summary import SweepResult


def write_sweep(folder: Path, result: SweepResult) -> Path:
    """Write ``report.html``, ``table.md`` and ``sweep.json`` into the sweep's folder. Returns the page's path."""
    record = {**result.model_dump(mode="json"), "environment": environment()}
    write_text(folder / "sweep.json", json.dumps(record, indent=1) + "\n")
    write_text(folder / "table.md", sweep_markdown(result) + "\n")
    return write_text(folder / "report.html", render_sweep(result, record["environment"]))


def render_sweep(result: SweepResult, machine: Mapping[str, str]) -> str:
    """The page as text."""
    return render_template(
        "sweep.html",
        title=result.title,
        subtitle=_subtitle(result),
        note=result.note,
        table=table_of(result),
        orders=[ordering.sentence() for ordering in result.orderings],
        failed=[f"{label}: {why}" for label, why in result.failed.items()],
        cost=cost(result),
        search=_search(result),
        machine=machine,
        settings={
            "Settings of all trials": json.dumps(result.settings, indent=1),
            "Settings of the rows": json.dumps({row.label: row.settings for row in result.rows}, indent=1),
        },
        **_figure(result),
    )


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


def _figure(result: SweepResult) -> dict[str, Any]:
    """The chart of the paper's figure, and the numbers that the paper prints of it."""
    if result.plot is None:
        return {"figure": "", "figure_printed": ""}
    title = result.plot.column
    series: dict[str, list[tuple[float, Spread | None]]] = {}
    printed: dict[str, list[str]] = {}
    for row in result.rows:
        if row.x is not None:
            series.setdefault(row.series, []).append((row.x, row.values.get(title)))
            if title in row.published:
                text = f"{row.series or title} at {row.x:g}: {row.published[title]:g}"
                printed.setdefault(row.series, []).append(text)
    return {
        "figure": charts.means(title, result.plot.x, series),
        "figure_printed": ", ".join(text for name in series for text in printed.get(name, ())),
    }


def _search(result: SweepResult) -> dict[str, Any] | None:
    """The trials of a search, best first."""
    if not result.searched:
        return None
    settings = list(dict.fromkeys(key for trial in result.searched for key in trial.settings))
    rows = [
        (
            f"{100 * trial.value:.1f}" if trial.value is not None else "–",
            trial.step,
            trial.state,
            [_short(trial.settings.get(key, "")) for key in settings],
        )
        for trial in result.searched
    ]
    finished = sum(trial.state == "finished" for trial in result.searched)
    return {"metric": str(result.search_metric), "finished": finished, "settings": settings, "rows": rows}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
