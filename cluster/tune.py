"""Runs sweeps: the trials of a table on Ray Tune or one after the other in this process, or a search on Ray Tune, with
settings by Optuna and bad trials stopped early by ASHA. It names no system.

Ray Tune keeps its own state in pickles, and restoring it executes them. It is never read: a search that was killed is
rebuilt from the files of its trials. They are proposed again in their order; those that had ended report what they
reported then, without training, so that Optuna and ASHA know it, and the others go on from their checkpoints.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.config import ClusterConfig
from cluster.preflight import Bundle, Requirements, training_workers
from cluster.session import session
from cluster.tracking import MlflowTracker, flat
from cluster.train import FATAL_ERRORS
from cluster.trials import LOST, Reporter, Workspace, failure_of, run_step, run_trial, tune_trials
from idc.data.store import fingerprint
from idc.sweep.config import STEPS, TOKENS_PER_SECOND, RowConfig, SweepJob
from idc.sweep.plan import TrialPlan, plan_table, plan_trial, spread_out
from idc.sweep.search import SearchConfig
from idc.sweep.summary import SearchedTrial, SweepResult, reading_fault, summarise_sweep
from idc.training.tracker import Tracker
from idc.util import logs
from idc.util.atomic import write_json

_RUNNING = "running"
"""State of a trial whose end the driver has not seen."""


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
        tracking = job.tracking.model_copy(update={"uri": tracker.uri})
        inlined = workspace.job.model_copy(update={"tracking": tracking})
        workspace = replace(workspace, job=inlined, parent=tracker.run_id)
    try:
        tracker.params(flat(job.model_dump(mode="json", exclude={"rows", "note"})))
        plans = plan_table(workspace.job, str(workspace.store)) if job.search is None else []
        workers = {Bundle("trials.gpus", 1, job.trials.cpus, job.trials.gpus)}
        workers |= {training_workers(step.train) for plan in plans for step in plan.steps.work if step.train}
        with session(cluster, Requirements(job, [*workers], job.runs), local):
            searched: list[SearchedTrial] = []
            if job.search is not None:
                searched = run_search(workspace, job.search)
                plans = [best_trial(workspace, job.search, searched)]
            _table(workspace, plans)
            done = [plan for plan in plans if plan.done(workspace.store)]
            _run_timing_steps(workspace, done)
        lost = {plan.label: fault for plan in done if (fault := reading_fault(plan, workspace.store)) is not None}
        done = [plan for plan in done if plan.label not in lost]
        rows = job.table or tuple(RowConfig(label="best", settings=plan.settings) for plan in plans)
        failed = lost | {p.label: failure_of(workspace, p) for p in plans if p not in done and p.label not in lost}
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


# -- search ---------------------------------------------------------------------------------------------------------


def run_search(workspace: Workspace, search: SearchConfig) -> list[SearchedTrial]:
    """Run the search, or resume it; returns its trials, the best first."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.search.optuna import OptunaSearch

    total = _watched_steps(workspace, search)
    begun = _read_trials(workspace)
    ended = {key: trial for key, trial in begun.items() if trial.state != _RUNNING}
    report = Reporter(workspace, search.num_trials)
    worst = -float("inf")
    if begun:
        print(f"{workspace.job.name}: resuming the search; {len(ended)} of {len(begun)} trials have ended", flush=True)

    class Validations(TuneReportCallback):
        """Forwards those reports of a Ray Train run that contain the searched metric."""

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if search.metric in metrics[0] and metrics[0]["step"] != total:
                super().after_report(run_context, metrics, checkpoint)

    class Ends(tune.Callback):
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            report.started(_label(search.expand(trial.config)))

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            value = f"{search.metric} {100 * result[search.metric]:.1f}"
            print(f"step {result['step']}: {_label(search.expand(trial.config))}: {value}", flush=True)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            settings = search.expand(trial.config)
            path = _trial_file(workspace, _search_key(settings))
            if path.stem not in ended:
                state = _record_end(path, settings, search.metric, trial.last_result or {})
                print(f"{state}: {_label(settings)}", flush=True)

        on_trial_error = on_trial_complete

    def trainable(config: dict[str, Any]) -> None:
        settings = search.expand(config)
        path = _trial_file(workspace, _search_key(settings))
        if (earlier := ended.get(path.stem)) is not None:
            tune.report({search.metric: worst if earlier.value is None else earlier.value, "step": earlier.step})
            return

        def record(value: float | None, step: int, state: str) -> None:
            trial = SearchedTrial(settings=settings, value=value, step=step, state=state)
            write_json(path, trial.model_dump(mode="json"))

        def watch(metrics: dict[str, float], step: int) -> None:
            record(metrics[search.metric], step, _RUNNING)
            if step != total:  # the last one is reported once the artifact is written
                tune.report({search.metric: metrics[search.metric], "step": step})

        if not path.exists():
            record(None, 0, _RUNNING)
        try:
            *before, last = _plan(workspace, settings).steps.work
            for step in before:
                run_step(step, workspace)
            callbacks = [Validations()] if workspace.job.trials.mode == "ray_train" else []
            result = run_step(last, workspace, watch, callbacks)
            value = result["metrics"][search.metric]
        except FATAL_ERRORS as error:
            record(None, 0, f"{type(error).__name__}: {error}")
            logs.event("trial_failed", traceback.format_exc(), "error")
            tune.report({search.metric: worst, "step": 0})
            return
        record(value, result["steps"], "finished")
        tune.report({search.metric: value, "step": result["steps"]})

    if len(ended) < search.num_trials:
        proposals = [_proposal(search, trial) for trial in begun.values()]
        tune_trials(
            workspace,
            trainable,
            _space(search),
            Ends(),
            metric=search.metric,
            mode="max",
            num_samples=search.num_trials,
            # Another seed after a restart: with the same one it would draw its first trials again.
            search_alg=OptunaSearch(seed=search.seed + len(begun), points_to_evaluate=proposals),
            scheduler=_scheduler(total, search),
        )
    searched = list(_read_trials(workspace).values())
    searched.sort(key=lambda trial: (trial.value is None, -(trial.value or 0.0)))
    for trial in searched:
        values = {search.metric: trial.value} if trial.value is not None else {}
        report.track(_search_key(trial.settings), trial.settings, values, trial.value is not None)
    return searched


def _label(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} = {value:.3g}" if isinstance(value, float) else f"{key} = {value}" for key, value in settings.items()
    )


def _trial_file(workspace: Workspace, key: str) -> Path:
    return workspace.folder / "trials" / f"{key}.json"


def _read_trials(workspace: Workspace) -> dict[str, SearchedTrial]:
    """Key -> trial of all that have begun, in the order in which they were last recorded."""
    paths = sorted((workspace.folder / "trials").glob("search-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return {path.stem: SearchedTrial.model_validate_json(path.read_text("utf-8")) for path in paths}


def _record_end(path: Path, settings: dict[str, Any], metric: str, result: Mapping[str, Any]) -> str:
    """Record the end of a trial whose own process could not: it was stopped early, as a Ray Train run with the last
    value that Tune has; or lost before it had recorded anything. Returns its state."""
    trial = SearchedTrial(settings=settings, value=None, step=0, state=LOST)
    if path.exists():
        trial = SearchedTrial.model_validate_json(path.read_text("utf-8"))
        if trial.state == _RUNNING:
            last = {} if trial.value is not None or metric not in result else result
            value, step = last.get(metric, trial.value), last.get("step", trial.step)
            trial = trial.model_copy(update={"value": value, "step": step, "state": "stopped early"})
    write_json(path, trial.model_dump(mode="json"))
    return trial.state


def _proposal(search: SearchConfig, trial: SearchedTrial) -> dict[str, Any]:
    """The searcher's proposal for a trial: the searched ones of its settings."""
    proposal = {}
    for key, dimension in search.space.items():
        value = trial.settings[key]
        # A choice as the space has it: JSON makes lists of tuples.
        proposal[key] = next((option for option in dimension.choice if json.loads(json.dumps(option)) == value), value)
    return proposal


def best_trial(workspace: Workspace, search: SearchConfig, searched: Sequence[SearchedTrial]) -> TrialPlan:
    """The best finished trial as a plan: only this one is evaluated on the test split."""
    finished = [trial for trial in searched if trial.state == "finished"]
    if not finished:
        states = sorted({trial.state for trial in searched})
        raise ValueError(f"no trial of the search finished: {'; '.join(states)}")
    return _plan(workspace, finished[0].settings)


def _plan(workspace: Workspace, settings: dict[str, Any]) -> TrialPlan:
    return plan_trial(workspace.job, str(workspace.store), "best", settings, workspace.job.seeds[0])


def _search_key(settings: dict[str, Any]) -> str:
    return f"search-{fingerprint(settings)[:12]}"


def _space(search: SearchConfig) -> dict[str, Any]:
    from ray import tune

    return {
        key: tune.choice(list(dimension.choice))
        if dimension.choice
        else (tune.loguniform if dimension.log else tune.uniform)(*dimension.ends())
        for key, dimension in search.space.items()
    }


def _scheduler(steps: int | None, search: SearchConfig) -> Any:
    """For trainings of so many steps; None if they are given in epochs."""
    from ray.tune.schedulers import ASHAScheduler

    if search.scheduler == "none":
        return None
    return ASHAScheduler(
        time_attr="step",
        max_t=steps + 1 if steps is not None else 10**9,  # at max_t ASHA stops a trial, before it has an artifact
        grace_period=search.grace,
        reduction_factor=3,
    )


def _watched_steps(workspace: Workspace, search: SearchConfig) -> int | None:
    """Number of steps of the last training; None if it is given in epochs."""
    settings = search.expand({key: dimension.ends()[0] for key, dimension in search.space.items()})
    trial = workspace.job.trial(settings, workspace.job.seeds[0])
    return trial.loops[trial.SEARCHED].steps
