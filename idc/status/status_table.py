"""The state of work as a table for a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from idc.status.config import StatusJob
from idc.status.work import Work
from idc.units import metric_text

_METRICS = 3


def status_table(works: Sequence[Work], job: StatusJob) -> str:
    """A line for each work, with its reason below if it needs attention, and a line of sums."""
    shown = [work for work in works if job.done or work.state != "done"]
    heads = ["state", "kind", "name", "done", "left", "ends", "spent", "where", "last"]
    rows = [heads, *(_row(work, job) for work in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = []
    for number, row in enumerate(rows):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number and (reason := shown[number - 1].reason):
            lines.append(f"  {reason.splitlines()[0][:200]}")
    if not shown:
        lines = []
    counts = {state: sum(work.state == state for work in works) for state in dict.fromkeys(w.state for w in works)}
    lines.append(", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing here")
    hidden = len(works) - len(shown)
    if hidden:
        lines[-1] += " (done=true lists those that are done)"
    return "\n".join(lines)


def _row(work: Work, job: StatusJob) -> list[str]:
    done = f"{work.done}/{work.total}" if work.total is not None else str(work.done)
    ends = time.strftime("%a %H:%M", time.localtime(time.time() + work.left_s)) if work.left_s is not None else ""
    spent = f"{work.core_hours:.2f} core-h"
    if work.gpu_hours:
        spent += f" {work.gpu_hours:.2f} GPU-h"
    if job.core_hour or job.gpu_hour:
        spent += f" = {work.cost(job.core_hour, job.gpu_hour):.2f}"
    where = f"{work.node}:{work.pid}" if work.node else ""
    if work.ray_job:
        where += f" {work.ray_job}"
    metrics = list(work.metrics.items())[:_METRICS]
    last = "  ".join(f"{name.removeprefix('validation/')} {metric_text(name, value)}" for name, value in metrics)
    left = duration(work.left_s) if work.left_s is not None else ""
    return [work.state, work.kind, work.name, f"{done} {work.unit}", left, ends, spent, where, last]


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 05``, ``2 d 4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60:02d}"
    return f"{hours // 24} d {hours % 24} h"
