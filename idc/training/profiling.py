"""A profile of some steps of a run: where their time goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from idc import logs
from idc.atomic import replacing, write_text

FOLDER = "profile"
_WARM_UP = 2
_ROWS = 40


class StepProfiler:
    """Profiles optimizer steps with torch's profiler: call :meth:`before` each step and :meth:`after` it.

    For steps 3 to 12 it writes ``trace-00000003-00000012.json.gz`` (Chrome's trace format) and
    ``operators-00000003-00000012.txt``, the operators by their own time.

    Args:
        folder: receives the files.
        steps: number of steps to profile; 0 profiles none.
        start: steps done before; the first two after it are not profiled, unless too few follow.
        total: steps of the whole run.
        cuda: also profile the GPU.
        done: called with the folder when the files are written.
    """

    def __init__(
        self, folder: Path, steps: int, start: int, total: int, *, cuda: bool, done: Callable[[Path], None]
    ) -> None:
        steps = min(steps, total - start)
        self.first = start + 1 + min(_WARM_UP, total - start - steps)
        self.last = self.first + steps - 1
        self._folder, self._cuda, self._done = folder, cuda, done
        self._profiler: Any = None

    def before(self, step: int) -> None:
        """``step`` (from 1) begins."""
        if step != self.first or self.last < self.first:
            return
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._profiler = profile(activities=activities)
        self._profiler.start()

    def after(self, step: int) -> None:
        """``step`` has ended."""
        if self._profiler is None or step != self.last:
            return
        if self._cuda:
            torch.cuda.synchronize()
        self._profiler.stop()
        name = f"{self.first:08d}-{self.last:08d}"
        trace = self._folder / f"trace-{name}.json.gz"
        with replacing(trace, f".partial-{trace.name}") as partial:
            self._profiler.export_chrome_trace(str(partial))
        order = "self_cuda_time_total" if self._cuda else "self_cpu_time_total"
        table = self._profiler.key_averages().table(sort_by=order, row_limit=_ROWS)
        write_text(self._folder / f"operators-{name}.txt", table + "\n")
        self._profiler = None
        logs.event("profile", f"profile of steps {self.first} to {self.last}: {trace}", path=str(trace))
        self._done(self._folder)

    def close(self) -> None:
        """End a profile that the run's end interrupts, without files."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
