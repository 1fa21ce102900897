"""Batch captioning: throughput of the job over a bare loop, and recovery of a long job that is killed.

The *bare loop* runs as many processes as the job has actors, each with the same captioner and one torch thread. Each
process holds its share of the encoded pairs in memory and only decodes and captions batches: no Ray, no file access.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from benchmarks.measurement import Measurement, Stamp, environment, steady_rate
from benchmarks.processes import Stamper, apart, say, scratch, stamps_of, turns
from cluster.config import ClusterConfig
from cluster.session import session
from idc.captioning.loading import CaptionerLoader
from idc.captioning.table import CaptionJob, caption_rows
from idc.config import ConfigModel
from idc.data.images import decode_image
from idc.data.pipeline import Source, StageSpec, ToRows, iter_chunks
from idc.data.rows import open_rows
from idc.data.store import DatasetFolder, Manifest, iter_tables, read_table


class BatchConfig(ConfigModel):
    """Throughput of jobs/caption.py over the captioner in a bare loop."""

    artifact: str = "runs/demo/finetune-0/artifact"
    """Artifact of the captioner."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs; its test pairs are repeated under new ids as often as needed."""
    num_pairs: int = Field(3072, ge=1)
    """Pairs per run of the comparison with the bare loop."""
    rounds: int = Field(3, ge=1)
    """Runs of each kind."""
    count: int = Field(0, ge=0)
    """Pairs of the long job, e.g. 100000. Half way, the job and all its processes are killed and it is restarted; later
    one of its actors is killed. 0: no long job."""
    actors: int = Field(2, ge=1)
    """Actors of the job, and processes of the bare loop."""
    batch_size: int = Field(32, ge=1)
    """Pairs per forward pass, in both."""
    chunk_size: int = Field(256, ge=1)
    """Rows per chunk of the job."""
    sample_s: float = Field(5.0, gt=0)
    """Seconds between two memory samples of the long job."""

    def faults(self) -> Iterator[str]:
        if self.num_pairs < 3 * self.actors * self.chunk_size:
            yield f"num_pairs: {self.num_pairs} are less than {self.actors} actors x 3 chunks of {self.chunk_size}"
        if self.count and self.count < 8 * self.chunk_size:
            yield f"count: {self.count} is less than 8 chunks of {self.chunk_size}, too few to kill the job half way"


def measure_batch(config: BatchConfig, cluster: ClusterConfig, command: Sequence[str]) -> Iterator[Measurement]:
    """Pairs per second, job over bare loop in alternating runs, in steady state and from start to end; then the long
    job.

    Args:
        command: starts the captioning job; its settings are appended.

    Raises:
        ValueError: the long job failed, has missing or wrong rows, or left processes behind.
    """
    rates: dict[str, list[float]] = {"bare": [], "job": []}
    whole: dict[str, list[float]] = {"bare": [], "job": []}
    where = environment(1)
    with scratch() as folder:
        source = folder / "pairs.parquet"
        write_pairs(config.pairs, source, max(config.num_pairs, config.count))
        settings = {
            "artifact": str(Path(config.artifact).absolute()),
            "input": str(source),
            "batch_size": config.batch_size,
            "chunk_size": config.chunk_size,
            "actors": config.actors,
        }
        for number, kind in enumerate(turns(tuple(rates), config.rounds)):
            job = CaptionJob.model_validate(
                {**settings, "out": str(folder / f"{number}" / "captions"), "max_pairs": config.num_pairs}
            )
            began = time.perf_counter()
            if kind == "bare":
                stamps = bare_loop(job)
            else:
                stamps = apart(
                    _caption_once, job.model_dump(mode="json"), str(folder / f"{number}"), cluster.model_dump()
                )
            whole[kind].append(config.num_pairs / (time.perf_counter() - began))
            rates[kind].append(steady_rate(stamps, config.actors))
            say(f"batch: {kind} {rates[kind][-1]:.1f} pairs/s, start to end {whole[kind][-1]:.1f}")
        yield Measurement(
            part="batch",
            title=f"captioning {config.num_pairs} pairs, the job over a bare loop ({config.actors} processes each), "
            "steady state",
            unit="pairs/s",
            aim="at least 0.92",
            above=rates["job"],
            below=rates["bare"],
            environment=where,
        )
        yield Measurement(
            part="batch",
            title=f"the same {config.num_pairs} pairs from start to end, with Ray's start, imports and loading "
            "(bare: those of its processes)",
            unit="pairs/s",
            aim="",
            above=whole["job"],
            below=whole["bare"],
            environment=where,
        )
        if config.count:
            ends = {**settings, "out": str(folder / "long"), "max_pairs": config.count}
            given = [*command, *(f"{name}={value}" for name, value in ends.items()), *_flat(cluster)]
            yield from _long(config, given, folder / "long", statistics.median(rates["bare"]))


def write_pairs(pairs: str, path: Path, count: int) -> None:
    """Write ``count`` pairs to one Parquet file: the test pairs of a folder, repeated, with ids counted from 0."""
    given = read_table(pairs, ["before", "after"], split="test").combine_chunks()
    schema = pa.schema([("pair_id", pa.string()), ("before", pa.binary()), ("after", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, given.num_rows):
            part = given.slice(0, min(given.num_rows, count - start))
            ids = pa.array([f"{i:07d}" for i in range(start, start + part.num_rows)])
            writer.write_table(part.add_column(0, "pair_id", ids).cast(schema))


# -- the ratio ---------------------------------------------------------------------------------------------------


def bare_loop(job: CaptionJob) -> list[Stamp]:
    """One stamp per batch of the bare loop; its processes start together when all of them are ready."""
    context = multiprocessing.get_context("spawn")
    with multiprocessing.Manager() as manager:
        ready = manager.Barrier(job.actors)
        with ProcessPoolExecutor(job.actors, mp_context=context) as pool:
            shares = [pool.submit(_bare_share, job.model_dump(mode="json"), n, ready) for n in range(job.actors)]
            return [stamp for share in shares for stamp in share.result()]


def _bare_share(settings: dict[str, Any], number: int, ready: Any) -> list[Stamp]:
    job = CaptionJob.model_validate(settings)
    source = open_rows(job.input, chunk_size=job.batch_size, limit=job.max_pairs)
    own = [batch for n, batch in enumerate(iter_chunks(source)) if n % job.actors == number]
    captioner = CaptionerLoader(job.artifact, job, job.gpus_per_actor, threads=1)()

    def caption(batch: dict[str, Any]) -> int:
        images = [[decode_image(data) for data in batch[role]] for role in ("before", "after")]
        return len(captioner.describe(*images))

    caption(own[0])
    ready.wait()
    return [Stamp(worker=os.getpid(), rows=caption(batch), seconds=time.time()) for batch in own]


def _caption_once(settings: dict[str, Any], place: str, cluster: dict[str, Any]) -> list[Stamp]:
    """Run one job in this process with its own Ray; return the stamps of its actors."""
    stamps = Path(place) / "stamps"
    stamps.mkdir(parents=True)

    def on_ray(
        folder: DatasetFolder, source: Source, stages: list[StageSpec], to_rows: ToRows, **options: Any
    ) -> Manifest:
        from cluster.data import run  # imports Ray, so only after the session has set the environment

        stages = [*stages, replace(stages[-1], cls=Stamper, kwargs={"folder": str(stamps)})]
        return run(folder, source, stages, to_rows, progress=False, **options)

    with session(ClusterConfig.model_validate(cluster)):
        caption_rows(CaptionJob.model_validate(settings), on_ray, local=False)
    return stamps_of(stamps)


# -- the long job ------------------------------------------------------------------------------------------------


def _flat(cluster: ClusterConfig) -> list[str]:
    return [f"cluster.{name}={json.dumps(value)}" for name, value in cluster.model_dump(exclude_unset=True).items()]


def _long(config: BatchConfig, command: list[str], out: Path, bare: float) -> Iterator[Measurement]:
    """Kill the job half way, restart it, and kill one actor later."""
    where = environment(1)
    chunks = -(-config.count // config.chunk_size)
    began = time.perf_counter()
    first = _Watched(command, out, config.sample_s)
    first.run_until(chunks // 2)
    done = first.kill()
    say(f"batch: killed the job after {done} of {chunks} parts")
    second = _Watched(command, out, config.sample_s)
    second.run_until(3 * chunks // 4)
    second.kill_an_actor()
    say("batch: killed an actor")
    second.finish()
    seconds = time.perf_counter() - began
    _check(out, config.count)
    say(f"batch: {config.count} rows, every id once; {config.count / seconds:.1f} pairs/s")
    runs = {"killed": first.memory, "given again": second.memory}
    if min(map(len, runs.values())) < 2:
        raise ValueError(
            f"batch: the long job gave fewer than 2 memory samples in a run; raise count ({config.count}) "
            f"or lower sample_s ({config.sample_s})"
        )
    yield Measurement(
        part="batch",
        title=f"captioning {config.count} pairs, the job killed once in the middle and an actor later, start to end, "
        "over a bare loop",
        unit="pairs/s",
        aim="at least 0.92",
        above=[config.count / seconds],
        below=[bare],
        more={"seconds": seconds, "parts_before_the_kill": done, "parts": chunks},
        environment=where,
    )
    yield Measurement(
        part="batch",
        title="peak memory of all its processes in the second half of a run over the first half",
        unit="MiB",
        aim="at most 1.1",
        above=[max(mib for _, mib in series[len(series) // 2 :]) for series in runs.values()],
        below=[max(mib for _, mib in series[: len(series) // 2]) for series in runs.values()],
        more={"seconds_and_mib": runs},
        environment=where,
    )


def _check(out: Path, count: int) -> None:
    """Check that every row is there once, in order, with its id and a caption."""
    row = 0
    for table in iter_tables(out, ["row", "pair_id", "caption", "error"]):
        for found in table.to_pylist():
            good = found["row"] == row and found["pair_id"] == f"{row:07d}" and found["error"] is None
            if not (good and found["caption"] is not None):
                raise ValueError(f"batch: row {row} of {out} is wrong: {found}")
            row += 1
    if row != count:
        raise ValueError(f"batch: {out} has {row} rows instead of {count}")


class _Watched:
    """A command and its descendant processes, with their memory: the sum of proportional set sizes, in which shared
    pages count once."""

    def __init__(self, command: list[str], out: Path, sample_s: float) -> None:
        import psutil

        self._psutil = psutil
        self._out = out
        self._sample_s = sample_s
        self._before = self._parts()
        self._output = out.with_name(f"{out.name}-{time.time_ns()}.log")
        with self._output.open("wb") as stream:
            self._process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        self._began = self._sampled = time.monotonic()
        self.memory: list[tuple[float, float]] = []
        """(seconds since the start, MiB), from the first part on, when the captioner is loaded."""

    def run_until(self, parts: int) -> None:
        """Wait until this many parts are written."""
        while self._parts() < parts:
            if self._process.poll() is not None:
                raise ValueError(f"batch: the job ended before part {parts}; the end of its log:\n{self._tail()}")
            self._sample()
            time.sleep(0.2)

    def kill(self) -> int:
        """SIGKILL the process group; return the number of parts once all processes have ended."""
        processes = self._processes()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _, alive = self._psutil.wait_procs(processes, timeout=60)
        for process in alive:
            process.kill()
        if alive:
            raise ValueError(f"batch: alive 60 s after the kill: {', '.join(str(process) for process in alive)}")
        return self._parts()

    def kill_an_actor(self) -> None:
        """SIGKILL one of the job's workers."""
        workers = [p for p in self._processes() if "".join(self._command_of(p)[:1]).startswith("ray::MapWorker")]
        if not workers:
            raise ValueError("batch: no ray::MapWorker process found to kill")
        workers[0].kill()

    def finish(self) -> None:
        """Wait until the job ends; it must succeed."""
        while self._process.poll() is None:
            self._sample()
            time.sleep(0.2)
        if self._process.returncode:
            raise ValueError(
                f"batch: the job failed with status {self._process.returncode}; the end of its log:\n{self._tail()}"
            )

    def _parts(self) -> int:
        return len(list(self._out.glob("part-*")))

    def _tail(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")[-2000:]

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self._sampled < self._sample_s or self._parts() == self._before:
            return
        self._sampled = now
        total = 0
        for process in self._processes():
            try:
                total += process.memory_full_info().pss
            except self._psutil.Error:
                continue  # the process has ended
        self.memory.append((round(now - self._began, 1), round(total / 2**20, 1)))

    def _processes(self) -> list[Any]:
        try:
            own = self._psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        except self._psutil.NoSuchProcess:
            return []

    def _command_of(self, process: Any) -> list[str]:
        try:
            found: list[str] = process.cmdline()
        except self._psutil.Error:
            return []
        return found
