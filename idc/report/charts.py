"""A chart as SVG: lines over x with deviations. Colours are those of ``page.css``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from idc.evaluation.record import Spread
from idc.report.page import number

Points = Sequence[tuple[float, Spread]]
"""Values over x, each of one or several runs."""


@dataclass(frozen=True)
class _Plot:
    """The plotted area: its edges in pixels (y points down), and the values at these edges."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, x: float) -> float:
        share = (x - self.x[0]) / (self.x[1] - self.x[0]) if self.x[1] > self.x[0] else 0.5
        return self.left + share * (self.right - self.left)

    def up(self, y: float) -> float:
        share = (y - self.y[0]) / (self.y[1] - self.y[0]) if self.y[1] > self.y[0] else 0.5
        return self.top + (1 - share) * (self.bottom - self.top)

    def grid(self, steps: int = 4) -> list[Markup]:
        """Horizontal lines, each with its value at the left."""
        line = '<line class="grid" x1="{:g}" x2="{:g}" y1="{:.1f}" y2="{:.1f}"/>'
        values = [self.y[0] + step / steps * (self.y[1] - self.y[0]) for step in range(steps + 1)]
        lines = [Markup(line).format(self.left, self.right, self.up(value), self.up(value)) for value in values]
        return lines + [_text(self.left - 5, self.up(value) + 4, number(value), "end") for value in values]


def means(title: str, x_title: str, series: Mapping[str, Points]) -> Markup:
    """Means over x, a line per name, each with a bar of one standard deviation up and down; empty without a value."""
    series = {name or title: sorted(points, key=lambda point: point[0]) for name, points in series.items() if points}
    if not series:
        return Markup()
    ticks = sorted({x for points in series.values() for x, _ in points})
    ends = [end for points in series.values() for _, y in points for end in (y.mean - y.std, y.mean + y.std)]
    width, height = 560.0, 300.0
    plot = _Plot(58, width - 16, 10, height - 24, (ticks[0], ticks[-1]), (min(ends), max(ends)))
    parts = plot.grid() + [_text(plot.across(x), height - 6, f"{x:g}") for x in ticks]
    for line, points in enumerate(series.values()):
        path = " ".join(f"{plot.across(x):.1f},{plot.up(y.mean):.1f}" for x, y in points)
        parts.append(Markup('<polyline style="stroke:{}" points="{}"/>').format(_color(line), path))
        for x, y in points:
            circle = '<circle cx="{:.1f}" cy="{:.1f}" r="3.5" style="fill:{}"/>'
            parts.append(Markup(circle).format(plot.across(x), plot.up(y.mean), _color(line)))
            if len(y.values) > 1:
                parts.append(_vertical(plot.across(x), plot.up(y.mean + y.std), plot.up(y.mean - y.std), _color(line)))
    names = [Markup('<span style="--own:{}">{}</span>').format(_color(line), name) for line, name in enumerate(series)]
    label = f"{title} over {x_title}"
    return Markup(
        '<div class="chart"><b class="small">{}</b><svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>'
        '<div class="legend">{}</div></div>'
    ).format(label, width, height, label, _join(parts), _join(names))


def _join(parts: Sequence[Markup]) -> Markup:
    return Markup().join(parts)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _vertical(x: float, top: float, bottom: float, color: str) -> Markup:
    line = '<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" style="stroke:{}"/>'
    return Markup(line).format(x, x, top, bottom, color)


def _color(line: int) -> str:
    return f"var(--c{line % 6})"
