"""Rows of the table of faults, from the figure ``faults`` and from files that other commands have written."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from benchmarks.measurement import markdown
from benchmarks.record import RECORDS, Run


class FaultRow(BaseModel):
    """A fault and its outcome."""

    model_config = ConfigDict(extra="forbid")

    fault: str
    where: str
    lost_steps: float | str | None
    """Steps that were done twice; words for what has no steps."""
    recovery_s: float | str | None
    """Seconds until the job was at work again; words where it never stopped."""
    final_difference: float | str | None
    """Largest absolute difference of any weight or validation metric from the undisturbed run; words for data."""
    note: str = ""
    command: str = ""


def rows_elsewhere(folder: Path = RECORDS / "faults") -> list[FaultRow]:
    """The rows that were measured by other commands: lists of rows (.json), or a row per line (.jsonl).

    Raises:
        ValueError: a file holds something else.
    """
    rows: list[FaultRow] = []
    for path in sorted(folder.glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        try:
            if path.suffix == ".jsonl":
                rows.extend(FaultRow.model_validate_json(line) for line in text.splitlines())
            else:
                rows.extend(TypeAdapter(list[FaultRow]).validate_json(text))
        except ValueError as error:
            raise ValueError(f"{path} holds no rows of faults: {error}") from None
    return rows


def fault_table(run: Run | None, elsewhere: list[FaultRow]) -> str:
    """All rows as one Markdown table; below it the commands of those measured elsewhere."""
    own = [] if run is None else [FaultRow.model_validate(row.more["row"]) for row in run.rows]
    header = ["fault", "where", "lost", "back after", "final difference", "note"]
    lines = []
    for row in [*own, *elsewhere]:
        lost = f"{row.lost_steps:g} steps" if isinstance(row.lost_steps, float | int) else row.lost_steps or ""
        back = f"{row.recovery_s:.1f} s" if isinstance(row.recovery_s, float | int) else row.recovery_s or ""
        final = row.final_difference
        difference = f"{final:.2g}" if isinstance(final, float | int) else final or ""
        lines.append([row.fault, row.where, lost, back, difference, row.note])
    commands = dict.fromkeys(row.command for row in elsewhere if row.command)
    further = "\n".join(f"- `$ {command}`" for command in commands)
    return markdown(header, lines) + (f"\n\nRows of other commands:\n\n{further}" if further else "")
