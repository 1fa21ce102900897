"""The leaderboard's pages: an index, and a page per data set as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from idc.evaluation.published_rows import ALL, load_published
from idc.evaluation.record import Spread
from idc.report import page as pg
from idc.report.leaderboard.boards import PAPER, RUN, Board, BoardRow, DataSetPage
from idc.util.atomic import write_text


def write_leaderboard(out: Path, pages: Sequence[DataSetPage]) -> Path:
    """Write ``index.html``, and ``KEY.html`` and ``KEY.md`` of every data set. Returns the index."""
    for page in pages:
        write_text(out / f"{page.key}.html", data_set_page(page).html())
        write_text(out / f"{page.key}.md", leaderboard_markdown(page))
    return write_text(out / "index.html", index_page(pages).html())


def data_set_page(page: DataSetPage) -> pg.Page:
    """A data set's page."""
    groups: dict[str, list[Board]] = {}
    for board in page.boards:
        title = ", ".join(filter(None, [board.split, board.variant])) + f" · protocol {board.protocol}"
        groups.setdefault(title, []).append(board)
    origins = {row.setting: (row.name, row.origin) for row in _rows(page) if row.setting}
    published = load_published()
    papers = dict.fromkeys(table.paper for table in published.tables if table.data_set == page.key)
    about = (
        "Numbers of different splits, subsets or protocols are in different tables. Runs show the mean and the "
        "standard deviation over their seeds; published rows are what the named table prints, on its own terms: other "
        "training data, selection and decoding. Captioning scores are times 100. In small print: the 95 % interval "
        "over the pairs, for the first seed (scores: bootstrap; shares: Wilson). "
    )
    ours = f"{_count(len(page.scored), 'run')} of ours in {_count(len(origins), 'setting')}"
    return pg.Page(f"Leaderboard: {page.title}", f"{ours}, {_count(_num_published(page), 'published row')}", [
        pg.Section("About", [
            pg.Bullets([pg.html_join(["The tables as ", pg.link(f"{page.key}.md", "Markdown")]), *page.notes],
                       note=about + _official(page))
        ]),
        *(pg.Section(title, [
            pg.BlockGroup([_table(board), *(pg.Text(note=note) for note in board.footnotes)],
                          title="All pairs" if board.subset == ALL else board.subset.capitalize(), folded=number > 0)
            for number, board in enumerate(boards)
        ]) for title, boards in groups.items()),
        pg.Section("Runs", [pg.Facts(origin, title=name) for name, origin in origins.values()]),
        pg.Section("Papers", [pg.Bullets([
            f"{paper.method} paper: {paper.authors}, “{paper.title}”"
            for paper in (published.papers[name] for name in papers)
        ])]),
    ], pg.SCORES_NOTE)  # fmt: skip


def index_page(pages: Sequence[DataSetPage]) -> pg.Page:
    """The page that lists the data sets."""
    rows = [
        [pg.Cell(pg.link(f"{page.key}.html", page.title), wide=True), str(len(page.scored)), str(_num_published(page))]
        for page in pages
    ]
    table = pg.Table(["data set", "our runs", "published rows"], rows)
    return pg.Page("Leaderboard", "One page per data set", [pg.Section("Data sets", [table])])


def leaderboard_markdown(page: DataSetPage) -> str:
    """All tables as GitHub's Markdown."""
    lines = [f"# Leaderboard: {page.title}"]
    for board in page.boards:
        lines += ["", f"## {board.title}", "", _table(board).markdown()]
        lines += ["", *(f"- {note}" for note in board.footnotes)] if board.footnotes else []
    return "\n".join([*lines, ""])


def _rows(page: DataSetPage) -> Iterator[BoardRow]:
    return (row for board in page.boards for row in board.rows)


def _num_published(page: DataSetPage) -> int:
    return sum(row.kind == PAPER for row in _rows(page))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _official(page: DataSetPage) -> str:
    if page.official is None:
        return ""
    sizes = ", ".join(f"{name} {size:,}" for name, size in page.official.test.items())
    return f"The official test split: {sizes + ' ' if sizes else ''}({page.official.source})."


def _table(board: Board) -> pg.Table:
    rows = []
    for row in board.rows:
        note = pg.html_join([*([pg.styled("mark", row.mark), "; "] if row.mark else []), row.source])
        counts = [str(count or "") for count in (len(row.seeds), row.pairs)]
        numbers = [_number(row, metric, _decimals(board, metric)) for metric in board.metrics]
        rows.append([row.kind, pg.Cell(row.name, wide=True), *numbers, *counts, pg.Cell(note, wide=True)])
    ours = [number for number, row in enumerate(board.rows) if row.kind == RUN]
    return pg.Table(["kind", "method", *board.metrics, "seeds", "pairs", "note"], rows, bold=ours)


def _number(row: BoardRow, metric: str, digits: int) -> pg.Cell:
    value: Spread | None = row.values.get(metric)
    if value is None:
        return pg.Cell("–")
    several = f" ± {value.std:.{digits}f}" if len(value.values) > 1 else ""
    interval = row.intervals.get(metric)
    between = "" if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
    each = ", ".join(f"{single:.{digits}f}" for single in value.values)
    return pg.Cell(f"{value.mean:.{digits}f}{several}", each, between)


def _decimals(board: Board, metric: str) -> int:
    """Decimals of a column: as many as its published rows print; else one, or four for fractions."""
    printed = [
        len(f"{row.values[metric].mean!r}".partition(".")[2])
        for row in board.rows
        if row.kind == PAPER and metric in row.values
    ]
    return max(printed) if printed else (4 if board.protocol == "answers" else 1)
