"""Charts as SVG: curves of a training, means over a setting, histograms, shares with intervals. They are
drawn on a :class:`Plot`; the parts with which :mod:`idc.report.forest_chart` draws too are public. Colours are those of
``page.css``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from idc.evaluation.record import Spread
from idc.report.page import number

_POINTS = 300
_LABEL = 28
"""Characters of a label of a row."""
_BARS = 40
"""Bars of a histogram at most, without the one of all longer captions."""


@dataclass(frozen=True)
class Plot:
    """The plotted area: its edges in pixels (y points down), and the values at these edges."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0]) if self.x[1] > self.x[0] else 0.5
        up = (y - self.y[0]) / (self.y[1] - self.y[0]) if self.y[1] > self.y[0] else 0.5
        return self.left + across * (self.right - self.left), self.top + (1 - up) * (self.bottom - self.top)


def curves(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> Markup:
    """Values by step, a line per name with its last value; empty if no line has two points."""
    lines = {name: points for name, all_ in lines.items() if len(points := _thinned(all_)) > 1}
    if not lines:
        return Markup()
    steps, values = zip(*(point for points in lines.values() for point in points), strict=True)
    low, high = min(values), max(values)
    low = min(low, 0.0) if low >= 0 and low < 0.5 * high else low
    width, height = 360.0, 190.0
    plot = Plot(46, width - 8, 8, height - 22, (min(steps), max(steps)), (low, high))
    parts = [grid_lines(plot, plot.left, plot.right, 2, number)]
    parts.append(text_at(plot.left, height - 5, f"{min(steps):,}", "start"))
    parts.append(text_at(plot.right, height - 5, f"step {max(steps):,}", "end"))
    parts += [polyline([plot.to_pixels(*point) for point in points], i) for i, points in enumerate(lines.values())]
    legend = [f"{name} {number(points[-1][1])}" for name, points in lines.items()]
    return _chart(title, f"{title} by step", (width, height), parts, legend)


def means(title: str, x_title: str, series: Mapping[str, Sequence[tuple[float, Spread | None]]]) -> Markup:
    """Means over x, a line per name, each with a bar of one standard deviation up and down; empty without a value."""
    lines = {
        name: sorted(((x, y) for x, y in points if y is not None), key=lambda point: point[0])
        for name, points in series.items()
    }
    ends = [end for points in lines.values() for _, y in points for end in (y.mean - y.std, y.mean + y.std)]
    if not ends:
        return Markup()
    xs = sorted({x for points in series.values() for x, _ in points})
    pad = 0.08 * (max(ends) - min(ends)) or 1.0
    width, height, left, right = 560.0, 300.0, 52.0, 548.0
    plot = Plot(left + 14, right - 14, 10, height - 40, (xs[0], xs[-1]), (min(ends) - pad, max(ends) + pad))
    parts = [grid_lines(plot, left, right, 4, "{:.1f}".format)]
    parts += [text_at(plot.to_pixels(x, plot.y[0])[0], plot.bottom + 16, f"{x:g}") for x in xs]
    parts.append(text_at((left + width) / 2, height - 6, x_title))
    for i, points in enumerate(lines.values()):
        parts.append(polyline([plot.to_pixels(x, y.mean) for x, y in points], i))
        for x, y in points:
            across, up = plot.to_pixels(x, y.mean)
            circle = '<circle cx="{:.1f}" cy="{:.1f}" r="3.5" style="fill:{}"/>'
            parts.append(Markup(circle).format(across, up, line_color(i)))
            if len(y.values) > 1:
                top, foot = plot.to_pixels(x, y.mean + y.std)[1], plot.to_pixels(x, y.mean - y.std)[1]
                parts.append(vertical(across, top, foot, line_color(i)))
    label = f"{title} over {x_title}"
    return _chart(label, label, (width, height), parts, [name or title for name in lines])


def histogram(title: str, lengths: Mapping[int, int], mark: int) -> Markup:
    """Captions by their number of words; where there are many lengths, the last bar has all longer captions.

    Args:
        lengths: number of words -> captions.
        mark: a line is drawn behind this length if there are longer captions.
    """
    longest = max(lengths)
    per_bar = next(n for n in (1, 2, 4) if longest <= n * _BARS or n == 4)  # so that `mark` is the end of a bar
    bars: Counter[int] = Counter()
    for length, count in lengths.items():
        bars[min(max(length - 1, 0) // per_bar, _BARS)] += count
    shown, top = max(bars) + 1, max(bars.values())
    width, height = 560.0, 200.0
    plot = Plot(46, width - 8, 12, height - 34, (0, shown), (0, top))
    step = (plot.right - plot.left) / shown
    parts = [grid_lines(plot, plot.left, plot.right, 2, lambda value: f"{round(value):,}")]
    for bar, count in sorted(bars.items()):
        x, y = plot.to_pixels(bar, count)
        first, last = bar * per_bar + 1, (bar + 1) * per_bar
        words = f"{first} to {last} words" if last > first else f"{first} words"
        rect = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" style="fill:var(--model)">'
        hover = "<title>{}: {:,} captions</title></rect>"
        size = max(step - 1, 0.5), plot.bottom - y
        parts.append(
            Markup(rect + hover).format(x + 0.5, y, *size, f"{first} words and more" if bar == _BARS else words, count)
        )
    for words_ in range(5 * per_bar, shown * per_bar + 1, 5 * per_bar):
        parts.append(text_at(plot.to_pixels(words_ / per_bar - 0.5, 0)[0], plot.bottom + 14, str(words_)))
    if longest > mark:
        x, _ = plot.to_pixels(mark / per_bar, 0)
        parts.append(vertical(x, plot.top, plot.bottom, "var(--mark)"))
        side, anchor = (4, "start") if x < 0.7 * width else (-4, "end")
        parts.append(text_at(x + side, plot.top - 2, f"over {mark} words", anchor))
    parts.append(text_at(plot.right, height - 4, "words in a caption", "end"))
    return _chart(title, "captions by their number of words", (width, height), parts)


def distribution(
    title: str, x_title: str, counts: Sequence[int], ends: tuple[float, float], marks: Sequence[tuple[float, str]] = ()
) -> Markup:
    """Counts of values in bins of equal width between two ends, with a labelled vertical line at each mark."""
    width, height = 560.0, 200.0
    plot = Plot(52, width - 8, 22, height - 34, ends, (0, max(max(counts), 1)))
    parts = [grid_lines(plot, plot.left, plot.right, 2, lambda value: f"{round(value):,}")]
    step = (ends[1] - ends[0]) / len(counts)
    for bin_, count in enumerate(counts):
        low = ends[0] + bin_ * step
        (x, y), (right, _) = plot.to_pixels(low, count), plot.to_pixels(low + step, 0)
        rect = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" style="fill:var(--model)">'
        hover = "<title>{:.3g} to {:.3g}: {:,}</title></rect>"
        size = max(right - x - 1, 0.5), plot.bottom - y
        parts.append(Markup(rect + hover).format(x + 0.5, y, *size, low, low + step, count))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = ends[0] + share * (ends[1] - ends[0])
        parts.append(text_at(plot.to_pixels(value, 0)[0], plot.bottom + 14, f"{value:.3g}"))
    for value, label in marks:
        x, _ = plot.to_pixels(value, 0)
        parts += [vertical(x, plot.top, plot.bottom, "var(--mark)"), text_at(x, plot.top - 5, label)]
    parts.append(text_at(plot.right, height - 4, x_title, "end"))
    return _chart(title, f"{title}: {x_title}", (width, height), parts)


def shares(title: str, rows: Sequence[tuple[str, float, tuple[float, float] | None]], mark: float) -> Markup:
    """Shares from 0 to 1, a row each: label, point with its interval, and the value; a vertical line at ``mark``."""
    width, top, step = 400.0, 8.0, 22.0
    labels = [label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…" for label, _, _ in rows]
    height = top + step * len(rows) + 22
    plot = Plot(24 + 6.2 * max(map(len, labels)), width - 48, top, height - 22, (0.0, 1.0), (0.0, 1.0))
    x_mark, _ = plot.to_pixels(mark, 0)
    parts = [vertical(x_mark, plot.top, plot.bottom, "var(--mark)")]
    for share in (0.0, mark, 1.0):
        parts.append(text_at(plot.to_pixels(share, 0)[0], height - 6, f"{100 * share:.0f} %"))
    for index, (label, (_, value, interval)) in enumerate(zip(labels, rows, strict=True)):
        y = top + step * (index + 0.5)
        parts += _row(plot, y, value, interval)
        parts += [text_at(plot.left - 8, y + 4, label, "end"), text_at(width - 2, y + 4, f"{100 * value:.1f}", "end")]
    return _chart(title, f"{title}, by row", (width, height), parts)


def _row(plot: Plot, y: float, value: float, interval: tuple[float, float] | None) -> list[Markup]:
    """A point on its line, with its interval."""
    line = '<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" style="stroke:{}"/>'
    parts = [Markup(line).format("grid", plot.left, plot.right, y, y, "var(--line)")]
    if interval is not None:
        ends = (plot.to_pixels(end, 0)[0] for end in interval)
        parts.append(Markup(line).format("interval", *ends, y, y, "var(--model)"))
    circle = '<circle cx="{:.1f}" cy="{:.1f}" r="4" style="fill:var(--model)"/>'
    return [*parts, Markup(circle).format(plot.to_pixels(value, 0)[0], y)]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most 300 points: means of neighbours, the last one as it is. Values that are not finite are left out."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if len(points) <= _POINTS:
        return list(points)
    blocks = np.array_split(np.array(points[:-1]), _POINTS - 1)
    return [*((int(block[-1, 0]), float(block[:, 1].mean())) for block in blocks), points[-1]]


def _chart(
    title: str, label: str, size: tuple[float, float], parts: Iterable[Markup], legend: Sequence[str] = ()
) -> Markup:
    entries = [Markup('<span style="--own:{}">{}</span>').format(line_color(i), text) for i, text in enumerate(legend)]
    below = Markup('<div class="legend">{}</div>').format(Markup().join(entries)) if entries else ""
    return Markup(
        '<div class="chart"><b class="small">{}</b><svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>'
        "{}</div>"
    ).format(title, *size, label, Markup().join(parts), below)


def grid_lines(plot: Plot, left: float, right: float, steps: int, label: Callable[[float], str]) -> Markup:
    """Horizontal lines, each with its value at the left."""
    out = Markup()
    for step in range(steps + 1):
        value = plot.y[0] + step / steps * (plot.y[1] - plot.y[0])
        _, y = plot.to_pixels(plot.x[0], value)
        line = '<line class="grid" x1="{:g}" x2="{:g}" y1="{:.1f}" y2="{:.1f}"/>'
        out += Markup(line).format(left, right, y, y) + text_at(left - 5, y + 4, label(value), "end")
    return out


def text_at(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def polyline(points: Iterable[tuple[float, float]], line: int) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline style="stroke:{}" points="{}"/>').format(line_color(line), path)


def vertical(x: float, top: float, bottom: float, color: str) -> Markup:
    line = '<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" style="stroke:{}"/>'
    return Markup(line).format(x, x, top, bottom, color)


def line_color(line: int) -> str:
    return f"var(--c{line % 6})"
