"""Several trainings side by side, as a page or a picture: a chart for each value that their logs have, a line for each
run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from idc.report import charts
from idc.report.charts import Plot, grid_lines, line_color, polyline, text_at, vertical
from idc.report.collect import read_run_log
from idc.report.config import CompareRunsJob
from idc.report.page import render_template, standalone_svg
from idc.units import metric_text

_WIDTH, _HEIGHT, _LINE, _LEFT = 760.0, 260.0, 18.0, 60.0
"""Of a chart of the picture: without its legend; a line of that; where the plot begins."""
_ASIDE = 3.0
"""Pixels between the runs, so that their bars do not hide each other."""


def run_curves_page(job: CompareRunsJob) -> str:
    """The page as text.

    Raises:
        ValueError: a folder is not a run, or a field is in no log often enough for a line.
    """
    logs = {name: read_run_log(folder) for name, folder in job.runs.items()}
    drawn = [
        charts.curves(field, {name: points_of(log, field, job.smooth) for name, log in logs.items()})
        for field in _drawable(job, logs)
    ]
    return render_template(
        "run_curves.html",
        title=job.title,
        subtitle=", ".join(job.runs),
        charts=drawn,
        runs=[[name, folder, f"{log[-1]['step'] if log else 0:,}"] for (name, folder), log in
              zip(job.runs.items(), logs.values(), strict=True)],
        smooth=job.smooth,
    )  # fmt: skip


def run_curves_picture(job: CompareRunsJob) -> str:
    """The charts as an SVG file, one below the other; in the legend each run's mean over all lines of its log, and its
    last point.

    Raises:
        ValueError: as :func:`run_curves_page`.
    """
    logs = {name: read_run_log(folder) for name, folder in job.runs.items()}
    parts: list[Markup] = []
    y = 8.0
    for field in _drawable(job, logs):
        parts += _drawn(field, logs, job.smooth, y)
        y += _HEIGHT + _LINE * len(logs)
    return standalone_svg(f"{job.title}: {', '.join(job.fields)}", Markup().join(parts), _WIDTH, y)


def points_of(log: Sequence[Mapping[str, Any]], field: str, smooth: int) -> list[tuple[float, float]]:
    """(last step, mean) of each ``smooth`` lines that have the field."""
    return [(step, statistics.fmean(values)) for step, values in _groups(log, field, smooth)]


def _drawable(job: CompareRunsJob, logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sequence[str]:
    """The fields, each with two points of a run at least."""
    for field in job.fields:
        if all(len(_groups(log, field, job.smooth)) < 2 for log in logs.values()):
            names = sorted({key for log in logs.values() for line in log for key in line})
            raise ValueError(
                f"fields: no run has two points of {field!r} (smooth={job.smooth}); logged are {', '.join(names)}"
            )
    return job.fields


def _groups(log: Sequence[Mapping[str, Any]], field: str, smooth: int) -> list[tuple[float, list[float]]]:
    """(Last step, values) of each ``smooth`` lines that have the field, and a finite value of it."""
    values = [(line["step"], float(line[field])) for line in log if field in line]
    values = [(step, value) for step, value in values if math.isfinite(value)]
    groups = [values[start : start + smooth] for start in range(0, len(values) - smooth + 1, smooth)]
    return [(group[-1][0], [value for _, value in group]) for group in groups]


def _drawn(field: str, logs: Mapping[str, Sequence[Mapping[str, Any]]], smooth: int, y: float) -> Iterator[Markup]:
    groups = {name: _groups(log, field, smooth) for name, log in logs.items()}
    points = {name: [(step, statistics.fmean(values), _error(values)) for step, values in of_run]
              for name, of_run in groups.items()}  # fmt: skip
    steps = [step for of_run in points.values() for step, _, _ in of_run]
    ends = [end for of_run in points.values() for _, mean, error in of_run for end in (mean - error, mean + error)]
    low, high, intervals = round_axis(min(0.0, *ends) if min(ends) < 0.5 * max(ends) else min(ends), max(ends))
    plot = Plot(_LEFT, _WIDTH - 16, y + 22, y + _HEIGHT - 40, (0.0, max(steps)), (low, high))
    means = f": means of {smooth} lines of the log with their standard errors" if smooth > 1 else ""
    yield text_at(8, y + 10, field + means, "start")
    yield grid_lines(plot, plot.left, plot.right, intervals, lambda value: metric_text(field, value))
    for share in range(5):
        step = share / 4 * max(steps)
        yield text_at(plot.to_pixels(step, low)[0], plot.bottom + 16, f"{step:,.0f}")
    yield text_at(plot.right, plot.bottom + 30, "step", "end")
    for number, (name, of_run) in enumerate(points.items()):
        aside = _ASIDE * (number - (len(points) - 1) / 2)
        corners = [plot.to_pixels(step, mean) for step, mean, _ in of_run]
        yield polyline([(x + aside, up) for x, up in corners], number)
        for (x, up), (step, mean, error) in zip(corners, of_run, strict=True) if smooth > 1 else ():
            top, foot = (plot.to_pixels(step, end)[1] for end in (mean + error, mean - error))
            yield vertical(x + aside, top, foot, line_color(number))
            circle = '<circle cx="{:.1f}" cy="{:.1f}" r="3" style="fill:{}"/>'
            yield Markup(circle).format(x + aside, up, line_color(number))
        below = y + _HEIGHT + _LINE * number
        swatch = '<rect x="{:g}" y="{:g}" width="14" height="4" style="fill:{}"/>'
        yield Markup(swatch).format(_LEFT, below - 7, line_color(number))
        every = [value for _, values in _groups(logs[name], field, 1) for value in values]
        numbers = "not logged"
        if every:
            numbers = f"{metric_text(field, statistics.fmean(every))} in the mean of {len(every)} lines of the log"
        if of_run:
            numbers += f", last point {metric_text(field, of_run[-1][1])}"
        yield text_at(_LEFT + 20, below, f"{name}: {numbers}", "start")


def round_axis(low: float, high: float) -> tuple[float, float, int]:
    """An axis around both values in at most six steps of 1, 2 or 5 times a power of 10, so that the numbers at its
    lines are round: its ends and how many steps it has."""
    least = ((high - low) or 5.0) / 5
    power = 10.0 ** math.floor(math.log10(least) + 1e-9)
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    steps = max(1, math.ceil(high / step - 1e-9) - first)
    return first * step, (first + steps) * step, steps


def _error(values: Sequence[float]) -> float:
    """The standard error of their mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
