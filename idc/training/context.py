"""Where a training loop runs: rank, device, folder, checkpoints. The Ray implementation is in ``cluster/train.py``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

COMPLETE = "complete"
"""Name of the file that marks a checkpoint's folder as complete."""
SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Ray Train's list of checkpoints, in the folder of all checkpoints."""


class Tracker(Protocol):
    """An experiment tracker, in addition to the loop's own log.jsonl. Called on rank 0 only."""

    def params(self, values: dict[str, Any]) -> None:
        """Settings, flat dotted keys."""

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Scalars of a step; returns at once."""

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        """A picture: uint8 array (H, W, 3) or a PIL image; ``name`` without suffix."""

    def text(self, name: str, text: str) -> None:
        """A text file."""

    def artifacts(self, folder: Path, name: str) -> None:
        """A folder of files under ``name``."""


class NoTracker:
    """Tracks nothing."""

    def params(self, values: dict[str, Any]) -> None: ...

    def metrics(self, values: dict[str, float], step: int) -> None: ...

    def image(self, name: str, image: Any, step: int | None = None) -> None: ...

    def text(self, name: str, text: str) -> None: ...

    def artifacts(self, folder: Path, name: str) -> None: ...


class Watched:
    """Passes everything on to another tracker, and calls ``watch`` with the metrics and the step of each validation."""

    def __init__(self, tracker: Tracker, watch: Callable[[dict[str, float], int], None]):
        self._tracker = tracker
        self._watch = watch

    def params(self, values: dict[str, Any]) -> None:
        self._tracker.params(values)

    def metrics(self, values: dict[str, float], step: int) -> None:
        self._tracker.metrics(values, step)
        prefix = "validation/"
        if validation := {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}:
            self._watch(validation, step)

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        self._tracker.image(name, image, step)

    def text(self, name: str, text: str) -> None:
        self._tracker.text(name, text)

    def artifacts(self, folder: Path, name: str) -> None:
        self._tracker.artifacts(folder, name)


class Context(Protocol):
    """Where the loop runs."""

    rank: int
    world_size: int
    device: torch.device
    run_dir: Path
    """The run's folder, the same for all ranks (shared storage if they are on several machines)."""
    tracker: Tracker

    def checkpoint_folder(self, step: int) -> Path:
        """An empty folder into which this rank writes its part of the checkpoint of ``step``."""
        ...

    def report(self, metrics: dict[str, Any], checkpoint_dir: Path | None, step: int) -> None:
        """Publish metrics and, atomically, the checkpoint written by all ranks. Every rank calls it."""
        ...

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint of this run, or None."""
        ...

    def loss_announced(self) -> bool:
        """Whether the end of a machine of this run was announced since the last call. Every rank calls it, and all get
        the same answer."""
        ...

    def barrier(self) -> None: ...

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        ...


class LocalContext:
    """Runs without Ray: one process, or several that ``torchrun`` started (torch.distributed is then initialised).

    Checkpoints are folders ``run_dir/checkpoints/step_00000020``, written under another name and renamed, so that a
    process may be killed at any time.

    Args:
        run_dir: the run's folder; None if it is on object storage (:mod:`idc.training.run_storage`).
    """

    def __init__(
        self, run_dir: Path | str | None, *, keep_last: int = 2, use_gpu: bool = False, tracker: Tracker | None = None
    ):
        if run_dir is not None:
            self.run_dir = Path(run_dir)
            self.run_dir.mkdir(parents=True, exist_ok=True)
        self.keep_last = keep_last
        self.tracker: Tracker = tracker or NoTracker()
        distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if distributed else 0
        self.world_size = dist.get_world_size() if distributed else 1
        if use_gpu and not torch.cuda.is_available():
            raise ValueError("train.gpus_per_worker is above 0, and torch sees no GPU here; set it to 0")
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if use_gpu else torch.device("cpu")

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    def checkpoint_folder(self, step: int) -> Path:
        partial = self._partial(step)
        if self.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self.barrier()  # the other ranks write below it
        folder = partial / f"rank_{self.rank}"
        folder.mkdir()
        return folder

    def _partial(self, step: int) -> Path:
        """The folder with one folder for each rank while a checkpoint is written."""
        return self.checkpoints / f".partial_{step:08d}"

    def report(self, metrics: dict[str, Any], checkpoint_dir: Path | None, step: int) -> None:
        if checkpoint_dir is None:
            return
        # All ranks have written their parts.
        self.barrier()
        if self.rank == 0:
            for rank in range(1, self.world_size):
                _move_files(self._partial(step) / f"rank_{rank}", checkpoint_dir)
            # Marked before it is renamed: under its final name it is never seen unfinished.
            (checkpoint_dir / COMPLETE).touch()
            target = self.checkpoints / checkpoint_name(step)
            shutil.rmtree(target, ignore_errors=True)
            checkpoint_dir.rename(target)
            shutil.rmtree(self._partial(step))
            for old in complete_checkpoints(self.checkpoints)[: -self.keep_last]:
                shutil.rmtree(old)
        self.barrier()

    def latest_checkpoint(self) -> Path | None:
        return newest(complete_checkpoints(self.checkpoints))

    def loss_announced(self) -> bool:
        return False

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def all_gather_object(self, value: Any) -> list[Any]:
        return all_gather_object(value, self.world_size)


def all_gather_object(value: Any, world_size: int) -> list[Any]:
    """The values of all processes of torch's default group, by rank."""
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values


def checkpoint_name(step: int) -> str:
    return f"step_{step:08d}"


def newest(checkpoints: Iterable[Path]) -> Path | None:
    return max(checkpoints, key=lambda path: path.name, default=None)


def _move_files(source: Path, target: Path) -> None:
    """Move what is in one folder into another one on the same disk, into subfolders of the same names."""
    for path in source.rglob("*"):
        if path.is_file():
            moved = target / path.relative_to(source)
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in ``folder``, oldest first: those marked complete, and those Ray Train has registered."""
    registered = registered_checkpoints(folder)
    checkpoints = folder.glob("step_*")
    return sorted(path for path in checkpoints if (path / COMPLETE).exists() or path.name in registered)


def registered_checkpoints(folder: Path) -> set[str]:
    """Names of the checkpoints in ``folder`` that Ray Train has registered."""
    return set(_registered(folder) or ())


def _registered(folder: Path) -> list[str] | None:
    """Names of the checkpoints that Ray Train has registered; None if it has written no list, or the list is cut."""
    try:
        snapshot = json.loads((folder / SNAPSHOT).read_bytes())
        return [result["checkpoint_dir_name"] for result in snapshot["checkpoint_results"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def mend_snapshot(folder: Path) -> None:
    """Remove Ray Train's list of checkpoints if Ray would not start with it: it was cut by a kill or a full disk, or
    names a folder that is gone. The checkpoints stay complete; without a readable list those with the loop's state do.
    """
    if not (folder / SNAPSHOT).exists():
        return
    names = _registered(folder)
    if names is not None and all((folder / name).is_dir() for name in names):
        return
    checkpoints = [path.parent for path in folder.glob("step_*/state.json")]
    for path in checkpoints:
        if names is None or path.name in names:
            (path / COMPLETE).touch()
    (folder / SNAPSHOT).unlink()
