"""The trials of a sweep: where they run, their steps, their results, and how Ray Tune starts them.

A trial is a chain of steps (:mod:`idc.sweep.chain`). A step's folder is named by what it depends on; it is locked while
one process works in it, and a file next to it marks that it is done. So a step is done once for all trials that need
it, and an interrupted sweep resumes: finished trials are not repeated, a training continues from its last checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from filelock import FileLock

from cluster.config import ClusterConfig
from cluster.session import run_chunks
from cluster.tracking import MlflowTracker, flat
from cluster.train import FATAL_ERRORS, TrainingRun, launch
from idc.evaluation.record import load_evaluation
from idc.sweep.chain import Step
from idc.sweep.config import SweepJob
from idc.sweep.plan import TrialPlan
from idc.training.tracker import Watch
from idc.util import logs
from idc.util.atomic import write_json, write_text
from idc.util.redaction import redacted

_WAITING_CPUS = 0.1
"""CPUs reserved for a trial's process while its trainings are Ray Train runs."""

LOST = "its process was lost"
"""The error of a trial that could not record its own."""

_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths stay valid in trials
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # trials write their own files; MLflow is written here
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a table of its settings, however quiet it is to be
    "TUNE_GLOBAL_CHECKPOINT_S": "2",  # write the state of a search soon after it changes
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a Ray Train run also reports before its first validation
}


@dataclass(frozen=True)
class Workspace:
    """All that the trials of a sweep share.

    Attributes:
        folder: the sweep's own.
        store: folder of all steps.
        job: the sweep, inlined; if it is tracked, with the URI of its store.
        cluster: where data jobs run.
        local: whether all runs without Ray.
        parent: MLflow run id of the sweep; None if it is not tracked.
    """

    folder: Path
    store: Path
    job: SweepJob
    cluster: ClusterConfig
    local: bool
    parent: str | None = None


def run_step(
    step: Step, workspace: Workspace, watch: Watch | None = None, callbacks: Sequence[Any] = (), alone: bool = False
) -> dict[str, Any]:
    """Run a step unless it is done; if another process is running it, wait for that. Returns its result.

    Args:
        watch, callbacks: for a training, passed to :func:`cluster.train.launch`.
        alone: the step measures time and no other step is running.
    """
    marker = workspace.store / f"{step.name}.json"
    folder = workspace.store / step.name
    with FileLock(workspace.store / f".{step.name}.lock"):
        if marker.exists() and folder.exists():
            stored_result: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))["result"]
            return stored_result
        started = time.monotonic()
        plain = workspace.local or workspace.job.trials.mode == "plain"
        if step.train is not None:
            train = step.train.model_copy(update={"tracking": workspace.job.tracking})
            result = launch(
                TrainingRun.in_folder(step.entry, step.payload, train, folder),
                local=plain,
                parent=workspace.parent,
                watch=watch if plain else None,
                callbacks=callbacks,
            )
            seconds = result["seconds"]  # of all starts of the run together
        else:
            run = partial(run_chunks, plain, workspace.cluster)
            if not plain or (alone and not workspace.local):
                result = _remote(step, str(folder), run, workspace)
            else:
                result = _call(step, str(folder), run)
            folder.mkdir(exist_ok=True)  # for a step whose only output is its result
            seconds = time.monotonic() - started
        cpus = 1.0 if plain and step.train is None else step.cpus
        record = {"name": step.name, "seconds": seconds, "cpus": cpus, "gpus": step.gpus, "result": result}
        write_json(marker, record)
        return result


def _call(step: Step, folder: str, run: Any) -> dict[str, Any]:
    result: dict[str, Any] = resolve_name(step.entry)(step.payload, folder, run)
    return result


def _remote(step: Step, folder: str, run: Any, workspace: Workspace) -> dict[str, Any]:
    """Run the step in a process of its own with the cores and GPUs it needs."""
    import ray

    # Outside the trial's placement group, which reserves only what a waiting trial needs.
    cpus = workspace.job.trials.cpus
    task = ray.remote(num_cpus=cpus, num_gpus=step.gpus, max_retries=0, scheduling_strategy="DEFAULT")(_call)
    result: dict[str, Any] = ray.get(task.remote(step, folder, run))
    return result


def run_trial(plan: TrialPlan, workspace: Workspace) -> bool:
    """Run the steps of a table's trial. Returns False if it failed in a way that would repeat."""
    failure = _failure_file(workspace, plan)
    failure.unlink(missing_ok=True)
    try:
        for step in plan.steps.scored:
            run_step(step, workspace)
    except FATAL_ERRORS as error:
        write_text(failure, redacted(f"{type(error).__name__}: {error}"))
        logs.event("trial_failed", traceback.format_exc(), "error", trial=plan.label)
        return False
    return True


def failure_of(workspace: Workspace, plan: TrialPlan) -> str:
    path = _failure_file(workspace, plan)
    return path.read_text(encoding="utf-8") if path.exists() else LOST


def _failure_file(workspace: Workspace, plan: TrialPlan) -> Path:
    return workspace.folder / "trials" / f"{plan.key}.failed"


class Reporter:
    """Prints on the driver which trials have begun, and their results; tracks these as children of the sweep's MLflow
    run."""

    def __init__(self, workspace: Workspace, total: int):
        self.workspace, self.total, self.number = workspace, total, 0

    def started(self, label: str) -> None:
        print(f"begun: {label}", flush=True)

    def __call__(self, plan: TrialPlan) -> None:
        self.number += 1
        store, done = self.workspace.store, plan.done(self.workspace.store)
        scores = load_evaluation(store / plan.steps.evaluation.name).scores if done else {}
        text = "  ".join(f"{name} {100 * value:.1f}" for name, value in scores.items())
        text = text or f"FAILED: {failure_of(self.workspace, plan)}"
        print(f"trial {self.number} of {self.total}: {plan.label}: {text}", flush=True)
        self.track(plan.label, {**plan.settings, "seed": plan.seed, "steps": " ".join(plan.required)}, scores, done)

    def track(self, label: str, params: dict[str, Any], scores: dict[str, float], finished: bool) -> None:
        if self.workspace.parent is None:
            return
        job = self.workspace.job
        tracker = MlflowTracker(job.tracking, self.workspace.folder, f"{job.name}: {label}", self.workspace.parent)
        tracker.params(flat(params))
        tracker.metrics(scores, step=0)
        tracker.end(finished)


def tune_trials(
    workspace: Workspace,
    trainable: Callable[[dict[str, Any]], None],
    space: dict[str, Any],
    callback: Any,
    **config: Any,
) -> None:
    """Run trials on Ray Tune, ``trials.concurrent`` at a time.

    Args:
        trainable: a trial, given its point of ``space``.
        callback: a Ray Tune callback.
        config: further settings of Ray Tune's ``TuneConfig``.
    """
    os.environ.update(_ENVIRONMENT)
    from ray import tune

    trials = workspace.job.trials
    cpus, gpus = (_WAITING_CPUS, 0.0) if trials.mode == "ray_train" else (trials.cpus, trials.gpus)
    shutil.rmtree(workspace.folder / "tune", ignore_errors=True)  # the trials' own files record what is done
    # Tune looks for its own result files, which these trials do not write, and would warn about each missing one.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    tune.Tuner(
        tune.with_resources(trainable, {"CPU": cpus, "GPU": gpus}),
        param_space=space,
        tune_config=tune.TuneConfig(
            max_concurrent_trials=trials.concurrent, trial_dirname_creator=lambda trial: trial.trial_id, **config
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(workspace.folder.absolute()),
            failure_config=tune.FailureConfig(max_failures=trials.max_failures),
            callbacks=[callback],
            verbose=0,
        ),
    ).fit()
