"""Measurements, their record on disk, and the timing helpers of all benchmarks.

Every benchmark is a ratio of two things measured in turns in one run, because a machine's speed changes within an
hour. The raw numbers are stored; the ratio is computed from them.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, computed_field

from idc.provenance import commit

if TYPE_CHECKING:
    pass

Part = Literal[
    "train_overhead",
    "build_actors",
    "build_memory",
    "decoding",
    "captioning",
    "pretraining",
    "hardware",
    "scoring",
    "serving",
    "batch",
]

RECORD = "benchmark.json"
TABLE = "benchmark.md"


# -- the record --------------------------------------------------------------------------------------------------


class Environment(BaseModel):
    """Machine, code and command of a measurement."""

    model_config = ConfigDict(extra="forbid")

    device: str
    threads: int
    """Torch threads per process."""
    commit: str
    command: str
    load: float | None
    """Load average of the minute before; None where the system has none."""
    versions: dict[str, str]


class Measurement(BaseModel):
    """Two things measured in turns: the ``n``-th of ``above`` is divided by the ``n``-th of ``below``."""

    model_config = ConfigDict(extra="forbid")

    part: Part
    title: str
    """The two things compared, as "A over B"."""
    unit: str
    """Unit of the raw numbers."""
    aim: str
    """Target of the ratio."""
    above: list[float]
    below: list[float]
    more: dict[str, Any] = {}
    """Further results."""
    environment: Environment

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratios(self) -> list[float]:
        return [above / below for above, below in zip(self.above, self.below, strict=True)]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float:
        """The median of ``ratios``."""
        return statistics.median(self.ratios)

    def row(self) -> str:
        """The row of the Markdown table with :data:`HEADER`."""
        low, high, n = min(self.ratios), max(self.ratios), len(self.ratios)
        spread = f" ({low:.2f} to {high:.2f}, n = {n})" if n > 1 else " (n = 1)"
        raw = f"{statistics.median(self.above):.4g} / {statistics.median(self.below):.4g} {self.unit}"
        where = f"{self.environment.device}, {self.environment.threads} threads"
        cells = [self.title, f"**{self.ratio:.2f}**{spread}", self.aim, raw, where, self.environment.commit]
        return "| " + " | ".join([*cells, f"`{self.environment.command}`"]) + " |"


HEADER = "| what | ratio: median (range) | aim | medians | device | commit | command |\n|---|---|---|---|---|---|---|"


class Record(BaseModel):
    """All measurements of a folder."""

    model_config = ConfigDict(extra="forbid")

    measurements: list[Measurement] = []

    @classmethod
    def load(cls, out: Path | str) -> Record:
        """The record in ``out``, empty if there is none.

        Raises:
            ValueError: the file is not a record of benchmarks.
        """
        path = Path(out) / RECORD
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(_without_computed(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ValueError(f"out: {path} is not a record of benchmarks; choose another folder: {error}") from None

    def with_part(self, measured: Sequence[Measurement]) -> Record:
        """A record in which these measurements replace all earlier ones of their parts."""
        parts = {one.part for one in measured}
        return Record(measurements=[one for one in self.measurements if one.part not in parts] + list(measured))

    def save(self, out: Path | str) -> None:
        """Write ``benchmark.json`` and the rows for BENCHMARKS.md, ``benchmark.md``."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        (folder / TABLE).write_text(self.table() + "\n", encoding="utf-8")

    def table(self) -> str:
        """All rows as a Markdown table."""
        return "\n".join([HEADER, *(one.row() for one in self.measurements)])

    def load_note(self) -> str | None:
        """A warning if the machine was busy with other work before a measurement."""
        load = max((one.environment.load or 0.0 for one in self.measurements), default=0.0)
        if load <= 0.5 * (os.cpu_count() or 1):
            return None
        return f"note: the load average was up to {load}; do not publish these numbers"


def _without_computed(record: dict[str, Any]) -> dict[str, Any]:
    """Drop the computed fields, which are stored for readers of the JSON."""
    for one in record["measurements"]:
        one.pop("ratios", None)
        one.pop("ratio", None)
    return record


def environment(threads: int, device: str = "cpu") -> Environment:
    """The environment of this process; call it before the measurement, because of the load average."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Environment(
        device=device_name(device),
        threads=threads,
        commit=commit(),
        command=shlex.join(["python", *sys.argv]),
        load=None if load is None else round(load, 2),
        versions={"python": platform.python_version(), **_versions("torch", "ray", "deepspeed", "diffusers")},
    )


def device_name(device: str = "cpu") -> str:
    """Processor, cores and memory, and the GPU if ``device`` is one."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{processor}, {cores} cores"
    with contextlib.suppress(ValueError, OSError, AttributeError):
        text += f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    if device.startswith("cuda"):
        import torch

        text = f"{torch.cuda.get_device_name(device)}; {text}"
    return text


def _versions(*packages: str) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


# -- steady state of a build -------------------------------------------------------------------------------------


class Stamp(BaseModel):
    """A chunk that has passed the last stage of a worker."""

    worker: int
    """Process id."""
    seconds: float
    """Wall-clock time."""
    rows: int


def steady_rate(stamps: Sequence[Stamp], workers: int) -> float:
    """Rows per second while all ``workers`` were busy: from the last worker's first chunk to the first worker's last
    chunk. This excludes start-up and the idle end.

    Raises:
        ValueError: another number of workers took part, or there were too few chunks.
    """
    by_worker: dict[int, list[float]] = {}
    for stamp in stamps:
        by_worker.setdefault(stamp.worker, []).append(stamp.seconds)
    if len(by_worker) != workers:
        raise ValueError(f"{len(by_worker)} workers took part in the build, not {workers}; take more num_pairs")
    begin = max(min(times) for times in by_worker.values())
    end = min(max(times) for times in by_worker.values())
    rows = sum(stamp.rows for stamp in stamps if begin < stamp.seconds <= end)
    if not rows:
        raise ValueError(f"{len(stamps)} chunks are too few to measure {workers} workers; take more num_pairs")
    return rows / (end - begin)


# -- memory ------------------------------------------------------------------------------------------------------


def peak_memory_mib() -> float:
    """Peak resident memory of this process. Not from ``getrusage``, whose value starts with the parent's after fork
    and exec."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    from idc.training.loop import peak_rss_gib

    return peak_rss_gib() * 1024


def by_turns(actions: dict[str, Callable[[], Any]], repeats: int, sync: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds of each action, ``repeats`` times, in turns; every second round runs backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(repeats):
        for name in list(actions)[:: 1 if number % 2 == 0 else -1]:
            sync()
            began = time.perf_counter()
            actions[name]()
            sync()
            seconds[name].append(time.perf_counter() - began)
    return seconds
