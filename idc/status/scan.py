"""All work below some folders."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from idc.status import readers
from idc.status.work import Work

_DEPTH = 5


def find_work(folders: Iterable[str], times: float) -> list[Work]:
    """Trainings, data sets and sweeps in these folders and below them, what runs first. Only reads.

    Raises:
        ValueError: a folder does not exist, or is on object storage.
    """
    now = time.time()
    entries = []
    for folder in folders:
        if "://" in folder:
            raise ValueError(f"{folder}: the state of work is read from local or mounted folders, not from a URI")
        root = Path(folder)
        if not root.is_dir():
            raise ValueError(f"{folder}: there is no such folder")
        entries += list(_below(root, root, times, now, _DEPTH))
    order = ("running", "stalled", "died", "failed", "stopped", "unfinished", "done")
    return sorted(entries, key=lambda work: (order.index(work.state), work.kind, work.name))


def _below(folder: Path, root: Path, times: float, now: float, depth: int) -> Iterator[Work]:
    name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
    if readers.is_training(folder):
        yield readers.training(folder, name, times, now)
        return
    if readers.is_data(folder):
        yield readers.data(folder, name, times, now)
        return
    if readers.is_sweep(folder):
        yield readers.sweep_work(folder, name, now)
        return
    if depth:
        with os.scandir(folder) as entries:
            inner = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        for path in inner:
            yield from _below(Path(path), root, times, now, depth - 1)
