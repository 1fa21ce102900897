"""Chunks of work on this machine without Ray: :func:`idc.data.pipeline.run_local`, or the same on several processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Unpack

from idc.data.pipeline import (
    Batch,
    ChunkResult,
    RunOptions,
    Source,
    StageSpec,
    ToRows,
    run_local,
    run_pending,
    run_stages,
    write_result,
)
from idc.data.store import DatasetFolder, Manifest
from idc.util.cores import usable_cores

_THREADS = "OMP_NUM_THREADS"


def run_processes(
    folder: DatasetFolder,
    source: Source,
    stages: Sequence[StageSpec],
    to_rows: ToRows | None = None,
    *,
    processes: int = 1,
    **options: Unpack[RunOptions],
) -> Manifest:
    """Run the pending chunks of ``folder`` on this machine, then complete it: in this process, or in up to
    ``processes`` new ones if that is more than one.

    The other arguments, the result, the errors and the written files are those of :func:`idc.data.pipeline.run_local`.
    Each new process builds its own copies of the stages, and its torch has its share of the cores as threads. It ends
    when this process does, even if that is killed.

    Raises:
        RuntimeError: a process was killed; the written chunks stay.
    """
    processes = min(processes, len(folder.pending()))
    if processes <= 1:
        return run_local(folder, source, stages, to_rows, **options)

    results = partial(_results, folder, source, stages, to_rows, processes)
    return run_pending(folder, source, results, **options)


def _results(
    folder: DatasetFolder,
    source: Source,
    stages: Sequence[StageSpec],
    to_rows: ToRows | None,
    processes: int,
    pending: Sequence[int],
) -> Generator[ChunkResult, None, None]:
    """One result per pending chunk, in order of completion."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    pool = ProcessPoolExecutor(processes, context, _start, (folder, source, stages, to_rows))
    chosen = os.environ.get(_THREADS)
    share = max(1, usable_cores() // processes)
    os.environ.setdefault(_THREADS, str(share))  # read when a process loads torch or numpy
    try:
        for future in as_completed([pool.submit(_run, chunk) for chunk in pending]):
            yield future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a process ended unexpectedly, for example for lack of memory; repeat the command to continue, with fewer "
            "workers if it happens again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        if chosen is None:
            del os.environ[_THREADS]


class _Worker:
    """The state of one process: its stages, ready to call."""

    folder: DatasetFolder
    source: Source
    stages: list[Callable[[Batch], Batch]]
    to_rows: ToRows | None


def _start(folder: DatasetFolder, source: Source, stages: Sequence[StageSpec], to_rows: ToRows | None) -> None:
    """Initializer of a process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Worker.folder, _Worker.source, _Worker.to_rows = folder, source, to_rows
    _Worker.stages = [stage.build() for stage in stages]


def _end_with_parent() -> None:
    """End this process when its parent has ended; a pool's process would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(chunk: int) -> ChunkResult:
    return write_result(_Worker.folder, chunk, run_stages(_Worker.stages, _Worker.source.read(chunk)), _Worker.to_rows)
