"""Starts training runs: on Ray Train, or in this process. It names no system, only an entry ``"module:function"``.

The entry is a plain function ``f(payload: dict, context) -> dict`` that builds the task and its loaders and returns
what :func:`idc.training.loop.fit` returns; ``payload["train"]`` are the loop's settings. A run's folder holds its
config (config.json), the command and commit that started it last (origin.json) and, when complete, result.json.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
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
"""Errors that a restart would only repeat; they end the run."""

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
    "bad_alloc",
    "not enough memory",
)
"""Parts, in lower case, of the messages with which CUDA, cuBLAS, torch's CPU allocator and C++ report a full memory."""
_LOOK_FOR_NODES_S = 30.0
"""Interval at which a run with fewer workers than it wants looks for new nodes, in seconds."""
_PLACEMENT_S = "20"
"""Time-out for workers to be placed. After the loss of a node Ray still counts on it for a while, and then asks again
for as many workers as the nodes that are left can take."""


@dataclass(frozen=True)
class TrainingRun:
    """What a run is: made once by the command, and sent to the workers as it is.

    Attributes:
        entry: ``"module:function"`` of the training.
        payload: argument of the entry: the resolved config of the job, JSON-able, also with ``train``. With ``entry``
            it is the run's identity.
        train: the settings of the loop.
        folder: the run's folder, on storage that all workers see.
    """

    entry: str
    payload: dict[str, Any]
    train: TrainConfig
    folder: RunFolder

    @classmethod
    def in_folder(cls, entry: str, payload: dict[str, Any], train: TrainConfig, path: Path | str) -> TrainingRun:
        """The run of a config without its ``train``, in a folder that is a path or a URI of object storage."""
        whole = {**payload, "train": train.model_dump(mode="json")}
        return cls(entry, whole, train, RunFolder(path, train.storage_patience_s))

    @property
    def name(self) -> str:
        """The run's name in the tracker."""
        return self.folder.location.name

    @property
    def record(self) -> dict[str, Any]:
        """The run's identity, as its folder keeps it."""
        return {"entry": self.entry, **self.payload}

    def is_complete(self, overwrite: bool) -> bool:
        """Whether :func:`launch` would do nothing. Reads only, and needs no Ray.

        Raises:
            ValueError: as :func:`launch`, if the folder holds something else.
        """
        return not _of_another_config(self, overwrite) and self.folder.exists(RESULT)


def launch(
    run: TrainingRun,
    *,
    local: bool = False,
    overwrite: bool = False,
    parent: str | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Any] = (),
) -> dict[str, Any]:
    """Run a training to its end, or continue it from its newest checkpoint.

    Args:
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
    if local and run.train.num_workers > 1:
        raise ValueError(f"train.num_workers={run.train.num_workers} needs Ray; without it (--local) set it to 1")
    train = run.train.model_copy(update={"tracking": _tracking(run.train.tracking, run.folder)})
    run = replace(run, train=train)
    if (done := claim(run, overwrite)) is not None:
        logs.event("done_before", f"run {run.name} is complete ({run.folder}), nothing to do", run=run.name)
        return {**done, "done_before": True}
    logs.bind(run=run.name)
    tracker, finished = Tracker(), False
    try:
        if train.tracking.enabled:
            tracker = MlflowTracker(train.tracking, run.folder.local, run.name, parent)
        tracker.params(flat(run.record))
        if local:
            from idc.training.context import LocalContext

            tracker.watch = watch
            use_gpu = train.gpus_per_worker > 0
            context = LocalContext(run.folder.local, keep_last=train.keep_last, use_gpu=use_gpu, tracker=tracker)
            with _fatal_errors_noted(run.folder):
                run_rank(run, context)
        else:
            _run_on_ray(run, callbacks, tracker.run_id if isinstance(tracker, MlflowTracker) else None)
        finished = True
    finally:
        tracker.end(finished)
        logs.bind(run=None)
    return {**run.folder.read(RESULT), "done_before": False}


def claim(run: TrainingRun, overwrite: bool) -> dict[str, Any] | None:
    """Return the result of the run in its folder if it is complete; otherwise claim the folder for this run.

    Raises:
        ValueError: if another run is there, unless an error ended it before its first checkpoint.
    """
    folder = run.folder
    if _of_another_config(run, overwrite):
        folder.clear(last=CONFIG)
    elif folder.exists(RESULT):
        result: dict[str, Any] = folder.read(RESULT)
        return result
    folder.remove(FATAL)
    folder.write(CONFIG, run.record)
    folder.write(ORIGIN, {"command": command_line(), "commit": commit()})
    return None


def _of_another_config(run: TrainingRun, overwrite: bool) -> bool:
    """Whether the folder holds a run of another config that may be removed.

    Raises:
        ValueError: the folder holds something that may not be removed.
    """
    folder = run.folder
    if not folder.exists(CONFIG):
        if not folder.is_empty():
            raise ValueError(
                f"{folder} is not empty and not a training run (it has no {CONFIG}); take another run name"
            )
        return False
    differing = _differing(folder.read(CONFIG), run.record)
    nothing_to_lose = folder.exists(FATAL) and not folder.exists(CHECKPOINTS)
    if differing and not overwrite and not nothing_to_lose:
        shown = "\n  ".join(differing[:12])
        raise ValueError(
            f"{folder} holds a run of another config; take another run name, or --overwrite it. Differing:\n  {shown}"
        )
    return bool(differing)


def _differing(saved: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """One line per dotted key whose values differ, except settings that do not change what is learned."""
    old, new, absent = flat(saved), flat(record), "(absent)"
    operational = [["train", field] for field in OPERATIONAL]
    return [
        f"{key}: saved {old.get(key, absent)!r}, now {new.get(key, absent)!r}"
        for key in sorted(old.keys() | new.keys())
        if key.split(".")[:2] not in operational and old.get(key, absent) != new.get(key, absent)
    ]


def _tracking(tracking: TrackingConfig, folder: RunFolder) -> TrackingConfig:
    """The tracking as the run uses it: switched off on object storage, where the default, an SQLite file, cannot be."""
    for fault in tracking.preflight():
        raise ValueError(f"train.tracking.{fault}")
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    enabled = tracking.enabled and bool(uri or folder.local)
    if enabled != tracking.enabled:
        text = f"{folder} is not tracked in MLflow; train.tracking.uri sets a server"
        logs.event("not_tracked", text, "warning")
    if uri and secret_fault(uri) is not None:
        uri = None  # it is written nowhere; workers read it from their own environment
    return tracking.model_copy(update={"uri": uri, "enabled": enabled})


def run_rank(run: TrainingRun, context: Context) -> None:
    """Run the entry on one rank; rank 0 writes the result.

    Raises:
        ValueError: memory ran out, as it would again after a restart.
    """
    import torch

    from idc.training.context import stored

    torch.manual_seed(run.train.seed)
    with stored(context, run.folder):
        try:
            result = resolve_name(run.entry)(run.payload, context)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise ValueError(out_of_memory_advice(run.train, str(context.device), error)) from error
            raise
        artifact = context.run_dir / "artifact"
        if context.rank == 0 and artifact.exists():
            context.tracker.artifacts(artifact, "artifact")
    if context.rank == 0:
        run.folder.write(RESULT, {**result, "run_dir": str(run.folder)})


def _run_on_ray(run: TrainingRun, callbacks: Sequence[Any], tracked: str | None) -> None:
    """Train on Ray Train; ``tracked`` is the id of the MLflow run."""
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", _PLACEMENT_S)
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # relative paths of the payload stay valid in the workers
    import ray.exceptions
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    train = run.train
    resources = {"CPU": float(train.cpus_per_worker)}
    if train.gpus_per_worker:
        resources["GPU"] = train.gpus_per_worker
    workers: Any = train.num_workers if train.min_workers is None else (train.min_workers, train.num_workers)
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"run": run, "tracked": tracked},
        torch_config=TorchConfig(backend="nccl" if train.gpus_per_worker else "gloo"),
        scaling_config=ray.train.ScalingConfig(  # type: ignore[call-arg]  # mypy sees the class of Train V1
            num_workers=workers,
            elastic_resize_monitor_interval_s=_LOOK_FOR_NODES_S,
            use_gpu=train.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=ray.train.RunConfig(  # type: ignore[call-arg]  # mypy sees the class of Train V1
            name=run.name,
            storage_path=str(scratch_root() / "ray-train"),  # of Train's marker; the context stores the checkpoints
            failure_config=ray.train.FailureConfig(max_failures=train.max_failures),
            logging_config=ray.train.LoggingConfig(log_level="CRITICAL"),  # errors: by _worker, once
            callbacks=[*callbacks, _memory_watch(run)],
        ),
    )
    try:
        with _interrupts_restored():
            trainer.fit()
    except ray.train.TrainingFailedError:
        if not run.folder.exists(FATAL):
            raise
    except ray.exceptions.OutOfMemoryError as error:  # Ray killed the run's controller
        raise ValueError(out_of_memory_advice(train, "the controller's node", error)) from None
    if run.folder.exists(FATAL):
        fatal = run.folder.read(FATAL)
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


def _memory_watch(run: TrainingRun) -> Any:
    """A callback of the controller: the run ends if Ray killed a worker because its node ran out of memory."""
    import ray.exceptions
    import ray.train

    class MemoryWatch(ray.train.UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            for rank, error in worker_exceptions.items():
                killed = getattr(error, "health_check_failure", error)
                if isinstance(killed, ray.exceptions.OutOfMemoryError):
                    message = out_of_memory_advice(run.train, f"the node of rank {rank}", killed)
                    run.folder.write(FATAL, {"type": "ValueError", "message": message, "traceback": str(killed)})

    return MemoryWatch()


@contextmanager
def _fatal_errors_noted(folder: RunFolder) -> Iterator[None]:
    """Write an error that a restart would repeat into the run's folder."""
    try:
        yield
    except Unreachable:
        raise
    except FATAL_ERRORS as error:
        message, trace = redacted(str(error)), redacted(traceback.format_exc())
        with suppress(OSError, Unreachable):  # then the run is restarted in vain, up to train.max_failures times
            folder.write(FATAL, {"type": type(error).__name__, "message": message, "traceback": trace})
        raise


def _worker(config: dict[str, Any]) -> None:
    run: TrainingRun = config["run"]
    if run.folder.exists(FATAL):
        return  # restarted after a fatal error: end the run, the driver reports it
    context = _ray_context(run, config["tracked"])
    try:
        with _fatal_errors_noted(run.folder):
            run_rank(run, context)
    except Exception as error:
        if isinstance(error, Unreachable) or not isinstance(error, FATAL_ERRORS):
            text = f"rank {context.rank} failed, {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            logs.event("worker_failed", text, "error", traceback=traceback.format_exc())
        raise  # takes the other ranks down with it: they may be waiting for this one
    finally:
        context.tracker.flush()


def _ray_context(run: TrainingRun, tracked: str | None) -> Any:
    """The context of this Ray Train worker; ``tracked`` is the id of the MLflow run."""
    import ray.train
    import ray.train.torch

    from idc.training.context import Context

    worker = ray.train.get_context()
    rank = worker.get_world_rank()
    logs.bind(run=run.name, rank=rank)
    tracker = Tracker()
    if tracked is not None and rank == 0:  # a restarted worker does not depend on the server
        tracker = MlflowTracker(run.train.tracking, run.folder.local, run.name, run_id=tracked)

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
    return RayContext(run.folder.local or Path(), rank, world_size, device, tracker, run.train.keep_last)


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
