"""CPU time of a served application by what it is spent on: replicas, front, the rest of Ray, the load generator."""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(kind: Callable[[str], str | None]) -> dict[str, float]:
    """CPU seconds so far of the living descendants of this process, summed by ``kind`` of their command line.

    Args:
        kind: name under which a process is counted; None for a process that is not counted.
    """
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        seconds[pid] = (int(fields[11]) + int(fields[12])) * _TICK_S
    found: defaultdict[str, float] = defaultdict(float)
    for pid in _descendants(parents, os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if (name := kind(command)) is not None:
            found[name] += seconds[pid]
    return dict(found)


def _descendants(parents: dict[int, int], root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


class Spent:
    """Collects what is spent inside several ``with`` blocks, per answered pair.

    Args:
        kind: as in :func:`cpu_seconds`.
    """

    def __init__(self, kind: Callable[[str], str | None]) -> None:
        self._kind = kind
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._pairs = 0.0

    @contextmanager
    def measured(self) -> Iterator[list[float]]:
        """Count what is spent in the block, which appends its number of pairs to the list. Commands that it runs and
        that end in it count as the load generator."""
        pairs: list[float] = []
        before, children = cpu_seconds(self._kind), _ended_children()
        yield pairs
        self._pairs += sum(pairs)
        self._seconds["load generator"] += _ended_children() - children
        for name, seconds in cpu_seconds(self._kind).items():
            self._seconds[name] += seconds - before.get(name, 0.0)

    def ms_per_pair(self) -> dict[str, float]:
        """CPU milliseconds per pair, by name."""
        return {name: round(1e3 * seconds / self._pairs, 3) for name, seconds in sorted(self._seconds.items())}


def _ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
