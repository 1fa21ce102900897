"""Runs sweeps: trials in parallel on Ray Tune, or one after the other in this process. It names no system."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from cluster.preflight import Requirements
from cluster.search import best_trial, run_search
from cluster.session import session
from cluster.tracking import MlflowTracker, flat
from cluster.trials import Reporter, Workspace, failure_of, run_step, run_trial, tune_trials
from idc.sweep.config import STEPS, TOKENS_PER_SECOND, RowConfig, SweepJob
from idc.sweep.plan import TrialPlan, plan_table, spread_out
from idc.sweep.summary import SearchedTrial, SweepResult, summarise_sweep
from idc.training.tracker import Tracker
from idc.util.atomic import write_json


def run_sweep(job: SweepJob, cluster: ClusterConfig, *, local: bool = False, overwrite: bool = False) -> SweepResult:
    """Run a sweep to its end, or resume it.

    Args:
        cluster: the Ray cluster.
        local: without Ray, one trial after the other.
        overwrite: discard the state of another search that is there; the steps of its trials stay.

    Raises:
        ValueError: an input cannot be read; the folder holds another search; a search without Ray.
    """
    if local and (job.search is not None or job.trials.mode == "ray_train"):
        raise ValueError("a search, and trials.mode=ray_train, need Ray: remove --local")
    started = time.monotonic()
    root = Path(job.runs)
    workspace = Workspace(root / job.name, root / STEPS, job.inlined(), cluster, local)
    _claim(workspace, overwrite)
    workspace.store.mkdir(parents=True, exist_ok=True)
    tracker, finished = Tracker(), False
    if job.tracking.enabled:
        tracker = MlflowTracker(job.tracking, workspace.folder, job.name)
        workspace = replace(workspace, parent=tracker.run_id, uri=tracker.uri)
    try:
        tracker.params(flat(job.model_dump(mode="json", exclude={"rows", "note"})))
        plans = plan_table(workspace.job, str(workspace.store)) if job.search is None else []
        with nullcontext() if local else session(cluster, Requirements(job, out=job.runs)):
            searched: list[SearchedTrial] = []
            if job.search is not None:
                searched = run_search(workspace, job.search)
                plans = [best_trial(workspace, job.search, searched)]
            _table(workspace, plans)
            done = [plan for plan in plans if plan.done(workspace.store)]
            _run_timing_steps(workspace, done)
        rows = job.table or tuple(RowConfig(label="best", settings=plan.settings) for plan in plans)
        failed = {plan.label: failure_of(workspace, plan) for plan in plans if plan not in done}
        result = summarise_sweep(job, rows, done, failed, searched, workspace.store, time.monotonic() - started)
        finished = not failed
    finally:
        tracker.end_children()
        tracker.end(finished)
    return result


def _claim(workspace: Workspace, overwrite: bool) -> None:
    """Claim the folder for this sweep. A table may change its rows, as a step is named by all that its result depends
    on; the state of a search is valid for one search only."""
    workspace.folder.mkdir(parents=True, exist_ok=True)
    if overwrite:
        for name in ("trials", "tune", "search.json"):
            path = workspace.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (workspace.folder / "trials").mkdir(exist_ok=True)
    if workspace.job.search is None:
        return
    identity = workspace.job.model_dump(mode="json", include={"system", "settings", "search", "seeds"})
    path = workspace.folder / "search.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != identity:
        raise ValueError(f"{workspace.folder} holds another search; take another name, or --overwrite it")
    write_json(path, identity)


def _table(workspace: Workspace, plans: Sequence[TrialPlan]) -> None:
    waiting = {plan.key: plan for plan in plans if not plan.done(workspace.store)}
    print(f"{workspace.job.name}: {len(plans)} trials, {len(plans) - len(waiting)} of them done before", flush=True)
    side_by_side = not workspace.local and workspace.job.trials.concurrent > 1
    order = spread_out(list(waiting.values())) if side_by_side else list(waiting.values())
    report = Reporter(workspace, len(order))
    if workspace.local:
        for plan in order:
            report.started(plan.label)
            run_trial(plan, workspace)
            report(plan)
    elif order:
        _tune_table(workspace, order, report)


def _run_timing_steps(workspace: Workspace, plans: Sequence[TrialPlan]) -> None:
    """Run the steps that need an idle machine: baselines, and the speed of each row's first seed."""
    baselines = {step.name: step for plan in plans if (step := plan.steps.baselines) is not None}
    first = {plan.row: plan.steps.speed for plan in reversed(plans)}
    timed = any(column.metric == TOKENS_PER_SECOND for column in workspace.job.columns)
    for step in [*baselines.values(), *(first.values() if timed else ())]:
        run_step(step, workspace, alone=True)


def _tune_table(workspace: Workspace, order: Sequence[TrialPlan], report: Reporter) -> None:
    from ray import tune

    plans = {plan.key: plan for plan in order}

    def trainable(config: dict[str, Any]) -> None:
        tune.report({"ok": run_trial(plans[config["trial"]], workspace)})

    class Progress(tune.Callback):
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report.started(plans[trial.config["trial"]].label)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report(plans[trial.config["trial"]])

        on_trial_error = on_trial_complete

    tune_trials(workspace, trainable, {"trial": tune.grid_search(list(plans))}, Progress())
