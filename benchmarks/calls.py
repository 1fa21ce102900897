"""A captioner that logs its calls and the CPU time of its process, and what the logs of several workers add up to."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import thread_seconds
from benchmarks.measurement import Stamp, Window
from idc.captioning.contract import Captioner, Description
from idc.captioning.loading import LoadCaptioner

_THREADS_EVERY_S = 1.0
"""Seconds between two looks at the CPU time of all threads, which takes milliseconds."""


class LoggedLoader:
    """Loads a captioner whose calls are logged, one file per process; picklable.

    Args:
        load: loads the captioner.
        folder: where the logs are written.
    """

    def __init__(self, load: LoadCaptioner, folder: Path) -> None:
        self.load, self.folder = load, folder

    def __call__(self) -> Captioner:
        self.folder.mkdir(parents=True, exist_ok=True)
        logged: Captioner = _Logged(self.load(), self.folder / f"{os.getpid()}.jsonl")  # type: ignore[assignment]
        return logged


class _Logged:
    """A captioner that appends a line to a file when it is loaded and after each call of ``describe``."""

    def __init__(self, captioner: Captioner, path: Path) -> None:
        self._captioner, self._path = captioner, path
        self._looked = 0.0
        self._log(rows=0, describing_s=0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._captioner, name)

    def describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], **options: Any
    ) -> list[Description]:
        began = time.thread_time()
        descriptions = self._captioner.describe(befores, afters, **options)
        self._log(rows=len(descriptions), describing_s=time.thread_time() - began)
        return descriptions

    def _log(self, **line: Any) -> None:
        line |= {"seconds": time.time(), "caller": threading.get_native_id()}
        if line["seconds"] - self._looked > _THREADS_EVERY_S:
            self._looked = line["seconds"]
            line["names"] = {thread.native_id: thread.name for thread in threading.enumerate()}
            line["threads_s"] = thread_seconds()
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


class Calls:
    """The logs of all workers of a run.

    Args:
        folder: that of :class:`LoggedLoader`.

    Attributes:
        loaded: when the last captioner was loaded, wall-clock seconds.
        stamps: one per call.
    """

    def __init__(self, folder: Path) -> None:
        self._lines = {
            int(path.stem): [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for path in sorted(folder.glob("*.jsonl"))
        }
        self.loaded = max(lines[0]["seconds"] for lines in self._lines.values())
        self.stamps = [
            Stamp(worker=worker, seconds=line["seconds"], rows=line["rows"])
            for worker, lines in self._lines.items()
            for line in lines
            if line["rows"]
        ]

    def cpu_seconds(self, window: Window) -> dict[str, float]:
        """CPU seconds of the workers per pair that they described inside the window, by what they did.

        A worker's part of the window is what lies between its first and its last look at its threads in it.
        """
        seconds_by_kind: defaultdict[str, float] = defaultdict(float)
        rows = 0
        for lines in self._lines.values():
            callers = {line["caller"] for line in lines}
            inside = [n for n, line in enumerate(lines) if window.begin <= line["seconds"] <= window.end]
            looks = [n for n in inside if "threads_s" in lines[n]]
            if len(looks) < 2:
                continue
            first, last = lines[looks[0]], lines[looks[-1]]
            between = lines[looks[0] + 1 : looks[-1] + 1]
            rows += sum(line["rows"] for line in between)
            describing = sum(line["describing_s"] for line in between)
            seconds_by_kind["describing"] += describing
            seconds_by_kind["reading, writing and what is between"] -= describing
            for thread, seconds in last["threads_s"].items():
                name = last["names"].get(thread, "")
                if int(thread) in callers:
                    kind = "reading, writing and what is between"
                else:
                    kind = "decoding" if name.startswith("decode") else "Ray's threads"
                seconds_by_kind[kind] += seconds - first["threads_s"].get(thread, 0.0)
        return {name: seconds / rows for name, seconds in seconds_by_kind.items()} if rows else {}
