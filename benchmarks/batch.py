"""Batch captioning: throughput of the job over a bare loop, and recovery of a long job that is killed.

The *bare loop* runs as many processes as the job has actors, each with the same captioner and one torch thread. Each
process holds its share of the encoded pairs in memory and only decodes and captions batches: no Ray, no file access.

Both log every call of the captioner, so that their steady states are measured alike; meanwhile the CPU time of all
processes is sampled, and in the actors that of their threads.
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from benchmarks.calls import Calls, LoggedLoader
from benchmarks.cpu import CpuLine
from benchmarks.measurement import Measurement, steady, this_environment
from benchmarks.processes import apart, process_name, say, scratch, turns
from cluster.config import ClusterConfig
from cluster.session import session
from idc.captioning.loading import CaptionerLoader
from idc.captioning.table import CaptionJob, caption_rows
from idc.config import ConfigModel
from idc.data.images import decode_image
from idc.data.pipeline import iter_chunks
from idc.data.rows import open_rows
from idc.data.store import iter_tables, read_table

_WORKERS = "workers"


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
    runs: dict[str, list[_Run]] = {"bare": [], "job": []}
    where = this_environment(1)
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
        for number, kind in enumerate(turns(tuple(runs), config.rounds)):
            run_folder = folder / f"{number}"
            job = CaptionJob.model_validate(
                {**settings, "out": str(run_folder / "captions"), "max_pairs": config.num_pairs}
            )
            runs[kind].append(_measured(kind, job, run_folder, cluster))
            say(f"batch: {kind} {runs[kind][-1].text()}")
        bare, on_ray = runs["bare"], runs["job"]
        yield Measurement(
            part="batch",
            title=f"captioning {config.num_pairs} pairs, the job over a bare loop ({config.actors} processes each), "
            "steady state",
            unit="pairs/s",
            aim="at least 0.92",
            above=[run.steady for run in on_ray],
            below=[run.steady for run in bare],
            more={"core_ms_per_pair": {kind: _medians([run.core_ms for run in of]) for kind, of in runs.items()}},
            environment=where,
        )
        yield Measurement(
            part="batch",
            title=f"the same {config.num_pairs} pairs from start to end, with Ray's start, imports and loading "
            "(bare: those of its processes)",
            unit="pairs/s",
            aim="",
            above=[run.whole for run in on_ray],
            below=[run.whole for run in bare],
            more={
                "seconds": {kind: _medians([run.seconds for run in of]) for kind, of in runs.items()},
                "core_seconds_until_loaded": {kind: _medians([run.start for run in of]) for kind, of in runs.items()},
            },
            environment=where,
        )
        if config.count:
            ends = {**settings, "out": str(folder / "long"), "max_pairs": config.count}
            long_command = [*command, *(f"{name}={value}" for name, value in ends.items()), *_flat(cluster)]
            yield from _long(config, long_command, folder / "long", statistics.median(run.steady for run in bare))


def write_pairs(pairs: str, path: Path, count: int) -> None:
    """Write ``count`` pairs to one Parquet file: the test pairs of a folder, repeated, with ids counted from 0."""
    table = read_table(pairs, ["before", "after"], split="test").combine_chunks()
    schema = pa.schema([("pair_id", pa.string()), ("before", pa.binary()), ("after", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, table.num_rows):
            part = table.slice(0, min(table.num_rows, count - start))
            ids = pa.array([f"{i:07d}" for i in range(start, start + part.num_rows)])
            writer.write_table(part.add_column(0, "pair_id", ids).cast(schema))


# -- the ratio ---------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """One run of the job or of the bare loop.

    Attributes:
        steady, whole: pairs per second, in the steady state and from start to end.
        core_ms: milliseconds of the cores per pair in the steady state, by what they are spent on.
        seconds: the phases from start to end.
        start: seconds of the cores until all captioners are loaded, by process.
    """

    steady: float
    whole: float
    core_ms: dict[str, float]
    seconds: dict[str, float]
    start: dict[str, float]

    def text(self) -> str:
        return f"{self.steady:.1f} pairs/s, start to end {self.whole:.1f}; ms/pair {json.dumps(_rounded(self.core_ms))}"


def _measured(kind: str, job: CaptionJob, run_folder: Path, cluster: ClusterConfig) -> _Run:
    """Run the job or the bare loop; all that it writes is in ``run_folder``."""
    moments = {"began": time.time()}
    with CpuLine(_bare_kind if kind == "bare" else _job_kind) as line:
        if kind == "bare":
            bare_loop(job, run_folder)
        else:
            moments |= apart(_caption_once, job.model_dump(mode="json"), str(run_folder), cluster.model_dump())
    moments["ended"] = time.time()
    calls = Calls(run_folder / "calls")
    window = steady(calls.stamps, job.actors)
    cores = {name: seconds / window.rows for name, seconds in line.between(window.begin, window.end).items()}
    del cores[_WORKERS]  # the time of their threads says more
    cores = {f"workers: {name}": seconds for name, seconds in calls.cpu_seconds(window).items()} | cores
    pairs = sum(stamp.rows for stamp in calls.stamps)
    return _Run(
        steady=window.rate,
        whole=pairs / (moments["ended"] - moments["began"]),
        core_ms={name: 1e3 * seconds for name, seconds in cores.items()},
        seconds=_phases(moments, calls, window.end),
        start=line.between(moments["began"], calls.loaded),
    )


def bare_loop(job: CaptionJob, run_folder: Path) -> None:
    """Run the bare loop, whose processes start together when all of them have loaded the captioner.

    Args:
        run_folder: in its folder ``calls`` the captioners log their calls.
    """
    context = multiprocessing.get_context("spawn")
    with multiprocessing.Manager() as manager:
        ready = manager.Barrier(job.actors)
        with ProcessPoolExecutor(job.actors, mp_context=context) as pool:
            settings = job.model_dump(mode="json")
            for share in [pool.submit(_bare_share, settings, run_folder, n, ready) for n in range(job.actors)]:
                share.result()


def _bare_share(settings: dict[str, Any], run_folder: Path, number: int, ready: Any) -> None:
    job = CaptionJob.model_validate(settings)
    source = open_rows(job.input, chunk_size=job.batch_size, limit=job.max_pairs)
    share = [batch for n, batch in enumerate(iter_chunks(source)) if n % job.actors == number]
    captioner = LoggedLoader(CaptionerLoader(job.artifact, job, job.gpus_per_actor, threads=1), run_folder / "calls")()
    ready.wait()
    for batch in share:
        captioner.describe(*([decode_image(data) for data in batch[role]] for role in ("before", "after")))


def _caption_once(settings: dict[str, Any], run_folder: str, cluster: dict[str, Any]) -> dict[str, float]:
    """Run one job in this process with its own Ray; return when Ray had started and when all rows were written."""
    job = CaptionJob.model_validate(settings)
    load = LoggedLoader(CaptionerLoader(job.artifact, job, job.gpus_per_actor, threads=1), Path(run_folder) / "calls")
    with session(ClusterConfig.model_validate(cluster)):
        from cluster.data import run_chunks_on_ray  # imports Ray, so only after the session has set the environment

        started = time.time()
        caption_rows(job, partial(run_chunks_on_ray, progress=False), local=False, load=load)
        return {"ray": started, "written": time.time()}


def _bare_kind(command: str) -> str:
    return _WORKERS if "spawn_main" in command else "other processes"


def _job_kind(command: str) -> str:
    name = process_name(command.split())
    if name.startswith("ray::MapWorker"):
        return _WORKERS
    if name == "the run":
        return "driver" if "spawn_main" in command else "other processes"
    return name


def _phases(moments: dict[str, float], calls: Calls, all_busy_until: float) -> dict[str, float]:
    """Where the seconds from start to end went, in order; the bare loop starts no Ray and writes nothing."""
    last = max(stamp.seconds for stamp in calls.stamps)
    ends = {
        "Ray's start": moments.get("ray", moments["began"]),
        "the workers' start, imports, loading": calls.loaded,
        "captioning, all workers busy": all_busy_until,
        "captioning, some workers idle": last,
        "the last rows written": moments.get("written", last),
        "the processes' end": moments["ended"],
    }
    starts = [moments["began"], *ends.values()]
    return {name: end - start for (name, end), start in zip(ends.items(), starts, strict=False)}


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of every number over the runs."""
    return {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: round(number, 2) for name, number in numbers.items()}


# -- the long job ------------------------------------------------------------------------------------------------


def _flat(cluster: ClusterConfig) -> list[str]:
    return [f"cluster.{name}={json.dumps(value)}" for name, value in cluster.model_dump(exclude_unset=True).items()]


def _long(config: BatchConfig, command: list[str], out: Path, bare: float) -> Iterator[Measurement]:
    """Kill the job half way, restart it, and kill one actor later."""
    where = this_environment(1)
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
        for record in table.to_pylist():
            good = record["row"] == row and record["pair_id"] == f"{row:07d}" and record["error"] is None
            if not (good and record["caption"] is not None):
                raise ValueError(f"batch: row {row} of {out} is wrong: {record}")
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
            # A session of its own, so that a kill reaches its whole process group and not this process.
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
            root = self._psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except self._psutil.NoSuchProcess:
            return []

    def _command_of(self, process: Any) -> list[str]:
        try:
            words: list[str] = process.cmdline()
        except self._psutil.Error:
            return []
        return words
