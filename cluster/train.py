"""Starts training runs: on Ray Train, or in this process. It names no system, only an entry ``"module:function"``.

The entry is a plain function ``f(payload: dict, context) -> dict`` that builds the task and its loaders and returns
what :func:`idc.training.loop.fit` returns; ``payload["train"]`` are the loop's settings. A run's folder holds its
config (config.json), the command and commit that started it last (origin.json) and, when complete, result.json.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.tracking import MlflowTracker, flat
from cluster.waiting import waiting_notice
from idc.atomic import write_json
from idc.provenance import ORIGIN, command_line, commit
from idc.training.config import OPERATIONAL, TrainConfig

Watch = Callable[[dict[str, float], int], None]

CONFIG, RESULT, FATAL = "config.json", "result.json", "fatal.json"

FATAL_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NameError,
    ImportError,
    NotImplementedError,
    AssertionError,
)
"""Errors that a restart would only repeat: the run ends."""

_LOOK_FOR_NODES_S = 30.0
"""Interval at which a run with fewer workers than it wants looks for new nodes, in seconds."""
_PLACEMENT_S = "20"
"""Time-out for workers to be placed. After the loss of a node Ray still counts on it for a while, and then asks again
for as many workers as the nodes that are left can take."""


def launch(
    entry: str,
    payload: dict[str, Any],
    train: TrainConfig,
    run_dir: Path | str,
    name: str | None = None,
    *,
    local: bool = False,
    overwrite: bool = False,
    parent: str | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Any] = (),
) -> dict[str, Any]:
    """Run a training to its end and return its result, also written to ``run_dir/result.json``.

    An interrupted run resumes from its newest checkpoint; a complete one is not run again.

    Args:
        entry: ``"module:function"``, importable on all workers.
        payload: the resolved job config, JSON-able; it is the run's identity together with ``entry`` and ``train``.
        train: the settings of the loop; also how many workers, and of what size.
        run_dir: the run's folder, on storage that all workers see.
        name: the run's name in the tracker; default is the folder's name.
        local: in this process, without Ray.
        overwrite: remove a run of another config that is there.
        parent: MLflow id of the run that this one is shown under.
        watch: called with the metrics and the step of every validation; with ``local`` only.
        callbacks: Ray Train ``UserCallback`` objects; without ``local`` only.

    Returns:
        ``fit``'s result (``metrics``, ``best_step``, ``seconds``, ...), ``run_dir``, and ``done_before``: true if
        the run was complete already.

    Raises:
        ValueError: if the folder holds a run of another config (the message names the differing keys), if memory ran
            out (it names the settings that need less), and for other errors that a restart would only repeat.
    """
    run_dir = Path(run_dir).absolute()
    name = name or run_dir.name
    if local and train.num_workers > 1:
        raise ValueError(f"train.num_workers={train.num_workers} needs Ray; without it (--local) set it to 1")
    record = {"entry": entry, **payload, "train": train.model_dump(mode="json")}
    record = json.loads(json.dumps(record))
    done = _claim(run_dir, record, overwrite)
    if done is not None:
        print(f"run {name} is complete ({run_dir}), nothing to do", file=sys.stderr, flush=True)
        return {**done, "done_before": True}
    tracker = MlflowTracker(train.tracking, run_dir, name, parent) if train.tracking.enabled else None
    finished = False
    try:
        if tracker is not None:
            tracker.params(flat(record))
        if local:
            _run_here(entry, record, train, run_dir, tracker, watch)
        else:
            _run_on_ray(entry, record, train, run_dir, name, callbacks)
        finished = True
    finally:
        if tracker is not None:
            tracker.end(finished)
    return {**json.loads((run_dir / RESULT).read_text(encoding="utf-8")), "done_before": False}


def _claim(run_dir: Path, record: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Return the result of the run in ``run_dir`` if it is complete; otherwise claim the folder for this run.

    Raises:
        ValueError: if another run is there.
    """
    config_path = run_dir / CONFIG
    if config_path.exists():
        saved = json.loads(config_path.read_text(encoding="utf-8"))
        if isinstance(saved.get("train"), dict):  # a setting that is newer than the run had its default
            saved["train"] = {**TrainConfig(steps=1).model_dump(mode="json"), **saved["train"]}
        differing = _differing(saved, record)
        if differing and not overwrite:
            shown = "\n  ".join(differing[:12])
            raise ValueError(
                f"{run_dir} holds a run of another config; take another run name, or --overwrite it. "
                f"Differing:\n  {shown}"
            )
        if differing:
            shutil.rmtree(run_dir)
        elif (run_dir / RESULT).exists():
            result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
            if not result["has_artifact"] or (run_dir / "artifact").exists():
                return result
            (run_dir / RESULT).unlink()
    elif run_dir.exists() and any(run_dir.iterdir()):
        raise ValueError(f"{run_dir} is not empty and not a training run (it has no {CONFIG}); take another run name")
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / FATAL).unlink(missing_ok=True)
    write_json(config_path, record)
    write_json(run_dir / ORIGIN, {"command": command_line(), "commit": commit()})
    return None


def _differing(saved: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """One line per dotted key whose values differ, except settings that do not change what is learned."""
    old, new = flat(saved), flat(record)
    operational = tuple(f"train.{field}" for field in OPERATIONAL)

    def matters(key: str) -> bool:
        return not any(key == field or key.startswith(field + ".") for field in operational)

    absent = "(absent)"
    return [
        f"{key}: saved {old.get(key, absent)!r}, now {new.get(key, absent)!r}"
        for key in sorted(old.keys() | new.keys())
        if matters(key) and old.get(key, absent) != new.get(key, absent)
    ]


def _run_entry(entry: str, record: dict[str, Any], train: TrainConfig, context: Any) -> None:
    """Run the entry on one rank; rank 0 writes the result.

    Raises:
        ValueError: memory ran out, as it would again after a restart.
    """
    import torch

    from idc.training.memory import is_out_of_memory, out_of_memory_advice

    torch.manual_seed(train.seed)
    module, _, function = entry.partition(":")
    payload = {key: value for key, value in record.items() if key != "entry"}
    try:
        result = getattr(importlib.import_module(module), function)(payload, context)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise ValueError(out_of_memory_advice(train, str(context.device), error)) from error
        raise
    if context.rank == 0:
        artifact = context.run_dir / "artifact"
        if artifact.exists():
            context.tracker.artifacts(artifact, "artifact")
        write_json(
            context.run_dir / RESULT, {**result, "run_dir": str(context.run_dir), "has_artifact": artifact.exists()}
        )


def _run_here(
    entry: str,
    record: dict[str, Any],
    train: TrainConfig,
    run_dir: Path,
    tracker: MlflowTracker | None,
    watch: Watch | None = None,
) -> None:
    from idc.training.context import LocalContext, NoTracker, Tracker, Watched

    watched: Tracker | None = tracker if watch is None else Watched(tracker or NoTracker(), watch)
    context = LocalContext(run_dir, keep_last=train.keep_last, use_gpu=train.gpus_per_worker > 0, tracker=watched)
    _run_entry(entry, record, train, context)


def _run_on_ray(
    entry: str, record: dict[str, Any], train: TrainConfig, run_dir: Path, name: str, callbacks: Sequence[Any] = ()
) -> None:
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _PLACEMENT_S)
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # relative paths of the payload stay valid in the workers
    import ray.exceptions
    import ray.train
    from ray.train.torch import TorchConfig

    from idc.training.memory import out_of_memory_advice

    resources = {"CPU": float(train.cpus_per_worker)}
    if train.gpus_per_worker:
        resources["GPU"] = train.gpus_per_worker
    trainer = _trainer()(
        _worker,
        train_loop_config={
            "entry": entry,
            "record": record,
            "train": train.model_dump(mode="json"),
            "run_dir": str(run_dir),
            "name": name,
        },
        torch_config=TorchConfig(backend="nccl" if train.gpus_per_worker else "gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=train.num_workers if train.min_workers is None else (train.min_workers, train.num_workers),
            elastic_resize_monitor_interval_s=_LOOK_FOR_NODES_S,
            use_gpu=train.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=ray.train.RunConfig(  # type: ignore[call-arg]  # mypy sees the class of Train V1
            name="checkpoints",
            storage_path=str(run_dir),
            failure_config=ray.train.FailureConfig(max_failures=train.max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=train.keep_last),
            logging_config=ray.train.LoggingConfig(log_level="WARNING"),
            callbacks=[*callbacks, _memory_watch(run_dir, train), waiting_notice(train)],
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError:
        if not (run_dir / FATAL).exists():
            raise
    except ray.exceptions.OutOfMemoryError as error:  # Ray killed the run's controller
        raise ValueError(out_of_memory_advice(train, "the controller's node", error)) from None
    if (run_dir / FATAL).exists():
        fatal = json.loads((run_dir / FATAL).read_text(encoding="utf-8"))
        print(fatal["traceback"], file=sys.stderr, flush=True)
        raise ValueError(f"{fatal['type']}: {fatal['message']}" if fatal["type"] != "ValueError" else fatal["message"])


def _trainer() -> Any:
    """TorchTrainer without the two helper processes that have nothing to do here: the manager of Ray data sets, as
    batches come from our own loaders, and, if there is no dashboard to ask, the cleaner of placement groups."""
    from ray._private.worker import get_dashboard_url
    from ray.train.torch import TorchTrainer

    idle = {"DatasetsCallback"} if get_dashboard_url() else {"DatasetsCallback", "PlacementGroupCleanerCallback"}

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            every = super()._create_default_callbacks()  # type: ignore[misc]  # the stub is Train's first version
            return [each for each in every if type(each).__name__ not in idle]

    return Trainer


def _memory_watch(run_dir: Path, train: TrainConfig) -> Any:
    """A callback of the controller: the run ends if Ray killed a worker because its node ran out of memory."""
    import ray.exceptions
    import ray.train

    class MemoryWatch(ray.train.UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            from idc.training.memory import out_of_memory_advice

            for rank, error in worker_exceptions.items():
                killed = getattr(error, "health_check_failure", error)
                if isinstance(killed, ray.exceptions.OutOfMemoryError):
                    message = out_of_memory_advice(train, f"the node of rank {rank}", killed)
                    write_json(run_dir / FATAL, {"type": "ValueError", "message": message, "traceback": str(killed)})

    return MemoryWatch()


def _worker(config: dict[str, Any]) -> None:
    """One rank of a run on Ray Train."""
    run_dir = Path(config["run_dir"])
    if (run_dir / FATAL).exists():
        return  # restarted after a fatal error: end the run, the driver reports it
    train = TrainConfig.model_validate(config["train"])
    context = _ray_context(run_dir, train, config["name"])
    try:
        _run_entry(config["entry"], config["record"], train, context)
    except FATAL_ERRORS as error:
        fatal = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
        write_json(run_dir / FATAL, fatal)
        raise  # takes the other ranks down with it: they may be waiting for this one
    finally:
        if isinstance(context.tracker, MlflowTracker):
            context.tracker.flush()


def _ray_context(run_dir: Path, train: TrainConfig, name: str) -> Any:
    """The context of this Ray Train worker."""
    import ray.train
    import ray.train.torch

    from idc.training.context import (
        COMPLETE,
        NoTracker,
        all_gather_object,
        checkpoint_name,
        complete_checkpoints,
        registered_checkpoints,
    )

    class RayContext:
        """A rank of a Ray Train run; Train collects the ranks' parts of a checkpoint, registers it when complete."""

        def __init__(self) -> None:
            worker = ray.train.get_context()
            self.rank = worker.get_world_rank()
            self.world_size = worker.get_world_size()
            self.device = ray.train.torch.get_device()
            self.run_dir = run_dir
            track = train.tracking.enabled and self.rank == 0
            self._announced: set[str] = set()
            self.tracker: Any = MlflowTracker(train.tracking, run_dir, name) if track else NoTracker()

        def checkpoint_folder(self, step: int) -> Path:
            return Path(tempfile.mkdtemp(prefix=f"idc_{checkpoint_name(step)}_"))

        def report(self, metrics: dict[str, Any], checkpoint_dir: Path | None, step: int) -> None:
            checkpoint = ray.train.Checkpoint.from_directory(str(checkpoint_dir)) if checkpoint_dir else None
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=checkpoint_name(step))
            if checkpoint_dir is not None:
                self._complete(step)
                shutil.rmtree(checkpoint_dir, ignore_errors=True)

        def _complete(self, step: int) -> None:
            """Mark a checkpoint complete, so that it counts also if the controller, which looks every few seconds, has
            not registered it when a node is lost. Train removes old ones that it knows; the others are removed here."""
            self.barrier()
            if self.rank == 0:
                checkpoints = run_dir / "checkpoints"
                (checkpoints / checkpoint_name(step) / COMPLETE).touch()
                for old in complete_checkpoints(checkpoints)[: -train.keep_last]:
                    if old.name not in registered_checkpoints(checkpoints):
                        shutil.rmtree(old, ignore_errors=True)

        def latest_checkpoint(self) -> Path | None:
            found = complete_checkpoints(run_dir / "checkpoints")  # those of a run that began without Ray, too
            registered = ray.train.get_checkpoint()
            if registered is not None:
                found.append(Path(registered.path))
            return max(found, key=lambda path: path.name) if found else None

        def loss_announced(self) -> bool:
            if os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER") == "0":
                return False
            info = ray.train.get_preemption_info()
            announced = set(info.preempted_node_ids) if info is not None else set()
            new = announced - self._announced
            self._announced |= announced
            return bool(new)

        def barrier(self) -> None:
            all_gather_object(None, self.world_size)

        def all_gather_object(self, value: Any) -> list[Any]:
            return all_gather_object(value, self.world_size)

    return RayContext()
