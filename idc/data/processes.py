"""Chunks of work on several processes of this machine, without Ray: ``run_local`` on more than one core."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing

from idc.data.pipeline import (
    Batch,
    ChunkResult,
    Source,
    StageSpec,
    check_chunks,
    finish,
    run_local,
    run_stages,
    show,
    write_result,
)
from idc.data.store import DatasetFolder, Manifest

_THREADS = "OMP_NUM_THREADS"


def run_processes(
    folder: DatasetFolder,
    source: Source,
    stages: Sequence[StageSpec],
    *,
    processes: int,
    progress: bool = True,
    max_reject_share: float = 0.05,
    name: str = "chunks",
) -> Manifest:
    """Run the pending chunks of ``folder`` on up to ``processes`` new processes, then complete it.

    The other arguments, the result, the errors and the written files are those of :func:`idc.data.pipeline.run_local`.
    Each process builds its own copies of the stages, and its torch has its share of the cores as threads. It ends when
    this process does, even if that is killed.

    Raises:
        RuntimeError: a process was killed; the written chunks stay.
    """
    check_chunks(folder, source)
    pending = folder.pending()
    processes = min(processes, len(pending))
    if processes <= 1:
        return run_local(folder, source, stages, progress=progress, max_reject_share=max_reject_share, name=name)
    with closing(_results(folder, source, stages, pending, processes)) as results:
        show(results, folder, len(pending), progress, name)
    return finish(folder, max_reject_share)


def _results(
    folder: DatasetFolder, source: Source, stages: Sequence[StageSpec], pending: Sequence[int], processes: int
) -> Generator[ChunkResult, None, None]:
    """One result per pending chunk, in order of completion."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    pool = ProcessPoolExecutor(processes, context, _start, (folder, source, stages))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    chosen = os.environ.get(_THREADS)
    os.environ.setdefault(_THREADS, str(max(1, cores // processes)))  # read when a process loads torch or numpy
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


def _start(folder: DatasetFolder, source: Source, stages: Sequence[StageSpec]) -> None:
    """Initializer of a process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Worker.folder, _Worker.source = folder, source
    _Worker.stages = [stage.build() for stage in stages]


def _end_with_parent() -> None:
    """End this process when its parent has ended; a pool's process would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(chunk: int) -> ChunkResult:
    return write_result(_Worker.folder, chunk, run_stages(_Worker.stages, _Worker.source.read(chunk)), None)
