"""The page of a sweep while it runs: the state of each trial, curves, the best so far. The browser reloads it by
itself; at the sweep's end the final page takes its place."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from idc.atomic import write_text
from idc.report import charts
from idc.report.page import render_template
from idc.sweep.progress import SweepProgress, TrialProgress, read_progress

PAGE = "report.html"
REFRESH_S = 5
"""Seconds between two looks at the trials, and between two loads of the page."""
_LINES = 8
"""Trials in a chart at most."""


_WRITING = threading.Lock()


def update_page(folder: Path, end: str | None = None) -> None:
    """Write ``report.html`` of the sweep in a folder, as it is now.

    Args:
        end: the sweep has ended, for this reason if it is not empty: the page no longer reloads itself.
    """
    with _WRITING:
        write_text(folder / PAGE, render_live(read_progress(folder), end))


class LivePage:
    """A context manager around a sweep: writes ``report.html`` at its start, its end, and whenever a trial got further.
    :func:`update_page` writes it at once.

    Args:
        folder: the sweep's own, with its plan.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live-page", daemon=True)

    def __enter__(self) -> LivePage:
        update_page(self._folder)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        update_page(self._folder, end=f"{kind.__name__}: {error}" if kind is not None else "")

    def _follow(self) -> None:
        shown = read_progress(self._folder)
        while not self._ended.wait(REFRESH_S):
            if (now := read_progress(self._folder)) != shown:
                shown = now
                update_page(self._folder)


def render_live(progress: SweepProgress, end: str | None = None) -> str:
    """The page as text; ``end`` as in :func:`update_page`."""
    counts = {
        state: sum(trial.state == state for trial in progress.trials)
        for state in ("running", "done", "stopped early", "failed")
    }
    counts["pending"] = progress.total - sum(counts.values())
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    cost = f"{progress.core_hours:.2f} core-hours"
    if progress.gpu_hours:
        cost += f" and {progress.gpu_hours:.2f} GPU-hours"
    best = progress.best
    shown = sorted(progress.trials, key=lambda trial: (trial.state != "running", trial is not best))[:_LINES]
    return render_template(
        "sweep_live.html",
        title=progress.title or progress.name,
        subtitle=f"{progress.total} trials: {', '.join(parts) or 'none has begun'}; as of {time}",
        refresh=REFRESH_S if end is None else None,
        end=end,
        metric=progress.metric,
        best=(best.label, best.value, best.state) if best is not None else None,
        trials=[_row(trial, trial is best) for trial in progress.trials],
        unplanned=progress.total - len(progress.trials),
        charts=[
            chart
            for chart in (
                charts.curves("loss", {trial.label: trial.loss for trial in shown}),
                charts.curves(
                    progress.metric,
                    {trial.label: [(step, 100 * value) for step, value in trial.measured] for trial in shown},
                ),
            )
            if chart
        ],
        cost=f"{cost} in the steps that are done.",
    )


def _row(trial: TrialProgress, best: bool) -> dict[str, Any]:
    where = ""
    if trial.state == "running":
        where = f"{trial.step.rsplit('-', 1)[0]}, {trial.number} of {trial.of}"
    steps = ""
    if trial.at is not None:
        steps = f"{trial.at} of {trial.steps}" if trial.steps else str(trial.at)
    return {
        "label": trial.label,
        "state": trial.state,
        "where": trial.reason or where,
        "steps": steps,
        "value": f"{100 * trial.value:.1f}" if trial.value is not None else "–",
        "best": best,
    }
