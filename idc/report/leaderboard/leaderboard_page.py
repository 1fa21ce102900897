"""The leaderboard's pages: an index and a page per data set. Their one script sorts tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from idc.report.leaderboard.boards import PAPER, Board, BoardRow, DataSetPage
from idc.report.leaderboard.exports import decimals_of, printed_number
from idc.report.leaderboard.published_rows import ALL, load_published
from idc.report.leaderboard.side_by_side import NOTHING_MEASURED, MeasuredSystems, side_by_side
from idc.report.page import render_template

SUMS = "SHA256SUMS"

_EXPORTS = {"md": "Markdown", "csv": "CSV", "tex": "LaTeX"}


def render_data_set(page: DataSetPage, hashes: dict[str, str], measured: MeasuredSystems = NOTHING_MEASURED) -> str:
    """A data set's page; ``hashes``: of the published files by their names."""
    groups: dict[tuple[str, str, str], list[Board]] = {}
    for board in page.boards:
        groups.setdefault((board.split, board.variant, board.protocol), []).append(board)
    settings = {row.evaluations[0].setting for row in _rows(page) if row.evaluations}
    ours = f"{_count(len(page.scored), 'run')} of ours in {_count(len(settings), 'setting')}"
    published = load_published()
    return render_template(
        "leaderboard.html",
        title=f"Leaderboard: {page.title}",
        subtitle=f"{ours}, {_count(_num_published(page), 'published row')}",
        key=page.key,
        official=_official(page),
        notes=page.notes,
        exports=_EXPORTS,
        groups=[
            (
                ", ".join(filter(None, [split, variant])) + f" · protocol {protocol}",
                [_board(board, measured) for board in boards],
            )
            for (split, variant, protocol), boards in groups.items()
        ],
        runs=_runs(page, hashes),
        sums=SUMS,
        papers=[
            published.papers[name]
            for name in dict.fromkeys(table.paper for table in published.tables if table.data_set == page.key)
        ],
    )


def render_index(pages: Sequence[DataSetPage]) -> str:
    """The page that lists the data sets."""
    data_sets = [(page.key, page.title, len(page.scored), _num_published(page)) for page in pages]
    return render_template(
        "leaderboard_index.html", title="Leaderboard", subtitle="One page per data set", data_sets=data_sets
    )


def _rows(page: DataSetPage) -> Iterator[BoardRow]:
    return (row for board in page.boards for row in board.rows)


def _num_published(page: DataSetPage) -> int:
    return sum(row.kind == PAPER for row in _rows(page))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _official(page: DataSetPage) -> str:
    if page.official is None:
        return ""
    if not page.official.test:
        return f"Official test split: {page.official.source}."
    sizes = ", ".join(f"{name} {size:,}" for name, size in page.official.test.items())
    return f"The official test split: {sizes} ({page.official.source})."


def _board(board: Board, measured: MeasuredSystems) -> dict[str, Any]:
    """A table without the columns that no row fills: its columns with the order of their first sorting, its rows with
    their numbers and anchor, and what belongs below it."""
    columns = [(metric, "ascending" if metric == "MAE" else "descending") for metric in board.metrics]
    columns += [("seeds", "descending"), ("pairs", "descending")]
    cells = [list(_numbers(board, row)) for row in board.rows]
    kept = [column for column in range(len(columns)) if any(row[column][2] for row in cells)]
    return {
        "subset": "All pairs" if board.subset == ALL else board.subset[:1].upper() + board.subset[1:],
        "title": board.title,
        "columns": [columns[column] for column in kept],
        "rows": [
            (row, [numbers[column] for column in kept], _anchor(row) if row.evaluations else "")
            for row, numbers in zip(board.rows, cells, strict=True)
        ],
        "footnotes": board.footnotes,
        "side": side_by_side(board, measured),
    }


def _numbers(board: Board, row: BoardRow) -> Iterator[tuple[float | str, str, str, str]]:
    """(Mean, the single values, as printed, interval) of each column: the metrics, seeds and pairs."""
    for metric in board.metrics:
        value, digits = row.values.get(metric), decimals_of(board, metric)
        each = ", ".join(f"{single:.{digits}f}" for single in value.values) if value is not None else ""
        interval = row.intervals.get(metric)
        between = "" if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
        yield "" if value is None else value.mean, each, printed_number(value, digits), between
    for count in (len(row.seeds), row.pairs):
        yield count or "", "", str(count or ""), ""


def _anchor(row: BoardRow) -> str:
    return f"run-{row.evaluations[0].setting}"


def _runs(page: DataSetPage, hashes: dict[str, str]) -> list[dict[str, Any]]:
    """Origin and published files of each setting."""
    by_anchor: dict[str, dict[str, Any]] = {}
    for row in _rows(page):
        if not row.evaluations or _anchor(row) in by_anchor:
            continue
        first = row.evaluations[0]
        facts = {
            "settings": row.source,
            "selected by": row.selection,
            "evaluation": row.command or "not recorded",
            "training": "; ".join(filter(None, (run.training for run in row.evaluations))) or "not recorded",
            "commit": row.commit,
            "pairs": f"{first.evaluation.protocol.get('pairs', '')} ({first.data.fingerprint})",
        }
        published = []
        for run in row.evaluations:
            folder = f"runs/{page.key}/{run.evaluation.fingerprint}/"
            files = [(name, Path(name).name, hashes[name][:16]) for name in hashes if name.startswith(folder)]
            published.append(("" if run.seed is None else f"seed {run.seed}: ", files))
        by_anchor[_anchor(row)] = {"anchor": _anchor(row), "name": row.name, "facts": facts, "files": published}
    return list(by_anchor.values())
