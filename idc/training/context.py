"""Where a training loop runs: rank, device, folder, checkpoints. ``cluster/train.py`` has what Ray adds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from idc.training.run_storage import CHECKPOINTS, COMPLETE, RunCopy, RunFolder, checkpoint_name, is_checkpoint
from idc.training.tracker import Tracker
from idc.util import logs

LAST_WORDS_S = 10.0
"""How long a run that ends with an error waits for object storage to take its log, in seconds."""


@dataclass
class Context:
    """Where the loop runs: one rank, its device, and the run's folder with its checkpoints.

    A checkpoint ``run_dir/checkpoints/step_00000020`` holds the parts of all ranks, and a file ``complete`` that is
    written after them, so that a process may be killed at any time.

    Attributes:
        run_dir: the run's folder, the same for all ranks (shared storage if they are on several machines); of a run on
            object storage this process's copy, see ``copy``.
        keep_last: checkpoints that are kept.
        copy: of a run on object storage.
    """

    run_dir: Path
    rank: int
    world_size: int
    device: torch.device
    tracker: Tracker
    keep_last: int
    copy: RunCopy | None = None

    @property
    def folder(self) -> RunFolder:
        """Where the checkpoints are kept."""
        return RunFolder(self.run_dir) if self.copy is None else self.copy.folder

    def checkpoint_folder(self, step: int) -> Path:
        """An empty folder into which this rank writes its part of the checkpoint of ``step``; all ranks call it. On the
        disk it is one folder for all: rank 0 writes what belongs to no single rank, DeepSpeed names files by rank."""
        folder = self.run_dir / CHECKPOINTS / checkpoint_name(step)
        if self.rank == 0 or self.copy is not None:
            for old in folder.parent.glob("step_*"):  # of a killed process, or fetched and loaded
                unfinished = self.copy is not None or old == folder or not (old / COMPLETE).exists()
                if is_checkpoint(old.name) and unfinished:
                    RunFolder(self.run_dir).withdraw(old.name)
            folder.mkdir(parents=True, exist_ok=True)
        self.barrier()
        return folder

    def report(self, metrics: dict[str, Any], checkpoint: Path) -> None:
        """Publish metrics and, atomically, the checkpoint written by all ranks. Every rank calls it."""
        if self.copy is not None:
            if self.rank == 0:
                self.copy.push()  # what the checkpoint refers to
                self.folder.withdraw(checkpoint.name)
            self.barrier()  # no rank uploads into what is still being deleted
            self.copy.upload_part(checkpoint)
        self.barrier()  # complete only with the parts of all ranks
        if self.rank == 0:
            self.folder.complete(checkpoint.name, self.keep_last)
        self.barrier()

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint of this run, or None. Every rank calls it."""
        names = self.all_gather_object(self.folder.complete_checkpoints() if self.rank == 0 else [])[0]
        if not names:
            return None
        return self.run_dir / CHECKPOINTS / names[-1] if self.copy is None else self.copy.fetch(names[-1])

    def preemption_announced(self) -> bool:
        """Whether the end of a machine of this run was announced since the last call. Every rank calls it, and all get
        the same answer."""
        return False

    def barrier(self) -> None:
        self.all_gather_object(None)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


class LocalContext(Context):
    """Runs without Ray: one process, or several that ``torchrun`` started (torch.distributed is then initialised).

    Args:
        run_dir: None on object storage, until :func:`stored` sets it.
    """

    def __init__(
        self, run_dir: Path | str | None, *, keep_last: int = 2, use_gpu: bool = False, tracker: Tracker | None = None
    ):
        if use_gpu and not torch.cuda.is_available():
            raise ValueError("train.gpus_per_worker is above 0, and torch sees no GPU here; set it to 0")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if use_gpu else torch.device("cpu")
        distributed = dist.is_available() and dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        if run_dir is not None:
            Path(run_dir).mkdir(parents=True, exist_ok=True)
        super().__init__(Path(run_dir or "."), rank, world_size, device, tracker or Tracker(), keep_last)


@contextmanager
def stored(context: Context, run: RunFolder) -> Iterator[None]:
    """Nothing for a run on the disk; for one on object storage ``context`` works on a copy, whose files are uploaded
    when the block ends."""
    if run.local is not None:
        yield
        return
    context.copy = copy = RunCopy(run, context.rank == 0)
    context.run_dir = copy.scratch
    try:
        try:
            yield
        except BaseException:
            try:
                copy.push(LAST_WORDS_S)
            except ValueError as error:
                logs.event("log_lost", f"the log since the last checkpoint is lost: {error}", "warning")
            raise
        copy.push()
    finally:
        copy.close()
