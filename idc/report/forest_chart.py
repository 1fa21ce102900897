"""A forest plot: effects with their intervals on a common scale, each with the band of what is too small to matter."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from idc.report.charts import Plot, text_at, vertical

WIDTH = 1120.0
_LEFT, _RIGHT, _LEVELS, _NUMBERS, _WORDS = 110.0, 440.0, 452.0, 572.0, 717.0
"""Where the plot begins and ends, and where the columns of words begin."""
_HEAD = ((_LEVELS, "control → treatment"), (_NUMBERS, "effect (95 %)"), (_WORDS, "verdict"))
_TITLE, _NOTE, _ROW, _LINE = 20.0, 16.0, 22.0, 16.0
_REACH = 3.0
"""How far the scale goes at most, in the largest effect or band: an interval that is longer gets an arrow."""
_LETTERS = 170
"""Of a line over the whole width."""


@dataclass(frozen=True)
class ForestRow:
    """An effect.

    Attributes:
        label: at the left.
        control, treatment: the values that it is the difference of.
        low, high: ends of its interval.
        band: effects between -band and +band are too small to matter.
        color: of ``page.css``: ``right``, ``wrong``, ``marked``, ``soft``.
        dashed: whether the interval is one of a weaker kind.
        strong, words: at the right, in bold and after it.
    """

    label: str
    control: float
    treatment: float
    low: float
    high: float
    band: float
    color: str
    strong: str
    words: str
    dashed: bool = False

    @property
    def effect(self) -> float:
        return self.treatment - self.control


@dataclass(frozen=True)
class ForestGroup:
    """Effects that belong together, under a title with a note."""

    title: str
    note: str
    rows: Sequence[ForestRow]


def forest(
    groups: Sequence[ForestGroup], legend: Sequence[str], absent_title: str = "", absent: Sequence[tuple[str, str]] = ()
) -> tuple[Markup, float]:
    """The plot and its height; values are shown times 100.

    Args:
        legend: lines below the scale.
        absent_title, absent: a list below it, of what is not drawn and why.
    """
    parts: list[Markup] = []
    rows = [row for group in groups for row in group.rows]
    y = 12.0
    if rows:
        parts += [_words(x, y + 8, text) for x, text in _HEAD]
        y += 14
        scale = _scale(rows)
        bottom = y + sum(_TITLE + _NOTE + _ROW * len(group.rows) + 8 for group in groups)
        plot = Plot(_LEFT, _RIGHT, y, bottom, scale, (0.0, 1.0))
        for group in groups:
            parts.append(_words(8, y + 12, group.title, 13, "var(--ink)", bold=True))
            parts.append(_words(8, y + _TITLE + 9, group.note))
            y += _TITLE + _NOTE
            top, foot = y, y + _ROW * len(group.rows)
            parts += [_band(plot, top + _ROW * number, row.band) for number, row in enumerate(group.rows)]
            for tick in _ticks(*scale):
                x, _ = plot.to_pixels(tick, 0)
                parts.append(vertical(x, top, foot, "var(--line)" if tick else "var(--soft)"))
            for row in group.rows:
                parts += _row(plot, y + _ROW / 2, row)
                y += _ROW
            y += 8
        parts += [text_at(plot.to_pixels(tick, 0)[0], y + 6, _signed(tick, 0)) for tick in _ticks(*scale)]
        y += 30
    for line in (part for text in legend for part in textwrap.wrap(text, _LETTERS)):
        parts.append(_words(8, y, line))
        y += _LINE
    if absent:
        y += 18
        parts.append(_words(8, y, absent_title, 13, "var(--ink)", bold=True))
        y += 4
    for name, why in absent:
        for number, line in enumerate(textwrap.wrap(f"{name} – {why}", _LETTERS)):
            y += _LINE
            parts.append(_words(8 if number == 0 else 20, y, line))
    return Markup().join(parts), y + 14


def _scale(rows: Sequence[ForestRow]) -> tuple[float, float]:
    """The ends of the scale: all effects and bands, and intervals as far as they do not crush the rest."""
    most = _REACH * max(max(abs(row.effect), row.band) for row in rows)
    low = min(min(row.effect, -row.band, max(row.low, -most)) for row in rows)
    high = max(max(row.effect, row.band, min(row.high, most)) for row in rows)
    pad = 0.04 * (high - low)
    return low - pad, high + pad


def _ticks(low: float, high: float) -> Iterator[float]:
    """Round values, at most nine."""
    rough = (high - low) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield number * step


def _band(plot: Plot, y: float, band: float) -> Markup:
    left, right = (plot.to_pixels(end, 0)[0] for end in (-band, band))
    form = (
        '<rect class="band" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:g}" style="fill:var(--mark);opacity:.22"/>'
    )
    return Markup(form).format(left, y, right - left, _ROW)


def _row(plot: Plot, y: float, row: ForestRow) -> Iterator[Markup]:
    color = f"var(--{row.color})"
    left, right = (min(max(plot.to_pixels(end, 0)[0], plot.left), plot.right) for end in (row.low, row.high))
    line = '<line class="interval" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" style="stroke:{}{}"/>'
    yield Markup(line).format(left, right, y, y, color, ";stroke-dasharray:4 3" if row.dashed else "")
    for cut, end, turn in ((row.low < plot.x[0], left, -1), (row.high > plot.x[1], right, 1)):
        if cut:
            arrow = '<path class="arrow" d="M{:.1f},{:.1f} l{},-5 v10 z" style="fill:{}"/>'
            yield Markup(arrow).format(end + 4 * turn, y, -8 * turn, color)
    circle = '<circle cx="{:.1f}" cy="{:.1f}" r="4.5" style="fill:{};stroke:{};stroke-width:2"/>'
    fill = "var(--card)" if row.dashed else color
    yield Markup(circle).format(plot.to_pixels(row.effect, 0)[0], y, fill, color)
    yield _words(_LEFT - 8, y + 4, row.label, anchor="end")
    yield _words(_LEVELS, y + 4, f"{100 * row.control:.1f} → {100 * row.treatment:.1f}")
    numbers = f"{_signed(row.effect)} ({_signed(row.low)} to {_signed(row.high)})"
    yield _words(_NUMBERS, y + 4, numbers, color="var(--ink)")
    verdict = '<text x="{:g}" y="{:.1f}"><tspan style="fill:{};font-weight:600">{}</tspan>{}</text>'
    yield Markup(verdict).format(_WORDS, y + 4, color, row.strong, row.words)


def _signed(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:+.{digits}f}" if round(100 * fraction, digits) else "0"


def _words(
    x: float, y: float, text: str, size: int = 11, color: str = "var(--soft)", bold: bool = False, anchor: str = "start"
) -> Markup:
    weight = 600 if bold else 400
    form = '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" style="fill:{};font-size:{}px;font-weight:{}">{}</text>'
    return Markup(form).format(x, y, anchor, color, size, weight, text)
