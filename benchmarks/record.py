"""The record of the benchmarks: one JSON file per figure with all its runs, newest last.

A figure is a table of BENCHMARKS.md: a part of ``jobs/benchmark.py``, at one size (``variant``). The tracked record is
:data:`RECORDS`; every run of the job also writes the same files to its ``out``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from benchmarks.measurement import Environment, MeasuredRow, Measurement
from idc.atomic import write_text
from idc.provenance import UNKNOWN_COMMIT

RECORDS = Path(__file__).resolve().parent / "records"
"""The tracked record, which BENCHMARKS.md is generated from."""
BUSY_SHARE = 0.15
"""Share of the cores that other work may use when a run is recorded."""


class Run(Environment):
    """One run of a figure: where and how it was measured, and its rows."""

    rows: list[MeasuredRow]
    busy_cores: float | None = None
    """Cores that other work used just before."""
    notes: tuple[str, ...] = ()
    """Warnings for a reader of this run, e.g. that the machine was busy."""

    @classmethod
    def of(cls, measured: Sequence[Measurement], busy_cores: float | None = None, notes: Sequence[str] = ()) -> Run:
        """The run that these measurements of one part are; the environment is that of the first."""
        where = measured[0].environment.model_dump()
        return cls(
            **where, rows=[measurement.row() for measurement in measured], busy_cores=busy_cores, notes=tuple(notes)
        )

    def row(self, title: str) -> MeasuredRow | None:
        """The row of this title."""
        return next((row for row in self.rows if row.title == title), None)

    def same_machine(self, other: Run) -> bool:
        return self.machine.kind() == other.machine.kind()


class Figure(BaseModel):
    """A figure and its runs, newest last."""

    model_config = ConfigDict(extra="forbid")

    figure: str
    runs: list[Run] = []

    @classmethod
    def load(cls, folder: Path | str, name: str) -> Figure:
        """The figure in ``folder``, without runs if there is none.

        Raises:
            ValueError: the file is not a figure's record.
        """
        path = Path(folder) / f"{name}.json"
        if not path.exists():
            return cls(figure=name)
        try:
            figure = cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not the record of a benchmark; move it away: {error}") from None
        if figure.figure != name:
            raise ValueError(f"{path} holds the figure {figure.figure!r}; rename it")
        return figure

    def with_run(self, run: Run) -> Figure:
        return Figure(figure=self.figure, runs=[*self.runs, run])

    def save(self, folder: Path | str) -> None:
        """Write the file: numbers with 6 digits, a list of numbers in one line."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(_rounded(self.model_dump(mode="json", exclude_defaults=True)), indent=1, ensure_ascii=False)
        text = re.sub(r"\[\n([-+\d.eE,\s]+)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
        write_text(Path(folder) / f"{self.figure}.json", text + "\n")

    def newest(self, like: Run | None = None) -> Run | None:
        """The newest run; with ``like``, the newest on a machine of its kind, else the newest of all."""
        runs = [run for run in self.runs if like is None or run.same_machine(like)] or self.runs
        return runs[-1] if runs else None

    def before(self, run: Run) -> Run | None:
        """The newest earlier run of another commit on a machine of the same kind: what ``run`` is compared with."""
        earlier = self.runs[: self.runs.index(run)]
        return next(
            (other for other in reversed(earlier) if other.commit != run.commit and other.same_machine(run)), None
        )


def recorded_figures(folder: Path | str = RECORDS) -> dict[str, Figure]:
    """All figures of a folder that have runs, by name."""
    loaded = [Figure.load(folder, path.stem) for path in sorted(Path(folder).glob("*.json"))]
    return {figure.figure: figure for figure in loaded if figure.runs}


def objections(commit: str, busy_cores: float, cores: int) -> list[str]:
    """Why a run may not be recorded.

    Args:
        commit: with a "+" if files differ from it.
        busy_cores: cores that other work uses.
    """
    reasons = []
    if commit.endswith("+"):
        reasons.append(f"files differ from commit {commit[:-1]}")
    if commit == UNKNOWN_COMMIT:
        reasons.append("the commit is unknown, there is no git checkout")
    if busy_cores > BUSY_SHARE * cores:
        reasons.append(f"other work uses {busy_cores:.1f} of {cores} cores")
    return reasons


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
