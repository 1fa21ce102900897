"""Rows of two things measured by turns in one run, because a machine's speed changes within an hour; as Markdown."""

from __future__ import annotations

import contextlib
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idc.config import ConfigModel
from idc.evaluation.provenance import commit
from idc.training.config import missing_device
from idc.util.cores import usable_cores


@dataclass(frozen=True)
class Row:
    """Two things measured by turns: the ``n``-th of ``above`` is divided by the ``n``-th of ``below``. Without
    ``below``, a plain quantity.

    Attributes:
        title: the two things, as "A over B", or the quantity.
        unit: of the raw numbers.
        more: further results, printed below the table.
    """

    title: str
    unit: str
    above: Sequence[float]
    below: Sequence[float] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [above / below for above, below in zip(self.above, self.below, strict=True)] if self.below else []

    def cells(self) -> list[str]:
        above = statistics.median(self.above)
        if not self.below:
            return [self.title, "", f"{_spread(self.above, '.4g')} {self.unit}"]
        medians = f"{above:.4g} / {statistics.median(self.below):.4g} {self.unit}"
        return [self.title, _spread(self.ratios, ".2f"), medians]


def _spread(values: Sequence[float], form: str) -> str:
    median = f"**{statistics.median(values):{form}}**"
    if len(values) == 1:
        return f"{median} (n = 1)"
    return f"{median} ({min(values):{form}} to {max(values):{form}}, n = {len(values)})"


def markdown(rows: Iterable[Row], device: str = "cpu") -> str:
    """The table, with the machine above it. Each row goes to standard error as soon as it is measured."""
    measured = []
    for row in rows:
        measured.append(row)
        print("; ".join(filter(None, row.cells())), file=sys.stderr, flush=True)
    lines = [["what", "ratio: median (range)", "medians"], ["---"] * 3, *(row.cells() for row in measured)]
    notes = {row.title: ", ".join(f"{key} {value}" for key, value in row.more.items()) for row in measured if row.more}
    more = [f"- {title}: {note}" for title, note in notes.items()]
    return "\n".join([machine(device), "", markdown_table(lines), *(["", *more] if more else [])])


def markdown_table(lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells; the second line is ``---`` for each column."""
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def machine(device: str = "cpu") -> str:
    """This machine, build of torch and commit, in a line."""
    import torch

    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        processor = model[1] if model else processor
    gpu = f"{torch.cuda.get_device_name(device)}; " if device.startswith("cuda") else ""
    build = f"torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()})"
    return f"{gpu}{processor}, {usable_cores()} cores; {build}; {torch.get_num_threads()} threads; commit {commit()}"


class OnDevice(ConfigModel):
    """A benchmark on a device."""

    device: str = "cpu"
    """Torch device, e.g. cuda."""

    def preflight(self) -> Iterator[str]:
        yield from missing_device(self.device)


def by_turns(
    actions: dict[str, Callable[[], Any]], repeats: int, sync: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Seconds of each action, ``repeats`` times, in turns; every second round runs backwards.

    Args:
        sync: waits for the device; else the time includes what the action before queued on a GPU.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(repeats):
        for name in list(actions)[:: 1 if number % 2 == 0 else -1]:
            sync()
            began = time.perf_counter()
            actions[name]()
            sync()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def sync_of(device: str) -> Callable[[], None]:
    """What waits for a device."""
    import torch

    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None
