"""The page of several trainings side by side: a chart for each value that their logs have, a line for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from idc.report import charts
from idc.report.collect import read_run_log
from idc.report.config import CompareRunsJob
from idc.report.page import render_template


def run_curves_page(job: CompareRunsJob) -> str:
    """The page as text.

    Raises:
        ValueError: a folder is not a run, or a field is in no log often enough for a line.
    """
    logs = {name: read_run_log(folder) for name, folder in job.runs.items()}
    drawn = []
    for field in job.fields:
        lines = {name: points_of(log, field, job.smooth) for name, log in logs.items()}
        if not (chart := charts.curves(field, lines)):
            names = sorted({key for log in logs.values() for line in log for key in line})
            raise ValueError(
                f"fields: no run has two points of {field!r} (smooth={job.smooth}); logged are {', '.join(names)}"
            )
        drawn.append(chart)
    return render_template(
        "run_curves.html",
        title=job.title,
        subtitle=", ".join(job.runs),
        charts=drawn,
        runs=[[name, folder, f"{log[-1]['step'] if log else 0:,}"] for (name, folder), log in
              zip(job.runs.items(), logs.values(), strict=True)],
        smooth=job.smooth,
    )  # fmt: skip


def points_of(log: Sequence[Mapping[str, Any]], field: str, smooth: int) -> list[tuple[float, float]]:
    """(last step, mean) of each ``smooth`` lines that have the field."""
    values = [(line["step"], float(line[field])) for line in log if field in line]
    groups = [values[start : start + smooth] for start in range(0, len(values) - smooth + 1, smooth)]
    return [(group[-1][0], sum(value for _, value in group) / smooth) for group in groups]
