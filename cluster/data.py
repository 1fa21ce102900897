"""Chunks of work through stages on Ray Data actors: :func:`idc.data.pipeline.run_local` on a cluster.

One block is one chunk, and it is one row: ``{chunk_id, payload}``. A row is never split or joined with another, so
what a worker writes is exactly a chunk of the source. Adjacent stages with the same needs share an actor and hand
their batches on in memory; between actors a batch travels pickled, which keeps its types as they are. The first actor
reads its chunk from the source, the last one writes it to the folder: pixels never pass through the driver.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Unpack

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import ExecutionTimeoutError

from cluster.preflight import amounts
from cluster.ray_internals import checked_by
from idc.data.pipeline import (
    Batch,
    ChunkResult,
    RunOptions,
    Source,
    StageSpec,
    ToRows,
    run_pending,
    run_stages,
    write_result,
)
from idc.data.store import DatasetFolder, Manifest

log = logging.getLogger(__name__)

_CALLS = 2
"""Chunks in an actor at the same time: one in the stages, another one that is read or written."""


def run_chunks_on_ray(
    folder: DatasetFolder,
    source: Source,
    stages: Sequence[StageSpec],
    to_rows: ToRows | None = None,
    *,
    no_progress_timeout_s: float = 600.0,
    grows: bool = False,
    **options: Unpack[RunOptions],
) -> Manifest:
    """Run the pending chunks of ``folder`` on the connected Ray cluster, then complete it.

    Arguments, result, errors and written files are those of :func:`idc.data.pipeline.run_local`. A worker that dies is
    replaced and its chunks are repeated; an error in a stage ends the job and keeps what is written.

    Args:
        no_progress_timeout_s: seconds without a written part after which the job ends.
        grows: the cluster adds nodes on demand: the stages keep the numbers that were asked for.

    Raises:
        TooManyRejects: see :func:`idc.data.pipeline.finish`.
        ValueError: a worker raised one: a part of the input is damaged, the folder cannot be written. Or the cluster
            has no room for an actor of every group of stages, or no part was written in time.
        RuntimeError: a stage raised another error; the message names the chunk and the error.
    """
    groups = _groups(stages) if grows else _fit(_groups(stages))

    def results(pending: list[int]) -> Generator[ChunkResult, None, None]:
        written_at = time.monotonic()

        def check() -> None:
            if time.monotonic() - written_at > no_progress_timeout_s:
                raise ExecutionTimeoutError(
                    f"no part was written for {no_progress_timeout_s:g} s: the stages may wait for CPUs or GPUs that "
                    "others use (see `ray status`), or a chunk needs longer (cluster.no_progress_timeout_s)"
                )

        _set_up_data(checked_by(check))
        try:
            for result in _results(folder, source, groups, to_rows, pending):
                written_at = time.monotonic()
                yield result
        except ExecutionTimeoutError as error:
            raise ValueError(str(error)) from None

    return run_pending(folder, source, results, **options)


def _set_up_data(callback: type) -> None:
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # "progress bars disabled"
    context = DataContext.get_current()
    context.enable_progress_bars = False  # ours counts rows and rejects
    context.print_on_execution_start = False
    context.target_max_block_size = None  # a block is a chunk, whatever its size
    context.execution_no_progress_timeout_s = -1
    context.custom_execution_callback_classes = [callback]


def _groups(stages: Sequence[StageSpec]) -> list[list[StageSpec]]:
    """Adjacent stages with the same needs, which share an actor."""
    stages = stages or [StageSpec(_Nothing)]
    return [list(g) for _, g in itertools.groupby(stages, key=lambda s: (s.num_cpus, s.num_gpus, s.concurrency))]


class _Nothing:
    def __call__(self, batch: Batch) -> Batch:
        return batch


def _fit(groups: list[list[StageSpec]]) -> list[list[StageSpec]]:
    """On a cluster that does not grow: as many actors of every group as fit together, with fewer CPUs for each if not
    even one does.

    Otherwise the first groups may take all CPUs, the last one never starts, and Ray Data waits silently.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    first, wanted = [group[0] for group in groups], [_bounds(group[0])[1] for group in groups]
    for share in (1.0, 0.5, 0.25, 0.125, 0.0625):  # Ray counts hundredths, at least one
        stages = [replace(stage, num_cpus=share * stage.num_cpus) for stage in first]
        counts = _counts(nodes, stages, wanted)
        if counts == wanted and share == 1:
            return groups
        if counts is not None:
            text = ", ".join(f"{count} of {high}" for count, high in zip(counts, wanted, strict=True))
            log.warning("the stages need more than the cluster's %s: they have %s actors", amounts(nodes), text)
            return [
                [replace(stage, num_cpus=share * stage.num_cpus, concurrency=count) for stage in group]
                for group, count in zip(groups, counts, strict=True)
            ]
    needs = amounts([{"CPU": stage.num_cpus, "GPU": stage.num_gpus} for stage in first])
    raise ValueError(
        f"the stages need an actor each at the same time ({needs}), and the nodes have {amounts(nodes)}; ask for less, "
        "start more nodes, or set cluster.grows=true if the cluster adds them"
    )


def _counts(
    nodes: Sequence[Mapping[str, float]], stages: Sequence[StageSpec], wanted: Sequence[int]
) -> list[int] | None:
    """Numbers of actors that fit together, one more for each stage in turn up to those wanted; None if not one each."""
    counts = [1] * len(stages)
    if not _have_room(nodes, stages, counts):
        return None
    for _ in range(max(wanted)):
        for number, high in enumerate(wanted):
            more = [count + (n == number) for n, count in enumerate(counts)]
            if counts[number] < high and _have_room(nodes, stages, more):
                counts = more
    return counts


def _have_room(nodes: Sequence[Mapping[str, float]], stages: Sequence[StageSpec], counts: Sequence[int]) -> bool:
    """Whether the nodes have room for so many actors at the same time, each on the emptiest node, as Ray may place
    them, and those without GPUs on nodes without them, as it prefers."""
    left = [(node.get("GPU", 0.0), node.get("CPU", 0.0)) for node in nodes]
    for stage in (stage for stage, count in zip(stages, counts, strict=True) for _ in range(count)):
        left.sort(key=lambda node: (node[0] if not stage.num_gpus else 0.0, -node[1]))
        rooms = (n for n, (gpus, cpus) in enumerate(left) if gpus >= stage.num_gpus and cpus >= stage.num_cpus)
        if (chosen := next(rooms, None)) is None:
            return False
        gpus, cpus = left[chosen]
        left[chosen] = (gpus - stage.num_gpus + 1e-9, cpus - stage.num_cpus + 1e-9)  # of 0.3 three times 0.1 is left
    return True


def _bounds(stage: StageSpec) -> tuple[int, int]:
    return stage.concurrency if isinstance(stage.concurrency, tuple) else (stage.concurrency, stage.concurrency)


def _results(
    folder: DatasetFolder,
    source: Source,
    groups: list[list[StageSpec]],
    to_rows: ToRows | None,
    pending: list[int],
) -> Iterator[ChunkResult]:
    """One result per pending chunk, in order of completion."""
    data: ray.data.Dataset = ray.data.from_items(
        [{"chunk_id": chunk} for chunk in pending], override_num_blocks=len(pending)
    )
    for number, group in enumerate(groups):
        first, last = number == 0, number == len(groups) - 1
        low, high = (min(bound, len(pending)) for bound in _bounds(group[0]))  # no actor without a chunk
        data = data.map_batches(
            _Group,
            fn_constructor_kwargs={
                "stages": group,
                "source": source if first else None,
                "folder": folder if last else None,
                "to_rows": to_rows if last else None,
            },
            batch_size=1,
            compute=ActorPoolStrategy(
                min_size=low,
                max_size=high,
                max_concurrent_calls_per_actor=_CALLS,
                max_tasks_in_flight_per_actor=_CALLS,
                enable_true_multi_threading=True,  # the stages have a lock
            ),
            num_cpus=group[0].num_cpus,
            num_gpus=group[0].num_gpus,
        )
    for row in data.iter_rows():
        if row["fault"]:
            raise ValueError(row["fault"])
        yield ChunkResult(int(row["chunk_id"]), int(row["num_rows"]), int(row["num_rejects"]), float(row["seconds"]))


class _Group:
    """An actor with one or more stages; the first group of a job reads, the last one writes.

    Called by :data:`_CALLS` threads. The stages process one chunk at a time.
    """

    def __init__(
        self,
        stages: list[StageSpec],
        source: Source | None,
        folder: DatasetFolder | None,
        to_rows: ToRows | None,
    ) -> None:
        self.stages: list[Callable[[Batch], Batch]] = [stage.build() for stage in stages]
        self.source = source
        self.folder = folder
        self.to_rows = to_rows
        self._reading, self._working = threading.Lock(), threading.Lock()

    def __call__(self, block: dict[str, Any]) -> dict[str, list[Any]]:
        chunk = int(block["chunk_id"][0])
        fault = block["fault"][0] if "fault" in block else ""
        payload, result = b"", ChunkResult(chunk, 0, 0)
        try:
            if not fault:
                batch = self._batch(chunk, block)
                if self.folder is None:
                    payload = pickle.dumps(batch, protocol=5)
                else:
                    result = write_result(self.folder, chunk, batch, self.to_rows)
        except ValueError as exc:  # of the user; as text, because Ray Data replaces the type of an exception
            fault = f"chunk {chunk}: {exc}"
        except Exception as exc:
            raise RuntimeError(f"chunk {chunk}: {type(exc).__name__}: {exc}") from exc
        if self.folder is None:
            return {"chunk_id": [chunk], "payload": [payload], "fault": [fault]}
        return {"fault": [fault], **{name: [value] for name, value in asdict(result).items()}}

    def _batch(self, chunk: int, block: dict[str, Any]) -> Batch:
        if self.source is not None:
            with self._reading:  # a source keeps files open
                batch = self.source.read(chunk)
        else:
            batch = pickle.loads(block["payload"][0])
        with self._working:
            return run_stages(self.stages, batch)
