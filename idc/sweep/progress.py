"""How far a running sweep is, read from its folder and the folders of its steps by anybody who sees them.

The driver writes ``plan.json``; the process of a trial writes ``trials/<key>.started`` when it begins, and its result
when it ends. Everything else is in the logs of the trial's trainings.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from idc.atomic import modified, read_object, write_json

PLAN = "plan.json"
TRIALS = "trials"
_STARTED, _ENDED, _FAILED = ".started", ".ended", ".failed"
_RANK_0, _LOG = ".rank0.json", "log.jsonl"

TrialState = Literal["running", "pending", "done", "stopped early", "failed"]


@dataclass
class TrialProgress:
    """One trial.

    Attributes:
        step: name of the step it is in, of those that it needs.
        number: of that step, from 1; ``of`` of them.
        at, steps: optimizer steps of the training it is in, or of its last one.
        value: of the sweep's metric, as a fraction; None if it is not measured.
        loss, measured: (step, value) of its last training's log, ``measured`` of the sweep's metric.
        ended_at: seconds since the epoch.
        reason: why it failed.
    """

    key: str
    label: str
    state: TrialState = "pending"
    step: str = ""
    number: int = 0
    of: int = 0
    at: int | None = None
    steps: int | None = None
    value: float | None = None
    loss: list[tuple[float, float]] = field(default_factory=list)
    measured: list[tuple[float, float]] = field(default_factory=list)
    ended_at: float | None = None
    reason: str = ""


@dataclass
class SweepProgress:
    """All trials of a sweep, those that are planned and, of a search, those that have begun."""

    name: str
    title: str
    metric: str
    mode: Literal["max", "min"]
    total: int
    trials: list[TrialProgress]
    core_hours: float = 0.0
    gpu_hours: float = 0.0

    @property
    def ended(self) -> int:
        return sum(trial.state in ("done", "failed", "stopped early") for trial in self.trials)

    @property
    def failed(self) -> int:
        return sum(trial.state == "failed" for trial in self.trials)

    @property
    def best(self) -> TrialProgress | None:
        """The best of the trials that have a value; a running one's is that of its last validation."""
        valued = [trial for trial in self.trials if trial.value is not None]
        sign = 1.0 if self.mode == "max" else -1.0
        return max(valued, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def ended_since(self, at: float) -> int:
        return sum(trial.ended_at is not None and trial.ended_at >= at for trial in self.trials)


def write_plan(
    folder: Path,
    title: str,
    metric: str,
    mode: Literal["max", "min"],
    total: int,
    store: Path,
    trials: Iterable[tuple[str, str, Sequence[str]]] = (),
) -> None:
    """Write what is planned; marks of trials that a killed sweep had begun are removed.

    Args:
        store: folder of the steps.
        trials: key, label and names of the steps of each trial; a search plans none.
    """
    for mark in (folder / TRIALS).glob(f"*{_STARTED}"):
        result = read_object(mark.with_suffix(".json"))
        ended = result is not None and ("evaluation" in result or result.get("state") != "stopped early")
        if not ended and not mark.with_suffix(_ENDED).exists():
            mark.unlink()
    planned = [{"key": key, "label": label, "steps": list(steps)} for key, label, steps in trials]
    write_json(
        folder / PLAN,
        {
            "name": folder.name,
            "title": title,
            "metric": metric,
            "mode": mode,
            "total": total,
            "store": os.path.relpath(store, folder),
            "trials": planned,
        },
    )


def mark_started(folder: Path, key: str, label: str, steps: Sequence[str]) -> None:
    """Called by the process of a trial when it begins."""
    values = {
        "label": label, "steps": list(steps), "node": platform.node(), "pid": os.getpid(), "started": time.time(),
    }  # fmt: skip
    (folder / TRIALS / f"{key}{_ENDED}").unlink(missing_ok=True)
    write_json(folder / TRIALS / f"{key}{_STARTED}", values)


def mark_ended(folder: Path, key: str) -> None:
    """Called by the driver when a trial of a search has ended, also one that was stopped early."""
    write_json(folder / TRIALS / f"{key}{_ENDED}", {"ended": time.time()})


def has_ended(folder: Path, key: str) -> bool:
    """Whether a trial of a search has ended (:func:`mark_ended`)."""
    return (folder / TRIALS / f"{key}{_ENDED}").exists()


def read_progress(folder: Path) -> SweepProgress:
    """The state of the sweep in a folder. Files that are being written or removed count as not there."""
    plan = read_object(folder / PLAN) or {}
    metric = plan.get("metric", "CIDEr")
    store = folder / plan.get("store", "../steps")
    planned = {trial["key"]: trial for trial in plan.get("trials", [])}
    for path in sorted((folder / TRIALS).glob(f"search-*{_STARTED}")):
        key = path.name.removesuffix(_STARTED)
        if key not in planned and (started := read_object(path)):
            planned[key] = {"key": key, "label": started["label"], "steps": started["steps"]}
    progress = SweepProgress(
        plan.get("name", folder.name), plan.get("title", ""), metric, plan.get("mode", "max"),
        max(plan.get("total", 0), len(planned)), [_trial(folder, store, metric, trial) for trial in planned.values()],
    )  # fmt: skip
    for step in dict.fromkeys(step for trial in planned.values() for step in trial["steps"]):
        if record := read_object(store / f"{step}.json"):
            progress.core_hours += record["seconds"] * record["cpus"] / 3600
            progress.gpu_hours += record["seconds"] * record["gpus"] / 3600
    return progress


def _trial(folder: Path, store: Path, metric: str, planned: dict[str, Any]) -> TrialProgress:
    key, steps = planned["key"], planned["steps"]
    progress = TrialProgress(key, planned["label"], of=len(steps))
    path = folder / TRIALS / f"{key}.json"
    started, result = read_object(path.with_suffix(_STARTED)), read_object(path)
    failure = read_object(path.with_suffix(_FAILED))
    if started is not None:
        progress.state = "running"
    waiting = [step for step in steps if not (store / f"{step}.json").exists()]
    progress.step = waiting[0] if waiting else steps[-1] if steps else ""
    progress.number = steps.index(progress.step) + 1 if progress.step else 0
    begun = [step for step in steps if (store / step / _LOG).exists()]
    if begun and (progress.state == "running" or result is not None):
        _read_log(progress, store / begun[-1], metric)
    if result is not None and "evaluation" in result:
        progress.state, progress.ended_at = "done", modified(path)
        scores = (read_object(store / result["evaluation"] / "evaluation.json") or {}).get("scores", {})
        progress.value = scores.get(metric, progress.value)
    elif failure is not None:
        progress.state, progress.reason, progress.ended_at = (
            "failed",
            failure["error"],
            modified(path.with_suffix(_FAILED)),
        )
    elif result is not None and "state" in result:
        progress.value = result["value"] if result["value"] is not None else progress.value
        if result["state"] == "finished":
            progress.state, progress.ended_at = "done", modified(path)
        elif result["state"] != "stopped early":
            progress.state, progress.reason, progress.ended_at = "failed", result["state"], modified(path)
        elif path.with_suffix(_ENDED).exists():
            progress.state, progress.ended_at = "stopped early", modified(path.with_suffix(_ENDED))
    return progress


def _read_log(trial: TrialProgress, run: Path, metric: str) -> None:
    trial.steps = (read_object(run / _RANK_0) or {}).get("steps")
    try:
        lines = (run / _LOG).read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for text in lines:
        try:
            entry = json.loads(text)
        except ValueError:  # being written
            continue
        trial.at = entry["step"]
        trial.loss.append((entry["step"], entry["loss"]))
        if (value := entry.get(f"validation/{metric}")) is not None:
            trial.measured.append((entry["step"], value))
    if trial.measured:
        trial.value = trial.measured[-1][1]
