"""A training step under Ray Train and DeepSpeed over the bare torch loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.measurement import Measurement, environment
from benchmarks.processes import apart, say, scratch, turns
from cluster.config import ClusterConfig
from cluster.session import session
from idc.config import ConfigModel
from idc.training.config import TrainConfig


class TrainOverheadConfig(ConfigModel):
    """Step time of Ray Train + DeepSpeed with one worker over the same loop in plain torch without Ray."""

    config: str = "jobs/configs/procap/pretrain_demo.yaml"
    """YAML file of the ProCap stage 1 run."""
    steps: int = Field(50, ge=2)
    """Optimizer steps per run."""
    warmup: int = Field(10, ge=1)
    """Untimed steps at the start of a run."""
    rounds: int = Field(3, ge=1)
    """Runs of each kind."""
    threads: int = Field(2, ge=1)
    """Torch threads, of both."""

    def faults(self) -> Iterator[str]:
        if self.warmup >= self.steps:
            yield f"warmup: {self.warmup} leaves none of {self.steps} steps to time"


BARE = {"engine": "torch", "zero_stage": 0, "deepspeed_extra": {}}


RAY = {"engine": "deepspeed", "zero_stage": 0}


def train_overhead(
    config: TrainOverheadConfig, entry: str, payload: dict[str, Any], train: TrainConfig, cluster: ClusterConfig
) -> Measurement:
    """Seconds per step under Ray Train and DeepSpeed, one worker, over those of the bare loop in plain torch.

    Both run the same entry with the same seed, samples, batches and threads, and nothing else runs: during the bare
    loop there is no Ray on the machine. Neither validates nor tracks while it is timed.

    Args:
        entry, payload: as for :func:`cluster.train.launch`.
        train: the run's settings; those that the measurement needs are overridden.
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
            say(f"train_overhead: {kind} {statistics.median(seconds[kind][-1]):.4f} s/step")
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
    """Seconds of every step of one run; with ``cluster`` on its own Ray."""
    from cluster.train import launch
    from idc.training.loop import read_log

    settings = TrainConfig.model_validate(train)
    if cluster is None:
        launch(entry, payload, settings, run_dir, local=True)
    else:
        with session(ClusterConfig.model_validate(cluster)):
            launch(entry, payload, settings, run_dir)
    return [line["seconds_per_step"] for line in read_log(Path(run_dir) / "log.jsonl")]
