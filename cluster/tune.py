"""Runs sweeps: trials in parallel on Ray Tune, or one after the other in this process. It names no system."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from cluster.preflight import Wanted
from cluster.search import best_trial, run_search
from cluster.session import session
from cluster.tracking import MlflowTracker, flat
from cluster.trials import (
    ENVIRONMENT,
    Place,
    Reporter,
    failure_of,
    resources,
    result_of,
    run_config,
    run_step,
    run_trial,
)
from idc.atomic import write_json
from idc.heartbeat import Heartbeat
from idc.report.sweep.live_page import LivePage, update_page
from idc.sweep.config import STEPS, TOKENS_PER_SECOND, RowConfig, SweepJob
from idc.sweep.plan import TrialPlan, plan_table, spread_out
from idc.sweep.progress import mark_started, write_plan
from idc.sweep.summary import SearchedTrial, SweepResult, TrialResult, summarise


def sweep(job: SweepJob, cluster: ClusterConfig, *, local: bool = False, overwrite: bool = False) -> SweepResult:
    """Run a sweep to its end, or resume it.

    Args:
        cluster: the Ray cluster.
        local: without Ray, one trial after the other.
        overwrite: discard the results of this sweep's trials (their steps stay), and the state of another search there.

    Raises:
        ValueError: an input cannot be read; the folder holds another search; a search without Ray.
    """
    if local and (job.search is not None or job.trials.mode == "ray_train"):
        raise ValueError("a search, and trials.mode=ray_train, need Ray: remove --local")
    started = time.monotonic()
    root = Path(job.runs)
    place = Place(root / job.name, root / STEPS, job.inlined(), cluster, local)
    _claim(place, overwrite)
    place.store.mkdir(parents=True, exist_ok=True)
    tracker = MlflowTracker(job.tracking, place.folder, job.name) if job.tracking.enabled else None
    if tracker is not None:
        place = replace(place, parent=tracker.run_id, uri=tracker.uri)
    finished = False
    try:
        if tracker is not None:
            tracker.params(flat(job.model_dump(mode="json", exclude={"rows", "note"})))
        plans = plan_table(place.job, str(place.store)) if job.search is None else []
        _write_plan(place, plans)
        with (
            Heartbeat(place.folder, "sweep"),
            LivePage(place.folder),
            nullcontext() if local else session(cluster, Wanted(job, out=job.runs)),
        ):
            searched: list[SearchedTrial] = []
            if job.search is not None:
                searched = run_search(place, job.search)
                plans = [best_trial(place, job.search, searched)]
            results = _table(place, plans)
            _alone(place, [plan for plan in plans if plan.key in results])
        rows = job.table or tuple(RowConfig(label="best", settings=plan.settings) for plan in plans)
        done = [(plan, results[plan.key]) for plan in plans if plan.key in results]
        failed = {plan.label: failure_of(place, plan.key) for plan in plans if plan.key not in results}
        result = summarise(job, rows, done, failed, searched, place.store, time.monotonic() - started)
        finished = not failed
    finally:
        if tracker is not None:
            tracker.end_children()
            tracker.end(finished)
    return result


def _claim(place: Place, overwrite: bool) -> None:
    """Claim the folder for this sweep. A table may change its rows, as a trial's file is named by all that its result
    depends on; the state of a search is valid for one search only."""
    place.folder.mkdir(parents=True, exist_ok=True)
    if overwrite:
        for name in ("trials", "tune", "search.json"):
            path = place.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (place.folder / "trials").mkdir(exist_ok=True)
    if place.job.search is None:
        return
    identity = place.job.model_dump(mode="json", include={"system", "settings", "search", "seeds"})
    path = place.folder / "search.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != identity:
        raise ValueError(f"{place.folder} holds another search; take another name, or --overwrite it")
    write_json(path, identity)


def _write_plan(place: Place, plans: Sequence[TrialPlan]) -> None:
    """What :mod:`idc.sweep.progress` reads."""
    job, search = place.job, place.job.search
    metric, mode = (search.metric, search.mode) if search is not None else (job.columns[0].metric, "max")
    total = search.num_trials if search is not None else len(plans)
    trials = [(plan.key, plan.label, plan.required) for plan in plans]
    write_plan(place.folder, job.title or job.name, metric, mode, total, place.store, trials)


def _table(place: Place, plans: Sequence[TrialPlan]) -> dict[str, TrialResult]:
    """Run the trials that are not done; returns the results of all that are, by key."""
    waiting = {plan.key: plan for plan in plans if result_of(place, plan) is None}
    print(f"{place.job.name}: {len(plans)} trials, {len(plans) - len(waiting)} of them done before", flush=True)
    order = spread_out(list(waiting.values()), 1 if place.local else place.job.trials.concurrent)
    report = Reporter(place, len(order))
    if place.local:
        for plan in order:
            mark_started(place.folder, plan.key, plan.label, plan.required)
            update_page(place.folder)
            run_trial(plan, place)
            report(plan)
            update_page(place.folder)
    elif order:
        _tune_table(place, order, report)
    return {plan.key: result for plan in plans if (result := result_of(place, plan)) is not None}


def _alone(place: Place, plans: Sequence[TrialPlan]) -> None:
    """Run the steps that need an idle machine: baselines, and the speed of each row's first seed."""
    baselines = {step.name: step for plan in plans if (step := plan.steps.baselines) is not None}
    first = {plan.row: plan.steps.speed for plan in reversed(plans)}
    timed = any(column.metric == TOKENS_PER_SECOND for column in place.job.columns)
    for step in [*baselines.values(), *(first.values() if timed else ())]:
        run_step(step, place, alone=True)


def _tune_table(place: Place, order: Sequence[TrialPlan], report: Callable[[TrialPlan], None]) -> None:
    os.environ.update(ENVIRONMENT)
    from ray import tune

    plans = {plan.key: plan for plan in order}

    def trainable(config: dict[str, Any]) -> None:
        plan = plans[config["trial"]]
        mark_started(place.folder, plan.key, plan.label, plan.required)
        tune.report({"ok": run_trial(plan, place)})

    class Progress(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report(plans[trial.config["trial"]])
            update_page(place.folder)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report(plans[trial.config["trial"]])
            update_page(place.folder)

    shutil.rmtree(place.folder / "tune", ignore_errors=True)  # the trials' own files record what is done
    # Tune looks for its own result files, which these trials do not write, and would warn about each missing one.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    tune.Tuner(
        tune.with_resources(trainable, resources(place)),
        param_space={"trial": tune.grid_search(list(plans))},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=place.job.trials.concurrent,
            trial_name_creator=lambda trial: trial.config["trial"],
            trial_dirname_creator=lambda trial: trial.config["trial"],
        ),
        run_config=run_config(place, [Progress()]),
    ).fit()
