"""Measurements that need Ray: each run in a fresh process with a Ray of its own (or none), two kinds by turns.

A fresh process, because a loaded DeepSpeed, a grown heap or a running Ray beside it would change what is measured.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measurement import Measurement, Stamp, TrainOverheadConfig, environment, peak_memory_mib, steady_rate
from cluster.config import ClusterConfig
from cluster.session import session
from idc.data.pipeline import Batch, Source, StageSpec, num_rows
from idc.data.store import DatasetFolder, Manifest, read_manifest
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.training.config import TrainConfig

T = TypeVar("T")

BARE = {"engine": "torch", "zero_stage": 0, "deepspeed_extra": {}}
RAY = {"engine": "deepspeed", "zero_stage": 0}


def apart(function: Callable[..., T], *args: Any) -> T:
    """Call a module's function in a new process that ends after it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for outputs nobody wants."""
    folder = Path(tempfile.mkdtemp(prefix="idc-benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def turns(kinds: Sequence[str], rounds: int) -> Iterator[str]:
    """``kinds`` in order, then backwards, and so on: what drifts over time strikes all of them alike."""
    for number in range(rounds):
        yield from kinds if number % 2 == 0 else reversed(kinds)


def say(text: str) -> None:
    print(text, flush=True)


# -- training ----------------------------------------------------------------------------------------------------


def train_overhead(
    config: TrainOverheadConfig, entry: str, payload: dict[str, Any], train: TrainConfig, cluster: ClusterConfig
) -> Measurement:
    """Seconds a step under Ray Train and DeepSpeed, one worker, over those of the bare loop with plain torch.

    Both run the same entry with the same seed, samples, batches and threads, and nothing else beside them: the bare
    loop has no Ray on the machine. Neither validates or tracks while it is timed.

    Args:
        entry, payload: as for :func:`cluster.train.launch`.
        train: the run's settings; what is measured is laid over them.
    """
    timed = {
        "steps": config.steps,
        "epochs": None,
        "num_workers": 1,
        "cpus_per_worker": config.threads,
        "checkpoint_every": config.steps,
        "eval_every": 0,
        "log_every": 1,
        "keep_best": None,
        "max_failures": 0,
        "tracking": {"enabled": False},
    }
    base = {**train.model_dump(mode="json"), **timed}
    seconds: dict[str, list[list[float]]] = {"bare": [], "ray": []}
    wall: dict[str, list[float]] = {"bare": [], "ray": []}
    where = environment(config.threads)
    with scratch() as folder:
        for number, kind in enumerate(turns(("bare", "ray"), config.rounds)):
            settings = {**base, **(BARE if kind == "bare" else RAY)}
            began = time.perf_counter()
            steps = apart(
                _train_once, entry, payload, settings, str(folder / f"{kind}-{number}"),
                None if kind == "bare" else cluster.model_dump(),
            )  # fmt: skip
            wall[kind].append(time.perf_counter() - began)
            seconds[kind].append(steps[config.warmup :])
            say(f"train_overhead: {kind} {statistics.median(seconds[kind][-1]):.4f} s a step")
    return Measurement(
        part="train_overhead",
        title="a training step, Ray Train + DeepSpeed (1 worker) over the bare torch loop",
        unit="s/step",
        aim="at most 1.10",
        above=[statistics.median(steps) for steps in seconds["ray"]],
        below=[statistics.median(steps) for steps in seconds["bare"]],
        more={"step_seconds": seconds, "wall_seconds_of_a_run": wall, "warmup_steps": config.warmup},
        environment=where,
    )


def _train_once(
    entry: str, payload: dict[str, Any], train: dict[str, Any], run_dir: str, cluster: dict[str, Any] | None
) -> list[float]:
    """Seconds of every step of one run; with ``cluster`` on a Ray started for it."""
    from cluster.train import launch
    from idc.training.loop import read_log

    settings = TrainConfig.model_validate(train)
    if cluster is None:
        launch(entry, payload, settings, run_dir, local=True)
    else:
        with session(ClusterConfig.model_validate(cluster)):
            launch(entry, payload, settings, run_dir)
    return [line["seconds_per_step"] for line in read_log(Path(run_dir) / "log.jsonl")]


# -- building ----------------------------------------------------------------------------------------------------


class Stamper:
    """A last stage that changes nothing and writes down when a chunk came through, and the worker's peak memory."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / f"{os.getpid()}.jsonl"

    def __call__(self, batch: Batch) -> Batch:
        line = {"seconds": time.time(), "rows": num_rows(batch), "peak_mib": peak_memory_mib()}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        return batch


def stamps_of(folder: Path) -> list[Stamp]:
    """What the stampers of a job wrote into a folder."""
    return [
        Stamp(worker=worker, seconds=line["seconds"], rows=line["rows"])
        for worker, written in _written(folder).items()
        for line in written
    ]


def _written(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {
        int(path.stem): [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }


def build_speed(
    build: ProceduresConfig, num_pairs: int, actors: int, rounds: int, cluster: ClusterConfig
) -> Measurement:
    """Rate of procedures with ``actors`` actors over that with one, in the steady state."""
    kinds = {"one": 1, "several": actors}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    where = environment(max(1, int(build.cpus_per_actor)))
    with scratch() as folder:
        for number, kind in enumerate(turns(tuple(kinds), rounds)):
            config = build.model_copy(update={"actors": kinds[kind], "max_pairs": num_pairs})
            done = apart(_build_once, config.model_dump(mode="json"), str(folder / f"{number}"), cluster.model_dump())
            rates[kind].append(steady_rate(done["stamps"], kinds[kind]))
            say(f"build_actors: {kinds[kind]} actors {rates[kind][-1]:.2f} pairs a second")
    return Measurement(
        part="build_actors",
        title=f"building procedures, {actors} actors over 1 ({num_pairs} pairs, steady state)",
        unit="pairs/s",
        aim=f"at least {0.85 * actors:.1f}",
        above=rates["several"],
        below=rates["one"],
        environment=where,
    )


def _need_pairs(build: ProceduresConfig, there: int, wanted: int) -> None:
    if there < wanted:
        raise ValueError(
            f"build_memory: {build.pairs} gives {there} pairs, {wanted} are asked for; take fewer num_pairs or times"
        )


def build_memory(
    build: ProceduresConfig, num_pairs: int, times: int, rounds: int, cluster: ClusterConfig
) -> Measurement:
    """Peak memory of the driver and the actors together, with ``times`` the pairs over ``num_pairs``.

    The sum of each process's own peak of resident memory; Ray's own daemons are not in it.
    """
    kinds = {"small": num_pairs, "large": num_pairs * times}
    _need_pairs(build, read_manifest(build.pairs, kind="pairs").num_rows, kinds["large"])
    peaks: dict[str, list[float]] = {name: [] for name in kinds}
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    where = environment(max(1, int(build.cpus_per_actor)))
    with scratch() as folder:
        for number, kind in enumerate(turns(tuple(kinds), rounds)):
            config = build.model_copy(update={"max_pairs": kinds[kind]})
            done = apart(_build_once, config.model_dump(mode="json"), str(folder / f"{number}"), cluster.model_dump())
            _need_pairs(build, done["pairs"], kinds[kind])
            peaks[kind].append(done["driver_mib"] + sum(done["actors_mib"]))
            parts[kind].append({"driver_mib": done["driver_mib"], "actors_mib": done["actors_mib"]})
            say(f"build_memory: {kinds[kind]} pairs {peaks[kind][-1]:.0f} MiB")
    return Measurement(
        part="build_memory",
        title=f"peak memory of a build, {times} times the pairs over {num_pairs}",
        unit="MiB",
        aim="at most 1.2",
        above=peaks["large"],
        below=peaks["small"],
        more={"processes": parts},
        environment=where,
    )


def _build_once(build: dict[str, Any], place: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """One build in this process and a Ray of its own, and what its actors wrote down."""
    from idc.systems.procap.procedures.build import build as build_procedures

    stamps = Path(place) / "stamps"
    stamps.mkdir(parents=True)

    def on_ray(
        folder: DatasetFolder, source: Source, stages: list[StageSpec], *, max_reject_share: float, name: str
    ) -> Manifest:
        from cluster.data import run  # imports Ray, which must find the session's environment

        stages = [*stages, replace(stages[-1], cls=Stamper, kwargs={"folder": str(stamps)})]
        return run(folder, source, stages, progress=False, max_reject_share=max_reject_share, name=name)

    with session(ClusterConfig.model_validate(cluster)):
        manifest = build_procedures(ProceduresConfig.model_validate(build), str(Path(place) / "procedures"), on_ray)
    lines = _written(stamps)
    return {
        "stamps": stamps_of(stamps),
        "driver_mib": peak_memory_mib(),
        "actors_mib": [max(line["peak_mib"] for line in written) for written in lines.values()],
        "pairs": manifest.num_rows + manifest.num_rejected,
    }
