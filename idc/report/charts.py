"""A chart as SVG: lines over x with deviations. Colours are those of ``page.css``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from idc.evaluation.record import Spread
from idc.report.page import number

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, WIDTH - 16, 10.0, HEIGHT - 24
"""Edges of the plotted area in pixels; y points down."""


def means(title: str, x_title: str, series: Mapping[str, Sequence[tuple[float, Spread]]]) -> Markup:
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
