"""Runs sweeps: trials on Ray Tune side by side, or one after the other in this process. It names no system.

A trial is a chain of steps (:mod:`idc.sweep.plan`). A step's folder is named by what it depends on; it is locked while
one process works in it, and a file beside it says that it is done. So a step is done once, whoever needs it, and an
interrupted sweep goes on: finished trials are not started again, and a training goes on from its last checkpoint.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import logging
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from cluster.session import run_chunks, session
from cluster.tracking import MlflowTracker, flat
from cluster.train import FATAL_ERRORS, Watch, launch
from idc.atomic import write_json
from idc.data.store import fingerprint
from idc.sweep.config import STEPS, TOKENS_PER_SECOND, RowConfig, SearchConfig, SweepJob
from idc.sweep.plan import Step, TrialPlan, TrialSteps, chain_of, plan_table, spread_out, train_sections
from idc.sweep.summary import SearchedTrial, SweepResult, TrialResult, summarise

_WAITING_CPUS = 0.1
"""What a trial's process counts for whose trainings are Ray Train runs."""

_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths stay valid in the trials
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # trials write their own files, and MLflow is tracked here
    "TUNE_GLOBAL_CHECKPOINT_S": "2",  # the state of a search is on disk soon after it changed
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a Ray Train run reports before its first validation, too
}


@dataclass(frozen=True)
class Place:
    """Where trials run.

    Attributes:
        folder: the sweep's own.
        store: the folder of all steps.
        job: the sweep.
        cluster: for data jobs.
        local: without Ray.
        parent: the sweep's MLflow run id; none if it is not tracked.
        uri: the MLflow store.
    """

    folder: Path
    store: Path
    job: SweepJob
    cluster: ClusterConfig
    local: bool
    parent: str | None = None
    uri: str | None = None


def sweep(job: SweepJob, cluster: ClusterConfig, *, local: bool = False, overwrite: bool = False) -> SweepResult:
    """Run a sweep to its end, or go on with it.

    Args:
        cluster: the Ray cluster.
        local: without Ray, one trial after the other.
        overwrite: forget what this sweep's trials came to (their steps stay), and the state of another search there.

    Raises:
        ValueError: an input cannot be read; a search of another config is there; a search without Ray.
    """
    if local and (job.search is not None or job.trials.mode == "ray_train"):
        raise ValueError("a search, and trials.mode=ray_train, need Ray: leave --local out")
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
        with nullcontext() if local else session(cluster):
            searched: list[SearchedTrial] = []
            if job.search is not None:
                searched = _search(place, job.search)
                plans = _best(place, job.search, searched)
            else:
                plans = plan_table(place.job, str(place.store))
            results = _table(place, plans)
            _alone(place, [plan for plan in plans if plan.key in results])
        rows = job.table or tuple(RowConfig(label="best", settings=plan.settings) for plan in plans)
        done = [(plan, results[plan.key]) for plan in plans if plan.key in results]
        failed = {plan.label: _failure(place, plan.key) for plan in plans if plan.key not in results}
        result = summarise(job, rows, done, failed, searched, place.store, time.monotonic() - started)
        finished = not failed
    finally:
        if tracker is not None:
            tracker.end_children()
            tracker.end(finished)
    return result


def _claim(place: Place, overwrite: bool) -> None:
    """Make the folder this sweep's. A table may change its rows: a trial's result is filed under all it depends on. The
    state of a search fits one search only."""
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


# ------------------------------------------------------------------------------------------------------------ a step


def run_step(
    step: Step, place: Place, watch: Watch | None = None, callbacks: Sequence[Any] = (), alone: bool = False
) -> dict[str, Any]:
    """Do a step, or wait for the process that does it, or find it done. Returns its result.

    Args:
        watch, callbacks: of a training, as :func:`cluster.train.launch` takes them.
        alone: the step is timed; it waits for nothing and no other is running.
    """
    marker = place.store / f"{step.name}.json"
    folder = place.store / step.name
    with _locked(place.store / f".{step.name}.lock"):
        if marker.exists() and folder.exists():
            found: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))["result"]
            return found
        started = time.monotonic()
        plain = place.local or place.job.trials.mode == "plain"
        if step.train is not None:
            tracking = place.job.tracking.model_copy(update={"uri": place.uri})
            train = step.train.model_copy(update={"tracking": tracking})
            result = launch(
                step.entry,
                step.payload,
                train,
                folder,
                local=plain,
                parent=place.parent,
                watch=watch if plain else None,
                callbacks=callbacks,
            )
            seconds = result["seconds"]  # of all starts of the run together
        else:
            run = partial(run_chunks, plain, place.cluster)
            if not plain or (alone and not place.local):
                result = _remote(step, str(folder), run, place)
            else:
                result = _call(step, str(folder), run)
            folder.mkdir(exist_ok=True)  # of a step that leaves no files but its result
            seconds = time.monotonic() - started
        cpus = 1.0 if plain and step.train is None else step.cpus
        record = {"name": step.name, "seconds": seconds, "cpus": cpus, "gpus": step.gpus, "result": result}
        write_json(marker, record)
        return result


def _call(step: Step, folder: str, run: Any) -> dict[str, Any]:
    module, _, function = step.entry.partition(":")
    result: dict[str, Any] = getattr(importlib.import_module(module), function)(step.payload, folder, run)
    return result


def _remote(step: Step, folder: str, run: Any, place: Place) -> dict[str, Any]:
    """The step in a process of its own that has the cores and GPUs it needs."""
    import ray

    # Outside the trial's placement group, in which there is only the little that a waiting trial holds.
    cpus = place.job.trials.cpus
    task = ray.remote(num_cpus=cpus, num_gpus=step.gpus, max_retries=0, scheduling_strategy="DEFAULT")(_call)
    result: dict[str, Any] = ray.get(task.remote(step, folder, run))
    return result


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its process. On several machines the file system has to support flock
    (NFS 4 does)."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ----------------------------------------------------------------------------------------------------------- a trial


def run_trial(plan: TrialPlan, place: Place) -> bool:
    """Do the steps of a table's trial, and file what came of it. False if it failed in a way that would come again."""
    path = place.folder / "trials" / f"{plan.key}.json"
    try:
        for step in plan.steps.work:
            run_step(step, place)
        run_step(plan.steps.evaluation, place)
    except FATAL_ERRORS as error:
        write_json(path.with_suffix(".failed"), {"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
        return False
    evaluation = str(place.store / plan.steps.evaluation.name)
    write_json(path, {"label": plan.label, "steps": plan.required, "evaluation": evaluation})
    path.with_suffix(".failed").unlink(missing_ok=True)
    return True


def _done(place: Place, plan: TrialPlan) -> TrialResult | None:
    path = place.folder / "trials" / f"{plan.key}.json"
    return TrialResult.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None


def _failure(place: Place, key: str) -> str:
    path = place.folder / "trials" / f"{key}.failed"
    return json.loads(path.read_text(encoding="utf-8"))["error"] if path.exists() else "its process was lost"


def _table(place: Place, plans: Sequence[TrialPlan]) -> dict[str, TrialResult]:
    """Run the trials that are not done; the results of all that are, by key."""
    waiting = {plan.key: plan for plan in plans if _done(place, plan) is None}
    _say(f"{place.job.name}: {len(plans)} trials, {len(plans) - len(waiting)} of them done before")
    order = spread_out(list(waiting.values()), 1 if place.local else place.job.trials.concurrent)
    report = _Reporter(place, len(order))
    if place.local:
        for plan in order:
            run_trial(plan, place)
            report(plan)
    elif order:
        _tune_table(place, order, report)
    return {plan.key: result for plan in plans if (result := _done(place, plan)) is not None}


class _Reporter:
    """Says on the driver what a trial came to, and tracks it as a child of the sweep's MLflow run."""

    def __init__(self, place: Place, total: int):
        self.place, self.total, self.number = place, total, 0

    def __call__(self, plan: TrialPlan) -> None:
        self.number += 1
        result = _done(self.place, plan)
        scores = result.scores() if result is not None else {}
        text = "  ".join(f"{name} {100 * value:.1f}" for name, value in scores.items())
        text = text or f"FAILED: {_failure(self.place, plan.key)}"
        _say(f"trial {self.number} of {self.total}: {plan.label}: {text}")
        self.track(plan.label, {**plan.settings, "seed": plan.seed, "steps": " ".join(plan.required)}, scores, result)

    def track(self, label: str, params: dict[str, Any], scores: dict[str, float], result: Any) -> None:
        if self.place.parent is None:
            return
        tracking = self.place.job.tracking.model_copy(update={"uri": self.place.uri})
        name = f"{self.place.job.name}: {label}"
        tracker = MlflowTracker(tracking, self.place.folder, name, self.place.parent)
        tracker.params(flat(params))
        tracker.metrics(scores, step=0)
        tracker.end(result is not None)


def _alone(place: Place, plans: Sequence[TrialPlan]) -> None:
    """What is done when no trial is running: baselines, and the speed of each row's first seed."""
    baselines = {step.name: step for plan in plans if (step := plan.steps.baselines) is not None}
    first = {plan.row: plan.steps.speed for plan in reversed(plans)}
    timed = any(column.metric == TOKENS_PER_SECOND for column in place.job.columns)
    for step in [*baselines.values(), *(first.values() if timed else ())]:
        run_step(step, place, alone=True)


# ---------------------------------------------------------------------------------------------------------- Ray Tune


def _tune_table(place: Place, order: Sequence[TrialPlan], report: Callable[[TrialPlan], None]) -> None:
    os.environ.update(_ENVIRONMENT)
    from ray import tune

    plans = {plan.key: plan for plan in order}

    def trainable(config: dict[str, Any]) -> None:
        tune.report({"ok": run_trial(plans[config["trial"]], place)})

    class Progress(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report(plans[trial.config["trial"]])

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report(plans[trial.config["trial"]])

    shutil.rmtree(place.folder / "tune", ignore_errors=True)  # what is done is known from the trials' own files
    # Tune looks for result files of its own, which these trials do not write, and would call each of them missing.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    tune.Tuner(
        tune.with_resources(trainable, _resources(place)),
        param_space={"trial": tune.grid_search(list(plans))},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=place.job.trials.concurrent,
            trial_name_creator=lambda trial: trial.config["trial"],
            trial_dirname_creator=lambda trial: trial.config["trial"],
        ),
        run_config=_run_config(place, [Progress()]),
    ).fit()


def _resources(place: Place) -> dict[str, float]:
    trials = place.job.trials
    if trials.mode == "ray_train":
        return {"CPU": _WAITING_CPUS}
    return {"CPU": trials.cpus, "GPU": trials.gpus}


def _run_config(place: Place, callbacks: list[Any]) -> Any:
    from ray import tune

    return tune.RunConfig(
        name="tune",
        storage_path=str(place.folder.absolute()),
        failure_config=tune.FailureConfig(max_failures=place.job.trials.max_failures),
        callbacks=callbacks,
        verbose=0,
    )


# ------------------------------------------------------------------------------------------------------------ search


def _search(place: Place, search: SearchConfig) -> list[SearchedTrial]:
    """Run the search, or go on with it; its trials, the best first."""
    os.environ.update(_ENVIRONMENT)
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    total = _watched_steps(place, search)

    class Validations(TuneReportCallback):
        """Passes on the reports of a Ray Train run that have the searched metric."""

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if search.metric in metrics[0] and metrics[0]["step"] != total:
                super().after_report(run_context, metrics, checkpoint)

    def trainable(config: dict[str, Any]) -> None:
        settings = search.expand(config)
        path = place.folder / "trials" / f"{_search_key(settings)}.json"

        def record(value: float | None, step: int, state: str) -> None:
            found = SearchedTrial(settings=settings, value=value, step=step, state=state)
            write_json(path, found.model_dump(mode="json"))

        def watch(metrics: dict[str, float], step: int) -> None:
            record(metrics[search.metric], step, "stopped early")
            if step != total:  # the end is reported when the artifact is written
                tune.report({search.metric: metrics[search.metric], "step": step})

        if not path.exists():
            record(None, 0, "stopped early")
        steps = _search_steps(place, settings)
        try:
            *before, last = steps.work
            for step in before:
                run_step(step, place)
            callbacks = [Validations()] if place.job.trials.mode == "ray_train" else []
            result = run_step(last, place, watch, callbacks)
            value = result["metrics"][search.metric]
        except FATAL_ERRORS as error:
            record(None, 0, f"{type(error).__name__}: {error}")
            traceback.print_exc()
            tune.report({search.metric: -float("inf") if search.mode == "max" else float("inf"), "step": 0})
            return
        record(value, result["steps"], "finished")
        tune.report({search.metric: value, "step": result["steps"]})

    trials = tune.with_resources(trainable, _resources(place))
    folder = place.folder.absolute() / "tune"
    if tune.Tuner.can_restore(str(folder)):
        _say(f"{place.job.name}: going on with the search in {folder}")
        tuner = tune.Tuner.restore(str(folder), trials, resume_unfinished=True, restart_errored=True)
    else:
        tuner = tune.Tuner(
            trials,
            param_space=_space(search),
            tune_config=tune.TuneConfig(
                metric=search.metric,
                mode=search.mode,
                num_samples=search.num_trials,
                max_concurrent_trials=place.job.trials.concurrent,
                search_alg=_searcher(search),
                scheduler=_scheduler(place, search),
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=_run_config(place, []),
        )
    results = tuner.fit()
    # Of trials that were done when the search was restored, Tune knows neither settings nor metrics; their files do.
    reported: dict[str, dict[str, Any]] = {}
    for number in range(len(results)):
        if config := results[number].config:
            reported[_search_key(search.expand(config))] = results[number].metrics or {}
    found = []
    for path in sorted((place.folder / "trials").glob("search-*.json")):
        one = SearchedTrial.model_validate_json(path.read_text(encoding="utf-8"))
        last = reported.get(path.stem, {})
        if one.value is None and search.metric in last and one.state == "stopped early":  # of a Ray Train run
            one = one.model_copy(update={"value": last[search.metric], "step": last["step"]})
            write_json(path, one.model_dump(mode="json"))
        found.append(one)
    sign = -1 if search.mode == "max" else 1
    found.sort(key=lambda trial: (trial.value is None, sign * (trial.value or 0.0)))
    report = _Reporter(place, len(found))
    for trial in found:
        values = {search.metric: trial.value} if trial.value is not None else {}
        report.track(_search_key(trial.settings), trial.settings, values, trial.value)
    return found


def _best(place: Place, search: SearchConfig, searched: Sequence[SearchedTrial]) -> list[TrialPlan]:
    """The best trial that ran to its end, as a table's only row: the test split is touched by it alone."""
    finished = [trial for trial in searched if trial.state == "finished"]
    if not finished:
        states = sorted({trial.state for trial in searched})
        raise ValueError(f"no trial of the search ran to its end: {'; '.join(states)}")
    settings = finished[0].settings
    steps = _search_steps(place, settings)
    key = fingerprint([step.name for step in (*steps.work, steps.evaluation)])
    return [TrialPlan(key, "best", 0, place.job.seeds[0], steps, settings)]


def _search_steps(place: Place, settings: dict[str, Any]) -> TrialSteps:
    trial = place.job.trial(settings, place.job.seeds[0])
    return chain_of(place.job.system).steps(trial, str(place.store))


def _search_key(settings: dict[str, Any]) -> str:
    return f"search-{fingerprint(settings)[:12]}"


def _space(search: SearchConfig) -> dict[str, Any]:
    """The searched settings as Ray Tune's domains."""
    from ray import tune

    space: dict[str, Any] = {}
    for key, dimension in search.space.items():
        if dimension.choice:
            space[key] = tune.choice(list(dimension.choice))
            continue
        low, high = dimension.ends()
        if dimension.integer:
            space[key] = (tune.lograndint if dimension.log else tune.randint)(low, high + 1)
        else:
            space[key] = (tune.loguniform if dimension.log else tune.uniform)(low, high)
    return space


def _searcher(search: SearchConfig) -> Any:
    from ray.tune.search.basic_variant import BasicVariantGenerator

    if search.algorithm == "random":
        return BasicVariantGenerator(random_state=search.seed)
    from ray.tune.search.optuna import OptunaSearch

    return OptunaSearch(seed=search.seed)


def _scheduler(place: Place, search: SearchConfig) -> Any:
    from ray.tune.schedulers import ASHAScheduler

    if search.scheduler == "none":
        return None
    steps = _watched_steps(place, search)
    return ASHAScheduler(
        time_attr="step",
        max_t=steps + 1 if steps is not None else 10**9,  # at max_t it stops a trial, before its artifact is written
        grace_period=search.grace,
        reduction_factor=search.reduction,
    )


def _watched_steps(place: Place, search: SearchConfig) -> int | None:
    """Steps of the last training; none if it counts in epochs."""
    settings = search.expand({key: dimension.ends()[0] for key, dimension in search.space.items()})
    trial = place.job.trial(settings, place.job.seeds[0])
    return train_sections(trial)[chain_of(place.job.system).WATCHED].steps


def _say(text: str) -> None:
    print(text, flush=True)
