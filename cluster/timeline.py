"""The memory and time line of a run of several steps: the samples, and figures for each step."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from idc.atomic import write_text

ResourceKind = Literal["driver", "workers", "Ray", "Java"]
"""driver: the command and the processes of its steps. workers: Ray's actors and tasks. Ray: its daemons and agents."""

KINDS: tuple[ResourceKind, ...] = get_args(ResourceKind)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TimelineStep(_Record):
    """A step; times are seconds since the start of the record."""

    title: str
    start: float
    end: float


class TimelineLine(_Record):
    """Samples of one quantity: their times, and their values by kind of process."""

    at: list[float] = []
    values: dict[ResourceKind, list[float]] = {kind: [] for kind in KINDS}

    def add(self, at: float, values: dict[ResourceKind, float]) -> None:
        self.at.append(round(at, 2))
        for kind, value in values.items():
            self.values[kind].append(round(value, 3))

    def total(self) -> list[float]:
        """The sums over the kinds."""
        return [sum(values) for values in zip(*self.values.values(), strict=True)]

    def within(self, step: TimelineStep) -> dict[str, list[float]]:
        """The samples of a step by kind, and their sums as "all"."""
        inside = [i for i, at in enumerate(self.at) if step.start < at <= step.end]
        return {name: [values[i] for i in inside] for name, values in [("all", self.total()), *self.values.items()]}


class StepFigures(_Record):
    """Resources that a step used.

    Attributes:
        seconds: from its start to its end.
        cores: mean number of cores in use, of all processes ("all") and by kind; empty if the step was too short.
        memory_mean_gib, memory_peak_gib: of all processes; None if the step was too short.
        memory_at_peak_gib: by kind, when the sum was highest.
    """

    seconds: float
    cores: dict[str, float]
    memory_mean_gib: float | None
    memory_peak_gib: float | None
    memory_at_peak_gib: dict[str, float]


class Timeline(_Record):
    """Samples of all processes of a run.

    Attributes:
        steps: in the order of their ends.
        seconds: length of the record.
        cores_available: cores that the processes may use.
        cores: cores in use between a sample and the one before.
        memory_gib: proportional set size.
    """

    steps: list[TimelineStep] = []
    seconds: float
    cores_available: int
    cores: TimelineLine
    memory_gib: TimelineLine

    def write(self, path: Path) -> None:
        write_text(path, self.model_dump_json() + "\n")

    def peak_gib(self) -> float:
        """The highest memory of all processes together."""
        return max(self.memory_gib.total(), default=0.0)

    def figures(self) -> dict[str, StepFigures]:
        """Title of a step -> what it used."""
        figures = {}
        for step in self.steps:
            cores, memory = self.cores.within(step), self.memory_gib.within(step)
            total = memory.pop("all")
            peak = max(range(len(total)), key=total.__getitem__, default=None)
            figures[step.title] = StepFigures(
                seconds=round(step.end - step.start, 1),
                cores={name: round(_mean(values), 2) for name, values in cores.items() if values},
                memory_mean_gib=round(_mean(total), 2) if total else None,
                memory_peak_gib=None if peak is None else round(total[peak], 2),
                memory_at_peak_gib={} if peak is None else {kind: round(v[peak], 2) for kind, v in memory.items()},
            )
        return figures


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
