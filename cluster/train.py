"""Starts training runs: on Ray Train, or in this process. It names no system, only an entry ``"module:function"``.

The entry is a plain function ``f(payload: dict, context) -> dict`` that builds the task and its loaders and returns
what :func:`idc.training.loop.fit` returns; ``payload["train"]`` are the loop's settings. A run's folder holds its
config (config.json), the command and commit that started it last (origin.json) and, when complete, result.json.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.tracking import MlflowTracker, flat
from idc.data.object_store import Unreachable
from idc.evaluation.provenance import ORIGIN, command_line, commit
from idc.training.config import OPERATIONAL, TrackingConfig, TrainConfig
from idc.training.run_storage import CHECKPOINTS, RunFolder, scratch_root
from idc.training.tracker import Tracker, Watch
from idc.util import logs
from idc.util.redaction import redacted, secret_fault

if TYPE_CHECKING:
    from idc.training.context import Context

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

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
    "bad_alloc",
    "not enough memory",
)
"""Parts of the messages of a full memory: of CUDA, cuBLAS, torch's CPU allocator and C++, in lower case."""
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
    """Run a training to its end, or continue it from its newest checkpoint.

    Args:
        payload: the resolved job config, JSON-able; with ``entry`` and ``train`` it is the run's identity.
        run_dir: the run's folder, on storage that all workers see: a path, or a URI of object storage.
        name: the run's name in the tracker; default is the folder's name.
        local: in this process, without Ray.
        overwrite: remove a run of another config that is there.
        parent: MLflow id of the run that this one is shown under.
        watch: called with the metrics and the step of every validation; with ``local`` only.
        callbacks: Ray Train ``UserCallback`` objects; without ``local`` only.

    Returns:
        As in ``result.json``: ``fit``'s result and ``run_dir``; and whether it was complete already, ``done_before``.

    Raises:
        ValueError: the folder holds a run of another config, memory ran out, or another error that a restart would
            only repeat.
        Unreachable: object storage did not answer for ``train.storage_patience_s``.
    """
    run, record = RunFolder(run_dir, train.storage_patience_s), _record(entry, payload, train)
    name = name or run.location.name
    if local and train.num_workers > 1:
        raise ValueError(f"train.num_workers={train.num_workers} needs Ray; without it (--local) set it to 1")
    train = train.model_copy(update={"tracking": _tracking(train.tracking, run)})
    done = claim(run, record, overwrite)
    if done is not None:
        logs.event("done_before", f"run {name} is complete ({run}), nothing to do", run=name)
        return {**done, "done_before": True}
    logs.bind(run=name)
    tracker, finished = Tracker(), False
    try:
        if train.tracking.enabled:
            tracker = MlflowTracker(train.tracking, run.local, name, parent)
        tracker.params(flat(record))
        if local:
            from idc.training.context import LocalContext

            tracker.watch = watch
            context = LocalContext(
                run.local, keep_last=train.keep_last, use_gpu=train.gpus_per_worker > 0, tracker=tracker
            )
            with _fatal_errors_noted(run):
                run_rank(entry, record, train, run, context)
        else:
            tracked = tracker.run_id if isinstance(tracker, MlflowTracker) else None
            _run_on_ray(entry, record, train, run, name, callbacks, tracked)
        finished = True
    finally:
        tracker.end(finished)
        logs.bind(run=None)
    return {**run.read(RESULT), "done_before": False}


def is_complete(
    entry: str, payload: dict[str, Any], train: TrainConfig, run_dir: Path | str, *, overwrite: bool = False
) -> bool:
    """Whether :func:`launch` would do nothing. Reads only, and needs no Ray.

    Raises:
        ValueError: as :func:`launch`, if its folder holds something else.
    """
    run = RunFolder(run_dir, train.storage_patience_s)
    differing = _of_another_config(run, _record(entry, payload, train), overwrite)
    return not differing and run.exists(RESULT)


def _record(entry: str, payload: dict[str, Any], train: TrainConfig) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps({"entry": entry, **payload, "train": train.model_dump(mode="json")}))
    return record


def claim(run: RunFolder, record: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Return the result of the run in its folder if it is complete; otherwise claim the folder for this run.

    Raises:
        ValueError: if another run is there, unless an error ended it before its first checkpoint.
    """
    if _of_another_config(run, record, overwrite):
        run.clear(last=CONFIG)
    elif run.exists(RESULT):
        result: dict[str, Any] = run.read(RESULT)
        return result
    run.remove(FATAL)
    run.write(CONFIG, record)
    run.write(ORIGIN, {"command": command_line(), "commit": commit()})
    return None


def _of_another_config(run: RunFolder, record: dict[str, Any], overwrite: bool) -> bool:
    """Whether the folder holds a run of another config that may be removed. ValueError: it holds what may not be."""
    if not run.exists(CONFIG):
        if not run.is_empty():
            raise ValueError(f"{run} is not empty and not a training run (it has no {CONFIG}); take another run name")
        return False
    differing = _differing(run.read(CONFIG), record)
    nothing_to_lose = run.exists(FATAL) and not run.exists(CHECKPOINTS)
    if differing and not overwrite and not nothing_to_lose:
        shown = "\n  ".join(differing[:12])
        raise ValueError(
            f"{run} holds a run of another config; take another run name, or --overwrite it. Differing:\n  {shown}"
        )
    return bool(differing)


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


def _tracking(tracking: TrackingConfig, run: RunFolder) -> TrackingConfig:
    """The tracking of a run; an SQLite file, the default, cannot be on object storage."""
    for fault in tracking.preflight():
        raise ValueError(f"train.tracking.{fault}")
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    enabled = tracking.enabled and bool(uri or run.local)
    if enabled != tracking.enabled:
        text = f"{run} is not tracked in MLflow; train.tracking.uri sets a server"
        logs.event("not_tracked", text, "warning")
    if uri and secret_fault(uri) is not None:
        uri = None  # it is written nowhere; workers read it from their own environment
    return tracking.model_copy(update={"uri": uri, "enabled": enabled})


def run_rank(entry: str, record: dict[str, Any], train: TrainConfig, run: RunFolder, context: Context) -> None:
    """Run the entry on one rank; rank 0 writes the result.

    Raises:
        ValueError: memory ran out, as it would again after a restart.
    """
    import torch

    from idc.training.context import stored

    torch.manual_seed(train.seed)
    module, _, function = entry.partition(":")
    payload = {key: value for key, value in record.items() if key != "entry"}
    with stored(context, run):
        try:
            result = getattr(importlib.import_module(module), function)(payload, context)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise ValueError(out_of_memory_advice(train, str(context.device), error)) from error
            raise
        artifact = context.run_dir / "artifact"
        if context.rank == 0 and artifact.exists():
            context.tracker.artifacts(artifact, "artifact")
    if context.rank == 0:
        run.write(RESULT, {**result, "run_dir": str(run)})


def _run_on_ray(
    entry: str,
    record: dict[str, Any],
    train: TrainConfig,
    run: RunFolder,
    name: str,
    callbacks: Sequence[Any] = (),
    tracked: str | None = None,
) -> None:
    """Train on Ray Train; ``tracked`` is the id of the MLflow run."""
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _PLACEMENT_S)
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # relative paths of the payload stay valid in the workers
    import ray.exceptions
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    resources = {"CPU": float(train.cpus_per_worker)}
    if train.gpus_per_worker:
        resources["GPU"] = train.gpus_per_worker
    workers: Any = train.num_workers if train.min_workers is None else (train.min_workers, train.num_workers)
    trainer = TorchTrainer(
        _worker,
        train_loop_config={
            "entry": entry,
            "record": record,
            "train": train.model_dump(mode="json"),
            "run": run,
            "name": name,
            "tracked": tracked,
        },
        torch_config=TorchConfig(backend="nccl" if train.gpus_per_worker else "gloo"),
        scaling_config=ray.train.ScalingConfig(  # type: ignore[call-arg]  # mypy sees the class of Train V1
            num_workers=workers,
            elastic_resize_monitor_interval_s=_LOOK_FOR_NODES_S,
            use_gpu=train.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=ray.train.RunConfig(  # type: ignore[call-arg]  # mypy sees the class of Train V1
            name=name,
            storage_path=str(scratch_root() / "ray-train"),  # of Train's marker; the context stores the checkpoints
            failure_config=ray.train.FailureConfig(max_failures=train.max_failures),
            logging_config=ray.train.LoggingConfig(log_level="CRITICAL"),  # errors: by _worker, once
            callbacks=[*callbacks, _memory_watch(run, train)],
        ),
    )
    try:
        with _interrupts_restored():
            trainer.fit()
    except ray.train.TrainingFailedError:
        if not run.exists(FATAL):
            raise
    except ray.exceptions.OutOfMemoryError as error:  # Ray killed the run's controller
        raise ValueError(out_of_memory_advice(train, "the controller's node", error)) from None
    if run.exists(FATAL):
        fatal = run.read(FATAL)
        if fatal["type"] == "ValueError":  # the user's; as without Ray, one line is enough
            raise ValueError(fatal["message"])
        logs.event("failed", fatal["traceback"], "error")
        raise ValueError(f"{fatal['type']}: {fatal['message']}")


@contextmanager
def _interrupts_restored() -> Iterator[None]:
    """Context manager: Ctrl-C does at the end what it did before. Ray Train leaves its handler, which holds the run's
    controller, so that its process outlives the run, and keeps Ctrl-C from what the driver does next."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # else there is none
            signal.signal(signal.SIGINT, handler)


def _memory_watch(run: RunFolder, train: TrainConfig) -> Any:
    """A callback of the controller: the run ends if Ray killed a worker because its node ran out of memory."""
    import ray.exceptions
    import ray.train

    class MemoryWatch(ray.train.UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            for rank, error in worker_exceptions.items():
                killed = getattr(error, "health_check_failure", error)
                if isinstance(killed, ray.exceptions.OutOfMemoryError):
                    message = out_of_memory_advice(train, f"the node of rank {rank}", killed)
                    run.write(FATAL, {"type": "ValueError", "message": message, "traceback": str(killed)})

    return MemoryWatch()


@contextmanager
def _fatal_errors_noted(run: RunFolder) -> Iterator[None]:
    """Write an error that a restart would repeat into the run's folder."""
    try:
        yield
    except Unreachable:
        raise
    except FATAL_ERRORS as error:
        message, trace = redacted(str(error)), redacted(traceback.format_exc())
        with suppress(OSError, Unreachable):  # then the run is restarted in vain, up to train.max_failures times
            run.write(FATAL, {"type": type(error).__name__, "message": message, "traceback": trace})
        raise


def _worker(config: dict[str, Any]) -> None:
    run: RunFolder = config["run"]
    if run.exists(FATAL):
        return  # restarted after a fatal error: end the run, the driver reports it
    train = TrainConfig.model_validate(config["train"])
    context = _ray_context(run.local, train, config["name"], config["tracked"])
    try:
        with _fatal_errors_noted(run):
            run_rank(config["entry"], config["record"], train, run, context)
    except Exception as error:
        if isinstance(error, Unreachable) or not isinstance(error, FATAL_ERRORS):
            text = f"rank {context.rank} failed, {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            logs.event("worker_failed", text, "error", traceback=traceback.format_exc())
        raise  # takes the other ranks down with it: they may be waiting for this one
    finally:
        context.tracker.flush()


def _ray_context(run_dir: Path | None, train: TrainConfig, name: str, tracked: str | None) -> Any:
    """The context of this Ray Train worker; ``run_dir`` is None on object storage, ``tracked`` the MLflow run's id."""
    import ray.train
    import ray.train.torch

    from idc.training.context import Context

    worker = ray.train.get_context()
    rank = worker.get_world_rank()
    logs.bind(run=name, rank=rank)
    tracker = Tracker()
    if tracked is not None and rank == 0:  # a restarted worker does not depend on the server
        tracker = MlflowTracker(train.tracking, run_dir, name, run_id=tracked)

    class RayContext(Context):
        """A rank of a Ray Train run, that also reports the metrics to Ray Train and knows which nodes will be lost."""

        announced: frozenset[str] = frozenset()

        def report(self, metrics: dict[str, Any], checkpoint: Path) -> None:
            super().report(metrics, checkpoint)
            ray.train.report(metrics)

        def preemption_announced(self) -> bool:
            if os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER") == "0":
                return False
            info = ray.train.get_preemption_info()
            before, self.announced = self.announced, self.announced.union(info.preempted_node_ids if info else ())
            return self.announced != before

    device, world_size = ray.train.torch.get_device(), worker.get_world_size()
    return RayContext(run_dir or Path(), rank, world_size, device, tracker, train.keep_last)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch raised ``error`` because the memory of the device or of the machine was full."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _OUT_OF_MEMORY)


def out_of_memory_advice(train: TrainConfig, device: str, error: BaseException) -> str:
    """Error message: what failed, and which settings reduce the memory.

    Args:
        device: where memory ran out: a rank's device such as ``cuda:0``, or a node.
    """
    samples = train.micro_batch_size // train.num_workers
    advice = []
    if samples > 1:
        advice.append(
            f"raise train.grad_accumulation, now {train.grad_accumulation} (micro-batches of {samples} samples per "
            "worker); the losses stay the same"
        )
    if not train.activation_checkpointing:
        advice.append("train.activation_checkpointing=true (if the system has a part for it); the losses stay the same")
    advice.append(f"lower train.batch_size, now {train.batch_size}, which changes what is learned")
    if train.precision == "fp32" and device.startswith("cuda"):
        advice.append("train.precision=bf16")
    if train.num_workers > 1 and train.zero_stage < 2:
        advice.append("train.engine=deepspeed train.zero_stage=2, which shards the optimizer")
    text = " ".join(str(error).split())[:300]
    return f"out of memory on {device}: {text}\nThe run was not restarted. Remedies: " + "; or ".join(advice) + "."
