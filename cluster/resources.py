"""Memory and processor time of this process and its descendants, sampled from /proc by kind and by step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cluster.timeline import KINDS, ResourceKind, Timeline, TimelineLine, TimelineStep
from idc.cores import usable_cores

_INTERVAL_S = 1.0
"""Interval of the samples of processor time, in seconds."""

_PAUSES = 200
"""After a sample of memory, in which the kernel walks the page tables, the next one follows after this many times the
time that it took: 0.5 % of a core."""


class _Process(NamedTuple):
    """A line of /proc/PID/stat."""

    parent: int
    started: int  # in ticks since the machine's start: with the id it names a process
    ticks: int  # in user and in system mode


class ResourceRecord:
    """Samples this process and its descendants, including Ray's, in a thread.

    Memory is the proportional set size, in which a shared page counts once. A process that a descendant started counts
    to its end, also if its parent ends first; what a process uses between the last sample and its end is not seen.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: list[TimelineStep] = []
        self._cores, self._memory = TimelineLine(), TimelineLine()
        self._own = {os.getpid()}
        self._foreign: set[int] = set()
        self._ticks: dict[tuple[int, int], int] = {}
        self._last = self._memory_due = 0.0
        self._lock = threading.Lock()
        self._sample(first=True)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Marks the start and the end of a step."""
        start = self._now()
        try:
            yield
        finally:
            with self._lock:
                self._steps.append(TimelineStep(title=title, start=round(start, 2), end=round(self._now(), 2)))

    def timeline(self) -> Timeline:
        """The record until now."""
        with self._lock:
            return Timeline(
                steps=list(self._steps),
                seconds=round(self._now(), 1),
                cores_available=usable_cores(),
                cores=self._cores.model_copy(deep=True),
                memory_gib=self._memory.model_copy(deep=True),
            )

    def stop(self) -> Timeline:
        """Take a last sample and end the thread."""
        self._done.set()
        self._thread.join()
        self.sample()
        return self.timeline()

    def sample(self) -> None:
        """Take a sample now, of memory too."""
        with self._lock:
            self._memory_due = 0.0
            self._sample()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            with self._lock:
                self._sample()

    def _sample(self, first: bool = False) -> None:
        now, before = self._now(), time.thread_time()
        processes = self._processes()
        kinds = {pid: kind for pid in processes if (kind := _kind(pid)) is not None}
        used = dict.fromkeys(KINDS, 0)
        for pid, process in processes.items():
            if pid in kinds:
                used[kinds[pid]] += process.ticks - self._ticks.get((pid, process.started), 0)
        self._ticks = {(pid, process.started): process.ticks for pid, process in processes.items()}
        seconds = (now - self._last) * os.sysconf("SC_CLK_TCK")
        sizes = None
        if now >= self._memory_due:
            sizes = dict.fromkeys(KINDS, 0)
            for pid, kind in kinds.items():
                sizes[kind] += _memory(pid)
            self._memory_due = now + _PAUSES * (time.thread_time() - before)
        if not first:  # the first sample finds what this process used before
            self._cores.add(now, {kind: max(0, ticks) / seconds for kind, ticks in used.items()})
        if sizes is not None:
            self._memory.add(now, {kind: size / 2**30 for kind, size in sizes.items()})
        self._last = now

    def _processes(self) -> dict[int, _Process]:
        """This process and its descendants. What was none of them when it was first seen is not looked at again."""
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._own &= listed
        self._foreign &= listed
        new = {pid: process for pid in listed - self._own - self._foreign if (process := _stat(pid)) is not None}
        for pid in new:
            line = [pid]
            while line[-1] in new:
                line.append(new[line[-1]].parent)
            (self._own if line[-1] in self._own else self._foreign).update(line[:-1])
        return {pid: process for pid in self._own if (process := new.get(pid) or _stat(pid)) is not None}


def _stat(pid: int) -> _Process | None:
    with suppress(OSError):
        # The second field is the command in parentheses, which may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _Process(int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12]))
    return None


def _memory(pid: int) -> int:
    """Proportional set size in bytes; 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _kind(pid: int) -> ResourceKind | None:
    """Kind of a process by its command line; None if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    program = words[0].rpartition("/")[2]
    if program.startswith("ray::"):
        return "Ray" if program.endswith("Agent") else "workers"
    if program == "java":
        return "Java"
    if any("multiprocessing.spawn" in word for word in words[1:]):
        return "workers"
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    if script.endswith("/ray/_private/workers/default_worker.py"):
        return "workers"
    daemon = program in ("gcs_server", "raylet") or program.startswith("ray-") or "/ray/" in script
    return "Ray" if daemon else "driver"
