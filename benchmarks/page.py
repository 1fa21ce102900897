"""BENCHMARKS.md from the newest record of each figure and a template with the prose.

    python -m benchmarks.page        (or: make benchmarks-page)

``{{ table("serving") }}`` in the template is the newest run of that figure. Its machine is named if it is not that of
the newest figure of all, the page's machine. If the figure was measured before, at another commit on a machine of the
same kind, a column has those numbers. Figures that the template does not name follow at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.fault_table import fault_table, rows_elsewhere
from benchmarks.measurement import HEADER, Environment, Row, markdown
from benchmarks.on_paper import models_table, presets_table
from benchmarks.record import RECORDS, Figure, Run, figures

PAGE = Path(__file__).resolve().parent.parent / "BENCHMARKS.md"
TEMPLATE = Path(__file__).resolve().parent / "BENCHMARKS.md.jinja"


def render(template: str, found: Mapping[str, Figure]) -> str:
    """The page.

    Args:
        template: Jinja2. ``table(NAME)`` is a figure, ``breakdown(NAME, KEY)`` what its newest run has as ``KEY`` in a
            row's ``more``, ``faults`` the table of faults, ``machine`` the page's machine, ``presets`` and ``models``
            the tables of :mod:`benchmarks.on_paper`, ``others`` the figures that are named nowhere else (use it last).
        found: the figures by name.
    """
    from jinja2 import Environment as Jinja
    from jinja2 import StrictUndefined

    newest = {name: figure.runs[-1] for name, figure in found.items()}
    home = max(newest.values(), key=lambda run: run.date, default=None)
    shown: set[str] = set()

    def table(name: str) -> str:
        shown.add(name)
        if name not in found:
            return "Not measured yet."
        return figure_text(found[name], newest[name], home or newest[name])

    def breakdown(name: str, key: str) -> str:
        rows = newest[name].rows if name in newest else []
        parts = next((row.more[key] for row in rows if key in row.more), None)
        return "Not measured yet." if parts is None else parts_text(parts)

    def faults() -> str:
        shown.add("faults")
        own = newest.get("faults")
        place = "" if own is None else f"{_where(own, home or own)}\n\n"
        return place + fault_table(own, rows_elsewhere())

    def others() -> str:
        rest = [name for name in found if name not in shown]
        return "\n\n".join(f"### {name}\n\n{table(name)}" for name in rest)

    jinja = Jinja(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    machine = "none yet" if home is None else machine_text(home)
    return (
        jinja.from_string(template)
        .render(
            table=table,
            breakdown=breakdown,
            faults=faults,
            others=others,
            machine=machine,
            presets=presets_table,
            models=models_table,
        )
        .rstrip()
        + "\n"
    )


def figure_text(figure: Figure, run: Run, home: Run) -> str:
    """A figure: where it was measured, and its rows with those of the run before."""
    before = figure.before(run)
    earlier = {} if before is None else {row.title: row for row in before.rows}
    header, rows = list(HEADER), [row.cells() for row in run.rows]
    if before is not None and any(row.title in earlier for row in run.rows):
        header.append(f"before, {before.commit}")
        for row, cells in zip(run.rows, rows, strict=True):
            cells.append(_before(earlier.get(row.title)))
    if not any(cells[1] for cells in rows):
        header, rows = [header[0], *header[2:]], [[cells[0], *cells[2:]] for cells in rows]
    text = f"{_where(run, home)}\n\n{markdown(header, rows)}"
    further = [f"- {row.title.split(' (')[0]}: {', '.join(row.further())}." for row in run.rows if row.further()]
    return "\n\n".join([text, "\n".join(further)] if further else [text])


def parts_text(parts: Mapping[str, Mapping[str, float]]) -> str:
    """What several quantities are made up of, as a Markdown table: a column per quantity, a row per part, their sums.

    Args:
        parts: quantity -> part -> number.
    """
    names = list(dict.fromkeys(name for found in parts.values() for name in found))
    rows = [[name, *(f"{found[name]:.2f}" if name in found else "" for found in parts.values())] for name in names]
    return markdown(["", *parts], [*rows, ["**all**", *(f"**{sum(found.values()):.2f}**" for found in parts.values())]])


def _before(row: Row | None) -> str:
    if row is None:
        return ""
    _, ratio, _, medians = row.cells()
    return "; ".join(filter(None, [ratio, medians])).replace("**", "")


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
    PAGE.write_text(render(TEMPLATE.read_text(encoding="utf-8"), figures(RECORDS)), encoding="utf-8")


if __name__ == "__main__":
    write()
    print(f"wrote {PAGE.name}")
