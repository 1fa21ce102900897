"""Measurements, where they were taken, and the timing helpers of all benchmarks.

Where two things can be compared, a benchmark is a ratio of both measured in turns in one run, because a machine's speed
changes within an hour. The raw numbers are stored (:mod:`benchmarks.record`); the ratio is computed from them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from benchmarks.machine import VARIABLES, Machine, TorchBuild, this_machine, torch_build
from idc.provenance import UNKNOWN_COMMIT, command_line, commit
from idc.redaction import redacted

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
    "serve_command",
    "batch",
    "rendering",
    "systems",
    "vlm",
]

# -- a measurement -----------------------------------------------------------------------------------------------


class Environment(BaseModel):
    """Machine, code and command of a measurement."""

    model_config = ConfigDict(extra="forbid")

    machine: Machine
    torch: TorchBuild | None = None
    threads: int
    """Torch threads per process."""
    variables: dict[str, str] = {}
    """Environment variables that were set and change the speed."""
    commit: str
    """With a "+" if files other than the record differed from it."""
    date: str
    """UTC, to the minute."""
    command: str
    load: float | None
    """Load average of the minute before; None where the system has none."""
    versions: dict[str, str]


class Stats(NamedTuple):
    """Median and range of ``n`` values; the range is None where only the median is known."""

    median: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stats:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: str = ".2f") -> str:
        """ "1.18 (1.00 to 1.32, n = 3)", the median in bold."""
        if self.low is None or self.high is None or self.n == 1:
            return f"**{self.median:{digits}}** (n = {self.n})"
        return f"**{self.median:{digits}}** ({self.low:{digits}} to {self.high:{digits}}, n = {self.n})"


class KnownStats(BaseModel):
    """Statistics of a row whose raw runs were not kept."""

    model_config = ConfigDict(extra="forbid")

    ratio: Stats
    above: float
    """Median."""
    below: float
    """Median."""


class MeasuredRow(BaseModel):
    """Two things measured in turns: the ``n``-th of ``above`` is divided by the ``n``-th of ``below``. Without
    ``below``, a plain quantity."""

    model_config = ConfigDict(extra="forbid")

    title: str
    """The two things compared, as "A over B", or the quantity. Rows of two runs are compared if titles are equal."""
    unit: str
    """Unit of the raw numbers."""
    aim: str = ""
    """Target of the ratio, or of the quantity."""
    above: list[float]
    below: list[float] = []
    more: dict[str, Any] = {}
    """Further results. Numbers and words are printed with the row; lists and mappings are only stored."""
    better: Literal["higher", "lower", "neither"] | None = None
    """Which way is an improvement; None: rates are better higher, times and memory lower, others neither."""
    known: KnownStats | None = None
    """Only in records of old runs: all that is known of the raw numbers, which are empty."""

    @property
    def ratios(self) -> list[float]:
        """Empty without ``below``."""
        return [above / below for above, below in zip(self.above, self.below, strict=True)] if self.below else []

    @property
    def ratio(self) -> float | None:
        """The median of ``ratios``; None without ``below``."""
        return None if (stats := self.ratio_stats()) is None else stats.median

    def ratio_stats(self) -> Stats | None:
        if self.known is not None:
            return self.known.ratio
        return Stats.of(self.ratios) if self.below else None

    def above_stats(self) -> Stats:
        if self.known is not None:
            return Stats(self.known.above, None, None, self.known.ratio.n)
        return Stats.of(self.above)

    def direction(self) -> Literal["higher", "lower", "neither"]:
        if self.better is not None:
            return self.better
        if re.search(r"/s\b", self.unit):
            return "higher"
        return "lower" if re.match(r"(s|ms|us|CPU s|[KMG]i?B)\b", self.unit) else "neither"

    def cells(self) -> list[str]:
        """What, ratio, aim, medians: the row of a Markdown table with :data:`HEADER`."""
        ratio, above = self.ratio_stats(), self.above_stats()
        if ratio is None:
            return [self.title, "", self.aim, f"{above.text('.4g')} {self.unit}".rstrip()]
        below = statistics.median(self.below) if self.known is None else self.known.below
        return [self.title, ratio.text(), self.aim, f"{above.median:.4g} / {below:.4g} {self.unit}".rstrip()]

    def further(self) -> list[str]:
        """The numbers and words of ``more``, as text."""
        return [
            f"{name.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
            for name, value in self.more.items()
            if isinstance(value, (bool, int, float, str))
        ]


class Measurement(MeasuredRow):
    """A row, with the part that measured it and where."""

    part: Part
    environment: Environment

    def row(self) -> MeasuredRow:
        return MeasuredRow(**{name: getattr(self, name) for name in MeasuredRow.model_fields})


HEADER = ("what", "ratio: median (range)", "aim", "medians")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def this_environment(threads: int, device: str = "cpu") -> Environment:
    """The environment of this process; call it before the measurement, because of the load average."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Environment(
        machine=this_machine(device),
        torch=torch_build(),
        threads=threads,
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        commit=code_commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        command=command_line() or shlex.join(["python", *map(redacted, sys.argv)]),
        load=None if load is None else round(load, 2),
        versions={"python": platform.python_version(), **_versions("torch", "ray", "deepspeed", "diffusers")},
    )


def code_commit() -> str:
    """The checkout's commit, with a "+" if files differ from it; the record of benchmarks and the page made from it do
    not count, because they change between the parts of a recorded run."""
    name = commit()
    if name == UNKNOWN_COMMIT or "IDC_COMMIT" in os.environ:
        return name
    root = Path(__file__).resolve().parent.parent
    mine = (":(exclude)benchmarks/records", ":(exclude)BENCHMARKS.md")
    changed = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain", "--", ".", *mine], capture_output=True, text=True, check=True
    ).stdout.strip()
    return name.removesuffix("+") + ("+" if changed else "")


def _versions(*packages: str) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


# -- steady state of a build -------------------------------------------------------------------------------------


class Stamp(BaseModel):
    """A chunk that has passed the last stage of a worker."""

    worker: int
    """Process id."""
    seconds: float
    """Wall-clock time."""
    rows: int


class Window(NamedTuple):
    """A steady state: from one moment to another, in wall-clock seconds, with the rows that passed."""

    begin: float
    end: float
    rows: int

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / (self.end - self.begin)


def steady(stamps: Sequence[Stamp], workers: int) -> Window:
    """While all ``workers`` were busy: from the last worker's first chunk to the first worker's last chunk. This
    excludes start-up and the idle end.

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
    return Window(begin, end, rows)


def steady_rate(stamps: Sequence[Stamp], workers: int) -> float:
    """Rows per second of :func:`steady`.

    Raises:
        ValueError: as :func:`steady`.
    """
    return steady(stamps, workers).rate


# -- memory ------------------------------------------------------------------------------------------------------


def peak_memory_mib(pid: int | str = "self") -> float:
    """Peak resident memory of a process, by default this one. Not from ``getrusage``, whose value starts with the
    parent's after fork and exec."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    from idc.training.loop import peak_rss_gib

    return peak_rss_gib() * 1024


def by_turns(actions: dict[str, Callable[[], Any]], repeats: int, sync: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds of each action, ``repeats`` times, in turns; every second round runs backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(repeats):
        for name in list(actions)[:: 1 if number % 2 == 0 else -1]:
            sync()  # else the time includes what the previous action queued on a GPU, and misses what this one queues
            began = time.perf_counter()
            actions[name]()
            sync()
            seconds[name].append(time.perf_counter() - began)
    return seconds
