"""A training step under Ray Train and DeepSpeed over the bare torch loop, and which of the two takes how much."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.measurement import Measurement, this_environment
from benchmarks.processes import PausedRun, say, scratch, turns
from cluster.config import ClusterConfig
from cluster.session import session
from idc.config import ConfigModel
from idc.training.config import TrainConfig


class TrainOverheadConfig(ConfigModel):
    """Step time of Ray Train + DeepSpeed with one worker over the same loop without Ray, in DeepSpeed and in torch."""

    config: str = "jobs/configs/procap/pretrain_demo.yaml"
    """YAML file of the ProCap stage 1 run."""
    steps: int = Field(8, ge=1)
    """Optimizer steps timed in one turn of a run."""
    warmup: int = Field(10, ge=1)
    """Untimed steps at the start of a run."""
    rounds: int = Field(10, ge=1)
    """Turns of each run."""
    threads: int = Field(2, ge=1)
    """Torch threads, of all."""


RUNS = {
    "torch": {"engine": "torch", "zero_stage": 0, "deepspeed_extra": {}},
    "deepspeed": {"engine": "deepspeed", "zero_stage": 0},
    "ray": {"engine": "deepspeed", "zero_stage": 0},
}
"""Settings that differ between the runs; only ``ray`` is on Ray Train."""

_ENDLESS = 1 << 30
"""Steps of a run: it is ended from outside."""


def train_overhead(
    config: TrainOverheadConfig, entry: str, payload: dict[str, Any], train: TrainConfig, cluster: ClusterConfig
) -> Iterator[Measurement]:
    """Seconds per step of three runs: the bare loop in torch, the same in DeepSpeed, DeepSpeed on Ray Train (1 worker).

    All run the same entry with the same seed, samples, batches and threads, each in processes of its own. They take
    turns of a few steps, and those that do not run are stopped: during the bare loop, Ray's daemons are, too. The first
    step of a turn, which began in the turn before, is not counted. None validates, saves or tracks.

    Args:
        entry, payload: as for :func:`cluster.train.launch`.
        train: the run's settings; those that the measurement needs are overridden.
    """
    timed = {
        "steps": _ENDLESS,
        "epochs": None,
        "num_workers": 1,
        "cpus_per_worker": config.threads,
        "checkpoint_every": _ENDLESS,
        "eval_every": 0,
        "log_every": 1,
        "keep_best": None,
        "max_failures": 0,
        "tracking": {"enabled": False},
    }
    base = {**train.model_dump(mode="json"), **timed}
    seconds: dict[str, list[list[float]]] = {kind: [] for kind in RUNS}
    where = this_environment(config.threads)
    with scratch() as folder, ExitStack() as stack:
        runs = {}
        for kind, settings in RUNS.items():
            options = cluster.model_dump() if kind == "ray" else None
            run = PausedRun(_train, entry, payload, {**base, **settings}, str(folder / kind), options)
            runs[kind] = stack.enter_context(closing(run))
            logged = _Log(folder / kind / "log.jsonl")
            run.turn(partial(logged.reached, config.warmup))
        before = runs["ray"].cpu_seconds()
        for kind in turns(list(RUNS), config.rounds):
            logged = _Log(folder / kind / "log.jsonl")
            start = logged.lines()
            runs[kind].turn(partial(logged.reached, start + config.steps + 1))
            seconds[kind].append(logged.seconds()[start + 1 :])
            say(f"train_overhead: {kind} {statistics.median(seconds[kind][-1]):.4f} s/step")
        wall = sum(map(sum, seconds["ray"]))
        shares = _shares(before, runs["ray"].cpu_seconds(), wall)
    say("train_overhead: CPU of Ray's processes, percent of a core: " + json.dumps(shares))
    medians = {kind: [statistics.median(steps) for steps in seconds[kind]] for kind in RUNS}
    for above, below, title, aim in (
        ("deepspeed", "torch", "a training step, DeepSpeed over plain torch, bare loop", ""),
        ("ray", "deepspeed", "a training step, Ray Train + DeepSpeed (1 worker) over bare DeepSpeed", "at most 1.05"),
        ("ray", "torch", "a training step, Ray Train + DeepSpeed (1 worker) over the bare torch loop", "at most 1.05"),
    ):
        more = {"step_seconds": {kind: seconds[kind] for kind in (above, below)}, "warmup_steps": config.warmup}
        yield Measurement(
            part="train_overhead",
            title=title,
            unit="s/step",
            aim=aim,
            above=medians[above],
            below=medians[below],
            more=more | ({"cpu_percent_of_a_core": shares} if above == "ray" else {}),
            environment=where,
        )


def _shares(
    before: dict[tuple[int, str], float], after: dict[tuple[int, str], float], seconds: float
) -> dict[str, float]:
    """CPU of processes in percent of a core, by name, the largest first."""
    used: dict[str, float] = defaultdict(float)
    for process, cpu in after.items():
        used[process[1]] += 100 * (cpu - before.get(process, 0.0)) / seconds
    return {name: round(share, 2) for name, share in sorted(used.items(), key=lambda item: -item[1]) if share >= 0.05}


class _Log:
    """The log of a run, one line per step."""

    def __init__(self, path: Path):
        self.path = path

    def _complete(self) -> list[str]:
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def lines(self) -> int:
        return len(self._complete())

    def reached(self, lines: int) -> bool:
        return self.lines() >= lines

    def seconds(self) -> list[float]:
        """Of every step."""
        return [json.loads(line)["seconds_per_step"] for line in self._complete()]


def _train(
    entry: str, payload: dict[str, Any], train: dict[str, Any], run_dir: str, cluster: dict[str, Any] | None
) -> None:
    """A run in this process; with ``cluster`` on its own Ray."""
    from cluster.train import launch

    settings = TrainConfig.model_validate(train)
    if cluster is None:
        launch(entry, payload, settings, run_dir, local=True)
    else:
        with session(ClusterConfig.model_validate(cluster)):
            launch(entry, payload, settings, run_dir)
