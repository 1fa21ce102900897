"""The leaderboard's tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from idc.evaluation.record import Spread
from idc.report.leaderboard.boards import PAPER, Board, DataSetPage


def leaderboard_markdown(page: DataSetPage) -> str:
    """All tables as GitHub's Markdown."""
    lines = [f"# Leaderboard: {page.title}"]
    for board in page.boards:
        lines += ["", f"## {board.title}", ""]
        for number, row in enumerate(_printed(board)):
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
            if number == 0:
                lines.append("|---" * len(row) + "|")
        lines += ["", *(f"- {note}" for note in board.footnotes)] if board.footnotes else []
    return "\n".join([*lines, ""])


def as_csv(page: DataSetPage) -> str:
    """All tables as one CSV; mean and standard deviation of each metric with all digits, texts as :func:`csv_cell`."""
    metrics = list(dict.fromkeys(metric for board in page.boards for metric in board.metrics))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [column for metric in metrics for column in (metric, f"{metric} std")]
    board_columns = ("data_set", "split", "variant", "subset", "protocol")
    origin = ("seeds", "pairs", "mark", "source", "selection", "command", "commit", "evaluations")
    writer.writerow([*board_columns, "kind", "method", *columns, *origin])
    for board in page.boards:
        for row in board.rows:
            numbers: list[float | str] = []
            for metric in metrics:
                value = row.values.get(metric)
                numbers += ["", ""] if value is None else [value.mean, value.std if len(value.values) > 1 else ""]
            seeds = " ".join("" if seed is None else str(seed) for seed in row.seeds).strip()
            of = " ".join(run.evaluation.fingerprint for run in row.evaluations)
            where = (page.key, board.split, board.variant, board.subset, board.protocol)
            provenance = (seeds, row.pairs or "", row.mark, row.source, row.selection, row.command, row.commit, of)
            writer.writerow(map(csv_cell, [*where, row.kind, row.name, *numbers, *provenance]))
    return out.getvalue()


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: object) -> object:
    """A cell that a spreadsheet shows and does not run: texts that begin as a formula get an apostrophe in front.

    >>> csv_cell("=1+1"), csv_cell(-1.5)
    ("'=1+1", -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _printed(board: Board) -> Iterator[list[str]]:
    """The head and the rows, each as cells of text."""
    decimals = {metric: decimals_of(board, metric) for metric in board.metrics}
    yield ["kind", "method", *board.metrics, "seeds", "pairs", "note"]
    for row in board.rows:
        numbers = [printed_number(row.values.get(metric), decimals[metric]) for metric in board.metrics]
        seeds, pairs = str(len(row.seeds) or ""), str(row.pairs or "")
        yield [row.kind, row.name, *numbers, seeds, pairs, "; ".join(filter(None, [row.mark, row.source]))]


def decimals_of(board: Board, metric: str) -> int:
    """Decimals of a column: as many as its published rows print; else one, or four for fractions."""
    printed = [
        len(f"{row.values[metric].mean!r}".partition(".")[2])
        for row in board.rows
        if row.kind == PAPER and metric in row.values
    ]
    return max(printed) if printed else (4 if board.protocol == "answers" else 1)


def printed_number(value: Spread | None, decimals: int) -> str:
    """The mean, with its deviation if there is more than one value."""
    if value is None:
        return "–"
    text = f"{value.mean:.{decimals}f}"
    return f"{text} ± {value.std:.{decimals}f}" if len(value.values) > 1 else text
