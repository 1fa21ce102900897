"""The page of a sweep: its table beside the paper's, a plot where the paper has a figure, the order, the cost. Also as
Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from idc.evaluation.record import Spread
from idc.report.collect import environment
from idc.report.html import page, write_text
from idc.sweep.config import TOKENS_PER_SECOND
from idc.sweep.summary import ResultRow, SweepResult

_WIDTH, _HEIGHT = 560.0, 300.0
_LEFT, _RIGHT, _TOP, _FOOT = 52.0, 12.0, 10.0, 40.0


def write_sweep(folder: Path, result: SweepResult) -> Path:
    """Write ``report.html``, ``table.md`` and ``sweep.json`` into the sweep's folder. Returns the page's path."""
    record = {**result.model_dump(mode="json"), "environment": environment()}
    write_text(folder / "sweep.json", json.dumps(record, indent=1) + "\n")
    write_text(folder / "table.md", markdown(result) + "\n")
    return write_text(folder / "report.html", render_sweep(result, record["environment"]))


def markdown(result: SweepResult) -> str:
    """The table as GitHub's Markdown, with the lines below it."""
    titles = [column.title for column in result.columns]
    paper = [title for title in titles if any(title in row.published for row in result.rows)]
    head = ["", "seeds", *titles, *(f"{title} (paper)" for title in paper)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in result.rows:
        cells = [_spread(result, title, row) for title in titles]
        printed = [_published(row, title) for title in paper]
        seeds = "quoted" if row.quoted else str(len(row.seeds))
        lines.append("| " + " | ".join([_plain(_name(row)), seeds, *cells, *printed]) + " |")
        lines += [
            f"| {name} |  | {' | '.join([*cells, *('' for _ in paper)])} |" for name, cells in _baselines(result, row)
        ]
    return "\n".join([*lines, "", *(f"- {line}" for line in _sentences(result))])


def render_sweep(result: SweepResult, machine: Mapping[str, str]) -> str:
    """The page as text."""
    note = f"<p>{escape(result.note)}</p>" if result.note else ""
    failed = "".join(f"<li>{escape(label)}: {escape(why)}</li>" for label, why in result.failed.items())
    sections = [
        ("table", "Table", note + table(result)),
        ("order", "Order", _list([found.sentence() for found in result.orderings])),
        ("plot", "Figure", _plot(result)),
        ("search", "Search", _searched(result)),
        ("failed", "Trials without a result", f"<ul>{failed}</ul>" if failed else ""),
        ("cost", "Cost", _list([_cost(result)])),
        ("record", "Settings and machine", _record(result, machine)),
    ]
    return page(result.title, _subtitle(result), sections)


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


def _sentences(result: SweepResult) -> list[str]:
    lines = [found.sentence() for found in result.orderings]
    lines += [f"Baseline: {text}." for text in _floor_texts(result)]
    lines += [f"No result: {label}: {why}" for label, why in result.failed.items()]
    return [*lines, _cost(result)]


def _cost(result: SweepResult) -> str:
    cost = result.cost
    gpus = f" and {cost.gpu_hours:.2f} GPU-hours" if cost.gpu_hours else ""
    return (
        f"Cost: {cost.cpu_hours:.2f} CPU-hours{gpus} for {result.trials} trials, {cost.steps} steps, of which "
        f"{cost.shared_steps} served several trials; this start of the command took {result.seconds / 60:.1f} minutes."
    )


def _name(row: ResultRow) -> str:
    return f"{row.group}: {row.label}" if row.group else row.label


def _baselines(result: SweepResult, after: ResultRow) -> list[tuple[str, list[str]]]:
    """Name and cells of the baselines that stand below a row: those of its group, below the group's last one."""
    if [row for row in result.rows if row.group == after.group][-1] is not after:
        return []
    titles = [column.title for column in result.columns]
    return [
        (
            ": ".join(filter(None, [baseline.group, f"baseline, {baseline.name}"])),
            [f"{baseline.values[title]:.1f}" if title in baseline.values else "" for title in titles],
        )
        for baseline in result.baselines
        if baseline.group == after.group
    ]


def _floor_texts(result: SweepResult) -> list[str]:
    return [
        ": ".join(filter(None, [baseline.group, baseline.name])) + f", {baseline.text}" for baseline in result.baselines
    ]


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _unit(result: SweepResult, title: str) -> str:
    """How a column's numbers are printed."""
    timed = any(column.title == title and column.metric == TOKENS_PER_SECOND for column in result.columns)
    return ".0f" if timed else ".1f"


def _spread(result: SweepResult, title: str, row: ResultRow) -> str:
    value = row.values.get(title)
    if value is None:
        return "–"
    form = _unit(result, title)
    text = f"{value.mean:{form}}"
    return f"{text} ± {value.std:{form}}" if len(value.values) > 1 else text


def _published(row: ResultRow, title: str) -> str:
    """As papers print: with one decimal at least."""
    if title not in row.published:
        return ""
    text = f"{row.published[title]:g}"
    return text if "." in text else f"{text}.0"


def table(result: SweepResult) -> str:
    titles = [column.title for column in result.columns]
    paper = [title for title in titles if any(title in row.published for row in result.rows)]
    groups = (
        f'<tr><th></th><th></th><th colspan="{len(titles)}">here</th><th colspan="{len(paper)}">in the paper</th></tr>'
        if paper
        else ""
    )
    head = "".join(f"<th>{escape(title)}</th>" for title in (*titles, *paper))
    rows = []
    for row in result.rows:
        cells = "".join(
            f'<td title="{escape(_each(row.values.get(title)))}">{_spread(result, title, row)}</td>' for title in titles
        )
        printed = "".join(f'<td class="soft">{_published(row, title)}</td>' for title in paper)
        seeds = "quoted" if row.quoted else str(len(row.seeds))
        kind = "" if row.quoted else ' class="model"'
        rows.append(f'<tr{kind}><td class="text">{escape(_name(row))}</td><td>{seeds}</td>{cells}{printed}</tr>')
        for name, values in _baselines(result, row):
            cells = "".join(f"<td>{value}</td>" for value in [*values, *("" for _ in paper)])
            rows.append(f'<tr><td class="text">{escape(name)}</td><td></td>{cells}</tr>')
    what = " ".join(
        f"<b>{escape(column.title)}</b>: {escape(_what(column.metric, column.subset))}." for column in result.columns
    )
    baselines = "".join(f'<p class="small soft">Baseline: {escape(text)}.</p>' for text in _floor_texts(result))
    return (
        f'<div class="scroll"><table><thead>{groups}<tr><th></th><th>seeds</th>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="small soft">{what}</p>{baselines}'
    )


def _what(metric: str, subset: str | None) -> str:
    if metric == TOKENS_PER_SECOND:
        return (
            "tokens a second, padding counted, from decoded images to words, measured alone after all trials on the "
            "row's first seed"
        )
    return f"{metric} of the test pairs" + (f" with {subset!r}, scored alone" if subset else "")


def _each(value: Spread | None) -> str:
    return ", ".join(f"{one:.2f}" for one in value.values) if value is not None else ""


def _plot(result: SweepResult) -> str:
    """The figure: means with a bar of one standard deviation up and down; the paper's points are open circles."""
    if result.plot is None:
        return ""
    title = result.plot.column
    series: dict[str, list[tuple[float, Spread | None, float | None]]] = {}
    for row in result.rows:
        if row.x is not None:
            point = (row.x, row.values.get(title), row.published.get(title))
            series.setdefault(row.series, []).append(point)
    xs = sorted({x for points in series.values() for x, _, _ in points})
    ys = [
        y
        for points in series.values()
        for _, value, _ in points
        if value is not None
        for y in (value.mean - value.std, value.mean + value.std)
    ]
    if not ys:
        return ""
    low, high = min(ys), max(ys)
    pad = 0.08 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0]) if xs[-1] > xs[0] else 0.5
        inner = _LEFT + 14
        return (
            inner + across * (_WIDTH - inner - _RIGHT - 14),
            _TOP + (high - y) / (high - low) * (_HEIGHT - _TOP - _FOOT),
        )

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + share * (high - low)
        _, y = place(xs[0], value)
        parts.append(f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
    for x in xs:
        across, _ = place(x, low)
        parts.append(f'<text x="{across:.1f}" y="{_HEIGHT - _FOOT + 16:g}" text-anchor="middle">{x:g}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH) / 2:g}" y="{_HEIGHT - 6:g}" text-anchor="middle">{escape(result.plot.x)}</text>'
    )
    legend = []
    for number, (name, points) in enumerate(series.items()):
        color = f"var(--c{number % 6})"
        own = sorted((x, spread) for x, spread, _ in points if spread is not None)
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, spread.mean) for x, spread in own))
        parts.append(f'<polyline style="stroke:{color}" points="{line}"/>')
        for x, spread in own:
            across, up = place(x, spread.mean)
            parts.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3.5" style="fill:{color}"/>')
            if len(spread.values) > 1:
                (_, top), (_, foot) = place(x, spread.mean + spread.std), place(x, spread.mean - spread.std)
                parts.append(
                    f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{top:.1f}" y2="{foot:.1f}" style="stroke:{color}"/>'
                )
        legend.append(f'<span style="--own:{color}">{escape(name or title)}</span>')
    label = f"{title} over {result.plot.x}"
    printed = ", ".join(
        f"{escape(name or title)} at {x:g}: {there:g}"
        for name, points in series.items()
        for x, _, there in points
        if there is not None
    )
    paper = f'<p class="small soft">The paper prints these of the figure\'s numbers: {printed}.</p>' if printed else ""
    return (
        f'<div class="chart"><b class="small">{escape(label)}</b>'
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
        f'<div class="legend">{"".join(legend)}</div></div>{paper}'
    )


def _searched(result: SweepResult) -> str:
    if not result.searched:
        return ""
    keys = list(dict.fromkeys(key for trial in result.searched for key in trial.settings))
    head = "".join(f"<th>{escape(key)}</th>" for key in keys)
    rows = []
    for trial in result.searched:
        cells = "".join(f"<td>{escape(_short(trial.settings.get(key, '')))}</td>" for key in keys)
        value = f"{100 * trial.value:.1f}" if trial.value is not None else "–"
        rows.append(f'<tr><td>{value}</td><td>{trial.step}</td><td class="text">{escape(trial.state)}</td>{cells}</tr>')
    finished = sum(trial.state == "finished" for trial in result.searched)
    return (
        f"<p>{len(result.searched)} trials, {finished} of them to their end, the best validation "
        f"{escape(str(result.search_metric))} first (times 100). The test split was scored for the best one alone: it "
        "is the row of the table.</p>"
        f'<div class="scroll"><table><thead><tr><th>{escape(str(result.search_metric))}</th><th>step</th><th>end</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _record(result: SweepResult, machine: Mapping[str, str]) -> str:
    facts = "".join(
        f'<tr><td>{escape(key)}</td><td class="text">{escape(value)}</td></tr>' for key, value in machine.items()
    )
    rows = {row.label: row.settings for row in result.rows}
    blocks = "".join(
        f"<details><summary>{title}</summary><pre>{escape(json.dumps(value, indent=1))}</pre></details>"
        for title, value in (("Settings of all trials", result.settings), ("Settings of the rows", rows))
    )
    return f'{blocks}<h3>Machine</h3><div class="scroll"><table><tbody>{facts}</tbody></table></div>'


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
