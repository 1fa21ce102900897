"""Chunks of work through stages into a data set folder, without Ray.

A *source* reads a chunk as a columnar batch, *stages* transform it, and the rows are written to one part file of the
folder. :func:`run_local` does this in processes of this machine; ``cluster.data.run_chunks_on_ray`` takes the same
arguments and does it on Ray actors. Both write the same files.

A batch is ``dict[str, list | np.ndarray]`` with columns of equal length. The column ``error`` holds ``None`` for a
good row and ``"code: detail"`` for a bad one. A stage is a plain class: ``__init__`` loads what it needs once,
``__call__(batch) -> batch`` processes all rows without an error, marks those it fails on, and never raises for a bad
row. A row is identified by its ``pair_id`` (``row_id`` or ``index`` until it has one).
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.store import (
    AnyPath,
    DatasetFolder,
    Manifest,
    ManifestPart,
    Reject,
    complete_manifest,
    fingerprint,
    read_schema,
)
from idc.data.stored_rows import iter_rejects, opened_part
from idc.util.cores import usable_cores
from idc.util.progress import Progress

Batch = dict[str, Any]
ToRows = Callable[[Batch], "pa.Table | list[dict[str, Any]]"]

_NAME_COLUMNS = ("pair_id", "row_id", "index")
_THREADS = "OMP_NUM_THREADS"


class Source(Protocol):
    """A provider of rows in chunks; picklable and cheap to copy, so that workers read their own chunks."""

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        ...

    def read(self, chunk_id: int) -> Batch:
        """Chunk ``chunk_id`` as a batch, the same every time."""
        ...


@dataclass(frozen=True)
class NumberSource:
    """The numbers 0 to ``total`` - 1, as the column ``index``."""

    total: int
    chunk_size: int

    @property
    def num_chunks(self) -> int:
        return -(-self.total // self.chunk_size)

    def read(self, chunk_id: int) -> Batch:
        first = chunk_id * self.chunk_size
        return {"index": list(range(first, min(first + self.chunk_size, self.total)))}


@dataclass(frozen=True)
class StageSpec:
    """A stage, its arguments and its resources.

    Attributes:
        cls: the stage class; workers must be able to import it.
        kwargs: its constructor's arguments.
        num_cpus, num_gpus: of each copy.
        concurrency: copies on Ray; ``(min, max)`` lets Ray choose. A local run has one per process.
        batch_size: rows passed to the stage at once; ``None`` for a whole chunk.
    """

    cls: type
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    concurrency: int | tuple[int, int] = 1
    batch_size: int | None = None

    def build(self) -> Callable[[Batch], Batch]:
        """The stage, ready to call."""
        return partial(_in_slices, self.cls(**self.kwargs), self.batch_size)


def _in_slices(stage: Callable[[Batch], Batch], size: int | None, batch: Batch) -> Batch:
    rows = num_rows(batch)
    if size is None or rows <= size:
        return stage(batch)
    return concat([stage(take(batch, range(start, min(start + size, rows)))) for start in range(0, rows, size)])


def num_rows(batch: Batch) -> int:
    """Rows of a batch; its columns must be of equal length."""
    lengths = {name: len(column) for name, column in batch.items()}
    assert len(set(lengths.values())) <= 1, f"columns of different lengths: {lengths}"
    return next(iter(lengths.values()), 0)


def take(batch: Batch, rows: Sequence[int]) -> Batch:
    """The rows with these positions."""
    return {
        name: column[np.asarray(rows, dtype=np.int64)] if isinstance(column, np.ndarray) else [column[i] for i in rows]
        for name, column in batch.items()
    }


def concat(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches with the same columns; arrays of equal row shape stay arrays."""
    out: Batch = {}
    for name in batches[0]:
        columns = [batch[name] for batch in batches]
        if all(isinstance(c, np.ndarray) for c in columns) and len({c.shape[1:] for c in columns}) == 1:
            out[name] = np.concatenate(columns)
        else:
            out[name] = [value for column in columns for value in column]
    return out


def with_errors(batch: Batch) -> Batch:
    """The batch with an ``error`` column, all ``None`` if it had none."""
    return batch if "error" in batch else {**batch, "error": [None] * num_rows(batch)}


def good_rows(batch: Batch) -> list[int]:
    """Positions of the rows without an error: those that a stage processes."""
    return [i for i, error in enumerate(with_errors(batch)["error"]) if error is None]


def split_errors(batch: Batch) -> tuple[Batch, list[Reject]]:
    """The good rows, without the ``error`` column, and the bad ones as rejects."""
    batch = with_errors(batch)
    good = set(good_rows(batch))
    names = next((batch[name] for name in _NAME_COLUMNS if name in batch), range(num_rows(batch)))
    rejects = [Reject(str(names[i]), str(e)) for i, e in enumerate(batch["error"]) if i not in good]
    return take({k: v for k, v in batch.items() if k != "error"}, sorted(good)), rejects


def batch_to_rows(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a batch as dicts, arrays as lists: the default ``to_rows``."""
    columns = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in batch.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class ChunkResult:
    """Result of one chunk.

    Attributes:
        num_rows, num_rejects: rows written and rows rejected.
        seconds: the sum of the column ``seconds``, if a stage measures its work in one; else 0.
    """

    chunk_id: int
    num_rows: int
    num_rejects: int
    seconds: float = 0.0


def run_stages(stages: Iterable[Callable[[Batch], Batch]], batch: Batch) -> Batch:
    """All stages over a batch; each must return the ``error`` column."""
    batch = with_errors(batch)
    for stage in stages:
        batch = with_errors(stage(batch))
    return batch


def write_result(folder: DatasetFolder, chunk_id: int, batch: Batch, to_rows: ToRows | None) -> ChunkResult:
    """The last step of a chunk: good rows to the part file, bad ones to the rejects."""
    good, rejects = split_errors(batch)
    if to_rows is None:
        missing = [name for name in folder.schema.names if name not in good]
        assert not missing, f"the stages returned no column {', '.join(missing)}; they returned {', '.join(good)}"
        rows: pa.Table | list[dict[str, Any]] = batch_to_rows({name: good[name] for name in folder.schema.names})
    else:
        rows = to_rows(good) if num_rows(good) else []
    folder.write_chunk(chunk_id, rows, rejects)
    count = len(rows) if isinstance(rows, list) else rows.num_rows
    return ChunkResult(chunk_id, count, len(rejects), float(sum(batch.get("seconds", ()))))


class TooManyRejects(ValueError):
    """More rows were rejected than the job allows; the folder is left incomplete."""


def finish(folder: DatasetFolder, max_reject_share: float, extra: dict[str, Any] | None = None) -> Manifest:
    """Complete the folder, unless too many rows were rejected.

    Raises:
        TooManyRejects: names the reasons; the written chunks stay, so a run with a higher limit finishes at once.
    """
    counts = folder.counted()
    total = counts.num_rows + counts.num_rejected
    if total and counts.num_rejected > max_reject_share * total:
        reasons = ", ".join(f"{n} x {reason}" for reason, n in counts.reject_reasons.items())
        first = next(iter_rejects(folder.location, counts))
        raise TooManyRejects(
            f"{counts.num_rejected} of {total} rows were rejected, more than max_reject_share={max_reject_share:g} "
            f"allows: {reasons}. The first is {first.row_id!r}: {first.reason}. All are in "
            f"{folder.location}/rejects-*.parquet; fix or remove these rows, or raise max_reject_share if there is one"
        )
    return folder.finish(extra, counts)


class Runner(Protocol):
    """Runs chunks through stages: :func:`run_local`, or its counterpart on Ray."""

    def __call__(
        self, folder: DatasetFolder, source: Source, stages: list[StageSpec], *, max_reject_share: float, name: str
    ) -> Manifest: ...


class RunOptions(TypedDict, total=False):
    """Options of every way to run chunks.

    Attributes:
        progress: show a progress bar (default: true).
        max_reject_share: share of all rows; above it the job fails at its end (default: 0.05).
        extra: merged into the manifest's ``extra``.
        name: label of the progress bar.
        watch: called with the result of every chunk.
    """

    progress: bool
    max_reject_share: float
    extra: dict[str, Any] | None
    name: str
    watch: Callable[[ChunkResult], None] | None


def run_pending(
    folder: DatasetFolder,
    source: Source,
    results: Callable[[list[int]], Generator[ChunkResult, None, None]],
    **options: Unpack[RunOptions],
) -> Manifest:
    """Run the pending chunks of ``folder``, then complete it: the common part of all executors.

    Args:
        results: gives one result for each of these chunks, in any order. It is closed when the caller is interrupted.

    Raises:
        TooManyRejects: see :func:`finish`.
    """
    assert folder.num_chunks == source.num_chunks, (
        f"the folder was opened for {folder.num_chunks} chunks, the source has {source.num_chunks}"
    )
    if folder.complete:
        return folder.manifest
    if pending := folder.pending():
        total, rows, rejects, watch = folder.num_chunks, 0, 0, options.get("watch")
        written, show = total - len(pending), options.get("progress", True)
        with (
            closing(results(pending)) as done,
            Progress(total, options.get("name", "chunks"), "chunk", done=written, show=show) as shown,
        ):
            for number, result in enumerate(done, start=written + 1):
                rows += result.num_rows
                rejects += result.num_rejects
                shown.update(number, rows=rows, rejects=rejects)
                if watch is not None:
                    watch(result)
    return finish(folder, options.get("max_reject_share", 0.05), options.get("extra"))


def run_local(
    folder: DatasetFolder,
    source: Source,
    stages: Sequence[StageSpec],
    to_rows: ToRows | None = None,
    *,
    processes: int = 1,
    **options: Unpack[RunOptions],
) -> Manifest:
    """Run the pending chunks of ``folder`` on this machine, then complete it: in this process, or in up to
    ``processes`` new ones if that is more than one. Each of those builds its own copies of the stages, its torch has
    its share of the cores as threads, and it ends when this process does, even if that is killed.

    Args:
        to_rows: converts the good rows of the last batch to rows of the folder; by default the columns of the folder's
            schema are taken from the batch by name.

    Raises:
        TooManyRejects: see :func:`finish`.
        RuntimeError: a process was killed; the written chunks stay.
    """
    processes = min(processes, len(folder.pending()))
    run = _Chunks(folder, source, stages, to_rows)
    return run_pending(folder, source, partial(run.by_processes, processes) if processes > 1 else run.here, **options)


@dataclass
class _Chunks:
    """The work of a local run; picklable, so that each process gets a copy and builds the stages itself."""

    folder: DatasetFolder
    source: Source
    stages: Sequence[StageSpec]
    to_rows: ToRows | None

    def here(self, pending: Sequence[int]) -> Generator[ChunkResult, None, None]:
        """One result per chunk, in order. While a chunk is in the stages, the next one is read and the one before it
        is written; at most three are in memory."""
        built = [stage.build() for stage in self.stages]
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
            read = reader.submit(self.source.read, pending[0])
            written: Future[ChunkResult] | None = None
            for number, chunk in enumerate(pending):
                batch = read.result()
                if number + 1 < len(pending):
                    read = reader.submit(self.source.read, pending[number + 1])
                done = run_stages(built, batch)
                if written is not None:
                    yield written.result()
                written = writer.submit(write_result, self.folder, chunk, done, self.to_rows)
            assert written is not None
            yield written.result()

    def by_processes(self, processes: int, pending: Sequence[int]) -> Generator[ChunkResult, None, None]:
        """One result per chunk, in order of completion."""
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
        pool = ProcessPoolExecutor(processes, context, _start_process, (self,))
        chosen = os.environ.get(_THREADS)
        os.environ.setdefault(_THREADS, str(max(1, usable_cores() // processes)))  # read when torch or numpy is loaded
        try:
            for future in as_completed([pool.submit(_run_chunk, chunk) for chunk in pending]):
                yield future.result()
        except BrokenProcessPool:
            raise RuntimeError(
                "a process ended unexpectedly, for example for lack of memory; repeat the command to continue, with "
                "fewer workers if it happens again"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
            if chosen is None:
                del os.environ[_THREADS]


_process: tuple[_Chunks, list[Callable[[Batch], Batch]]]
"""In a process of a local run: its work, and the stages ready to call."""


def _start_process(run: _Chunks) -> None:
    global _process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _process = run, [stage.build() for stage in run.stages]


def _end_with_parent() -> None:
    """End this process when its parent has ended; a pool's process would otherwise wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_chunk(chunk: int) -> ChunkResult:
    run, stages = _process
    return write_result(run.folder, chunk, run_stages(stages, run.source.read(chunk)), run.to_rows)


class FolderSource:
    """The rows of a complete data set folder as a source, in chunks of ``chunk_size`` rows at most.

    A chunk never spans two parts, so reading it costs little more than its own bytes.

    Args:
        columns: the columns to read; all by default.
        splits: only rows of these splits; all by default. Chunks may then hold fewer rows, or none.
        limit: only the first ``limit`` rows of the folder (counted before ``splits``).
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        chunk_size: int = 32,
        columns: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
        limit: int | None = None,
        kind: str | None = None,
    ) -> None:
        self.folder = files.locate(path)
        manifest = complete_manifest(self.folder, kind)
        manifest.need_images(path, columns or ())
        self.columns = list(columns) if columns is not None else None
        self.splits = list(splits) if splits is not None else None
        self.manifest = manifest
        self._schema = read_schema(self.folder) if manifest.parts else pa.schema([])
        self._chunks: list[tuple[ManifestPart, int, int]] = []
        left = manifest.num_rows if limit is None else limit
        for part in manifest.parts:
            rows = min(part.num_rows, left)
            left -= rows
            self._chunks += [(part, s, min(s + chunk_size, rows)) for s in range(0, rows, chunk_size)]
        self.fingerprint = fingerprint(manifest.fingerprint, chunk_size, self.columns, self.splits, limit)

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def rows_of(self, chunk_id: int) -> int:
        """Number of rows of a chunk, of all splits."""
        _, start, stop = self._chunks[chunk_id]
        return stop - start

    def read(self, chunk_id: int) -> Batch:
        part, start, stop = self._chunks[chunk_id]
        with opened_part(self.folder, part, self._schema) as parquet:
            table = read_range(parquet, start, stop, self.columns)
        batch = table.to_pydict()
        if self.splits is not None:
            batch = take(batch, [i for i, split in enumerate(batch["split"]) if split in self.splits])
        return batch


def read_range(parquet: pq.ParquetFile, start: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
    """Rows ``start`` to ``stop``; only the row groups that hold them are read."""
    groups: list[int] = []
    first = seen = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if seen < stop and seen + rows > start:
            if not groups:
                first = seen
            groups.append(group)
        seen += rows
    return parquet.read_row_groups(groups, columns=columns).slice(start - first, stop - start)
