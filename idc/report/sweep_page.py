"""The page of a sweep: its table with the paper's numbers, a figure where the paper has one, and the cost. Also as
Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from idc.evaluation.record import Spread
from idc.evaluation.significance import SeededEffect
from idc.report.page import (
    SCORES_NOTE,
    Bullets,
    Cell,
    Code,
    Facts,
    Figure,
    Page,
    PageBlock,
    Section,
    Table,
    Text,
    number,
)
from idc.report.run_page import environment
from idc.sweep.config import JUDGE, QUESTIONS, RIGHT_TYPE, TOKENS_PER_SECOND, TRAINING_COSTS
from idc.sweep.summary import ResultRow, SweepResult
from idc.util.atomic import write_text

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, WIDTH - 16, 10.0, HEIGHT - 24
"""Edges of the plotted area in pixels; y points down."""

_MEANINGS = {
    RIGHT_TYPE: "share of the captions that name the right change type",
    "right_object": "share of captions of changed test pairs that name the right object, by all attributes they name",
    "right_attribute": "share of the attributes named in captions of changed test pairs that are the changed object's",
    "difference_f1": "F1 of the differences that captions claim, against the true lists (docs/evaluation.md)",
    "invented_share": "share of the differences that captions claim which is invented",
    "training_samples_per_second": "samples a second of the row's training, over its whole length",
    "training_memory": "peak memory of the row's training in GiB: of the GPU of its first worker, else of its process",
}


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
    chart = chart_of_means(title, result.plot.x, series)
    return [Figure([chart], note=note)] if chart else []


def _search(result: SweepResult) -> list[PageBlock]:
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


def sweep_table(result: SweepResult) -> Table:
    """The columns of a sweep, differences from the control row, the paper's numbers; baselines after the last row of
    their group."""
    titles = [column.title for column in result.columns]
    effects = [title for title in titles if any(title in row.effects for row in result.rows)]
    paper = [title for title in titles if any(title in row.published for row in result.rows)]
    last = {row.group: row for row in result.rows}
    rows, ours = list[list[object]](), []
    for row in result.rows:
        ours += [] if row.quoted else [len(rows)]
        cells = [Cell(_printed(result, title, row.values.get(title)), title=_each(row.values.get(title)))
                 for title in titles]  # fmt: skip
        rows.append([
            Cell(_joined(row.group, row.label), wide=True), "quoted" if row.quoted else str(len(row.seeds)), *cells,
            *(_effect(row.effects.get(title)) for title in effects), *(_published(row, title) for title in paper),
        ])  # fmt: skip
        for baseline in result.baselines if last[row.group] is row else ():
            if baseline.group == row.group:
                numbers = [f"{baseline.values[title]:.1f}" if title in baseline.values else "" for title in titles]
                name = Cell(_joined(baseline.group, f"baseline, {baseline.name}"), wide=True)
                rows.append([name, "", *numbers, *[""] * len(effects + paper)])
    head = ["row", "seeds", *titles, *(f"{title}, less {result.control}" for title in effects)]
    return Table([*head, *(f"{title} (paper)" for title in paper)], rows, bold=ours)


def meanings(result: SweepResult) -> list[str]:
    """What each column measures."""
    lines = [
        f"{column.title}: {_meaning(column.metric, column.subset)}{'; lower is better' * column.lower_is_better}."
        for column in result.columns
    ]
    if seeds := [effect.seeds for row in result.rows for effect in row.effects.values()]:
        over = "seeds and pairs" if min(seeds) > 1 else "the pairs alone, for these trainings and no others"
        lines.append(f"less {result.control}: difference from that row, with its 95 % interval over {over}.")
    return lines


def baseline_lines(result: SweepResult) -> list[str]:
    """How each baseline was made."""
    return [f"Baseline: {_joined(baseline.group, baseline.name)}, {baseline.text}." for baseline in result.baselines]


def sweep_markdown(result: SweepResult) -> str:
    """The table as GitHub's Markdown, with the lines below it."""
    notes = baseline_lines(result)
    notes += [f"No result: {label}: {why}" for label, why in result.failed.items()]
    return "\n".join([sweep_table(result).markdown(), "", *(f"- {note}" for note in [*notes, cost(result)])])


def cost(result: SweepResult) -> str:
    """The cost of the sweep, in words."""
    spent = result.cost
    gpus = f" and {spent.gpu_hours:.2f} GPU-hours" if spent.gpu_hours else ""
    return (
        f"Cost: {spent.cpu_hours:.2f} CPU-hours{gpus} for {result.trials} trials, {spent.steps} steps, of which "
        f"{spent.shared_steps} served several trials; this start of the command took {result.seconds / 60:.1f} minutes."
    )


def _joined(group: str, name: str) -> str:
    return f"{group}: {name}" if group else name


def _printed(result: SweepResult, title: str, value: Spread | None) -> str:
    if value is None:
        return "–"
    metric = next(column.metric for column in result.columns if column.title == title)
    form = {TOKENS_PER_SECOND: ".0f", **dict.fromkeys(TRAINING_COSTS, ".2f")}.get(metric, ".1f")
    text = f"{value.mean:{form}}"
    return f"{text} ± {value.std:{form}}" if len(value.values) > 1 else text


def _effect(effect: SeededEffect | None) -> str:
    if effect is None:
        return ""
    low, high = effect.interval.low, effect.interval.high
    return f"{100 * effect.effect:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _each(value: Spread | None) -> str:
    return ", ".join(f"{single:.2f}" for single in value.values) if value is not None else ""


def _published(row: ResultRow, title: str) -> str:
    """As papers print: with at least one decimal."""
    if title not in row.published:
        return ""
    text = f"{row.published[title]:g}"
    return text if "." in text else f"{text}.0"


def _meaning(metric: str, subset: str | None) -> str:
    if metric == TOKENS_PER_SECOND:
        return (
            "tokens per second, padding counted, from decoded images to words, measured alone after all trials on the "
            "row's first seed"
        )
    if metric in _MEANINGS:
        return _MEANINGS[metric]
    if metric.startswith(tuple(f"{kind}/" for kind in QUESTIONS)):
        kind, _, measure = metric.partition("/")
        of = f", of {subset}s" if subset else ""
        return f"{measure} of the answers of type {kind}{of}, times 100"
    if metric == JUDGE:
        part = f" with {subset!r}" if subset else ""
        return f"mean of a language model's scores of the captions of the test pairs{part}, 0 to 100"
    return f"{metric} of the test pairs" + (f" with {subset!r}, scored alone" if subset else "")


def chart_of_means(title: str, x_title: str, series: Mapping[str, Sequence[tuple[float, Spread]]]) -> Markup:
    """Means over x, a line per name, each with a bar of one standard deviation up and down; empty without a value."""
    series = {name or title: sorted(points, key=lambda point: point[0]) for name, points in series.items() if points}
    if not series:
        return Markup()
    ticks = sorted({x for points in series.values() for x, _ in points})
    ends = [end for points in series.values() for _, y in points for end in (y.mean - y.std, y.mean + y.std)]
    across, up = _scale(ticks[0], ticks[-1], LEFT, RIGHT), _scale(min(ends), max(ends), BOTTOM, TOP)
    parts = [_text(across(x), HEIGHT - 6, f"{x:g}") for x in ticks]
    for value in np.linspace(min(ends), max(ends), 5).tolist():
        line = Markup('<line class="grid" x1="{:g}" x2="{:g}" y1="{:.1f}" y2="{:.1f}"/>')
        parts += [line.format(LEFT, RIGHT, up(value), up(value)), _text(LEFT - 5, up(value) + 4, number(value), "end")]
    colors = {name: f"var(--c{number_ % 6})" for number_, name in enumerate(series)}
    for name, points in series.items():
        path = " ".join(f"{across(x):.1f},{up(y.mean):.1f}" for x, y in points)
        parts.append(Markup('<polyline style="stroke:{}" points="{}"/>').format(colors[name], path))
        for x, y in points:
            circle = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.5" style="fill:{}"/>')
            parts.append(circle.format(across(x), up(y.mean), colors[name]))
            if len(y.values) > 1:
                bar = Markup('<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}" style="stroke:{3}"/>')
                parts.append(bar.format(across(x), up(y.mean + y.std), up(y.mean - y.std), colors[name]))
    names = [Markup('<span style="--own:{}">{}</span>').format(color, name) for name, color in colors.items()]
    label = f"{title} over {x_title}"
    return Markup(
        '<div class="chart"><b class="small">{}</b><svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>'
        '<div class="legend">{}</div></div>'
    ).format(label, WIDTH, HEIGHT, label, Markup().join(parts), Markup().join(names))


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From values to pixels; to the middle if there is a single value."""
    return lambda value: start + ((value - low) / (high - low) if high > low else 0.5) * (end - start)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
