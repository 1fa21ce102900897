"""BENCHMARKS.md from the newest record of each figure and a template with the prose.

    python -m benchmarks.page        (or: make benchmarks-page)

``{{ table("serving") }}`` in the template is the newest run of that figure: its rows with an aim, or the first. The
machine is named if it is not that of the newest figure of all. The records hold everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.measurement import HEADER, Environment, markdown_table
from benchmarks.record import RECORDS, Figure, Run, recorded_figures

PAGE = Path(__file__).resolve().parent.parent / "BENCHMARKS.md"
TEMPLATE = Path(__file__).resolve().parent / "BENCHMARKS.md.jinja"
FIRST_ROWS = 5
"""Rows of a figure without aims."""


def render_page(template: str, by_name: Mapping[str, Figure]) -> str:
    """The page.

    Args:
        template: Jinja2. ``table(NAME)`` is a figure, ``machine`` the page's machine.
        by_name: the figures by name.
    """
    from jinja2 import Environment as Jinja
    from jinja2 import StrictUndefined

    newest = {name: figure.runs[-1] for name, figure in by_name.items()}
    home = max(newest.values(), key=lambda run: run.date, default=None)

    def table(name: str) -> str:
        if name not in by_name:
            return "Not measured yet."
        return run_text(headline(newest[name]), home or newest[name])

    jinja = Jinja(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    machine = "none yet" if home is None else machine_text(home)
    return jinja.from_string(template).render(table=table, machine=machine).rstrip() + "\n"


def headline(run: Run) -> Run:
    """The run with the rows that have an aim, or with its first rows; without further results."""
    rows = [row for row in run.rows if row.aim not in ("", "none")] or run.rows[:FIRST_ROWS]
    return run.model_copy(update={"rows": [row.model_copy(update={"more": {}}) for row in rows]})


def run_text(run: Run, home: Run) -> str:
    """Where a run was measured, and its rows with their further results."""
    header, rows = list(HEADER), [row.cells() for row in run.rows]
    if not any(cells[1] for cells in rows):
        header, rows = [header[0], *header[2:]], [[cells[0], *cells[2:]] for cells in rows]
    text = f"{_where(run, home)}\n\n{markdown_table(header, rows)}"
    further = [f"- {row.title.split(' (')[0]}: {', '.join(row.further())}." for row in run.rows if row.further()]
    return "\n\n".join([text, "\n".join(further)] if further else [text])


def _where(run: Run, home: Run) -> str:
    marks = [] if run.same_machine(home) else [f"**Another machine: {run.machine.text()}.**"]
    if run.torch is not None and home.torch is not None and run.torch.version != home.torch.version:
        marks.append(f"**torch {run.torch.version}.**")
    if any(row.known is not None for row in run.rows):
        marks.append("Only medians and ranges were kept of this run.")
    # The command belongs to that commit. "$ " keeps it from being checked as one that today's program accepts.
    threads = f"{run.threads} thread{'s' * (run.threads > 1)}"
    where = f"{threads}, commit {run.commit}, {run.date[:10]}: `$ {run.command}`"
    return " ".join([*marks, where, *(f"Note: {note}." for note in run.notes)])


def machine_text(where: Environment) -> str:
    """The machine with its torch build: "..., torch 2.13.0 (AVX512), MKL 2024.2, oneDNN 3.12.0"."""
    text = where.machine.text()
    if (torch := where.torch) is not None:
        text += f"; torch {torch.version} ({torch.capability}), {torch.blas}, oneDNN {torch.onednn or 'none'}"
        text += f", CUDA {torch.cuda}" if torch.cuda and where.machine.gpu else ""
    return text


def write() -> None:
    """Write BENCHMARKS.md.

    Raises:
        ValueError: a record cannot be read.
    """
    PAGE.write_text(render_page(TEMPLATE.read_text(encoding="utf-8"), recorded_figures(RECORDS)), encoding="utf-8")


if __name__ == "__main__":
    write()
    print(f"wrote {PAGE.name}")
