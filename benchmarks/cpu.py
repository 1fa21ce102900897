"""Where the cores' time goes while something is measured: CPU seconds by kind of process, by thread, and idle time."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    key: tuple[int, int]
    """Its id and its start, in ticks since the machine's start: ids are used again."""
    name: str
    seconds: float


def _processes(kind: Callable[[str], str]) -> Iterator[_Process]:
    """The living descendants of this process."""
    parents: dict[int, int] = {}
    states: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], states[pid] = int(fields[1]), fields
    for pid in _descendants(parents, os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if not command:  # it has ended and its parent does not know yet: it keeps its name
            continue
        fields = states[pid]
        yield _Process((pid, int(fields[19])), kind(command), (int(fields[11]) + int(fields[12])) * _TICK_S)


def _descendants(parents: dict[int, int], root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


IDLE = "idle"
"""Name of the time in which a core has nothing to do, summed over the cores."""
OTHER = "other programs"
"""Name of the cores' time that no counted process used: other programs, the kernel, the hypervisor."""


class CpuLine:
    """CPU seconds of the descendants of this process over time, sampled in a thread inside a ``with`` block.

    What a process used before its end stays counted, but for the time between the last sample and its end.

    Args:
        kind: name under which a process is counted, from its command line.
        every_s: pause between two samples, each of which takes a few milliseconds.
    """

    def __init__(self, kind: Callable[[str], str], every_s: float = 0.5) -> None:
        self._kind, self._every_s = kind, every_s
        self._names: dict[tuple[int, int], str] = {}  # the last one of each process: Ray's workers change theirs
        self._samples: list[tuple[float, dict[tuple[int, int], float], float]] = []  # time, CPU seconds, idle seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuLine:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Core seconds by name between two moments of ``time.time()``, linear between samples. With :data:`IDLE` and
        :data:`OTHER` they add up to ``end - begin`` times the number of cores."""
        at = [when for when, _, _ in self._samples]

        def used(values: list[float]) -> float:
            low, high = np.interp([begin, end], at, values)
            return float(high - low)

        totals: defaultdict[str, float] = defaultdict(float)
        for key, name in self._names.items():
            totals[name] += used([seconds.get(key, 0.0) for _, seconds, _ in self._samples])
        totals[IDLE] = used([idle for _, _, idle in self._samples])
        totals[OTHER] = max(0.0, (os.cpu_count() or 1) * (end - begin) - sum(totals.values()))
        return dict(totals)

    def _watch(self) -> None:
        while not self._done.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        processes = list(_processes(self._kind))
        self._names |= {process.key: process.name for process in processes}
        before = self._samples[-1][1] if self._samples else {}
        fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
        # Fields: name, user, nice, system, idle, iowait, ...
        idle = (int(fields[4]) + int(fields[5])) * _TICK_S
        self._samples.append((time.time(), before | {process.key: process.seconds for process in processes}, idle))


def thread_seconds() -> dict[int, float]:
    """CPU seconds so far of this process's living threads, by their native ids."""
    seconds = {}
    for path in Path("/proc/self/task").glob("[0-9]*/stat"):
        try:
            # The second field is the name in parentheses, which may itself contain spaces and parentheses.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        seconds[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) * _TICK_S
    return seconds


class Spent:
    """Collects where the cores' time goes in several runs of a load, per answered pair.

    Args:
        kind: as in :class:`CpuLine`.
    """

    def __init__(self, kind: Callable[[str], str]) -> None:
        self._kind = kind
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._pairs = 0.0

    @contextmanager
    def measured(self) -> Iterator[Callable[[float, float, float], None]]:
        """Measure the block, which calls the yielded function: ``(begin_s, end_s, pairs)``, a part of the block in
        seconds since its start, and the number of pairs answered in it."""
        parts: list[tuple[float, float, float]] = []
        with CpuLine(self._kind) as line:
            start = time.time()
            yield lambda begin, end, pairs: parts.append((begin, end, pairs))
        for begin, end, pairs in parts:
            self._pairs += pairs
            for name, seconds in line.between(start + begin, start + end).items():
                self._seconds[name] += seconds

    def ms_per_pair(self) -> dict[str, float]:
        """Milliseconds of the cores per pair, by name."""
        return {name: round(1e3 * seconds / self._pairs, 3) for name, seconds in sorted(self._seconds.items())}
