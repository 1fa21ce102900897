"""The leaderboard's pages: an index and a page per data set. Their one script sorts tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from idc.evaluation.record import Spread
from idc.report import page as pg
from idc.report.leaderboard.boards import PAPER, RUN, Board, BoardRow, DataSetPage
from idc.report.leaderboard.published_rows import ALL, load_published
from idc.report.leaderboard.side_by_side import NOTHING_MEASURED, MeasuredSystems, side_by_side

SUMS = "SHA256SUMS"


def data_set_page(page: DataSetPage, hashes: dict[str, str], measured: MeasuredSystems = NOTHING_MEASURED) -> pg.Page:
    """A data set's page; ``hashes``: of the published files by their names."""
    groups: dict[str, list[Board]] = {}
    for board in page.boards:
        title = ", ".join(filter(None, [board.split, board.variant])) + f" · protocol {board.protocol}"
        groups.setdefault(title, []).append(board)
    settings = {row.evaluations[0].setting for row in _rows(page) if row.evaluations}
    ours = f"{_count(len(page.scored), 'run')} of ours in {_count(len(settings), 'setting')}"
    published = load_published()
    papers = dict.fromkeys(table.paper for table in published.tables if table.data_set == page.key)
    about = (
        "Numbers of different splits, subsets or protocols are in different tables. Runs show the mean and the "
        "standard deviation over their seeds; published rows are what the named table prints, on its own terms: other "
        "training data, selection and decoding. Captioning scores are times 100. In small print: the 95 % interval "
        "over the pairs, for the first seed (scores: bootstrap; shares: Wilson). A heading sorts its table. "
    )
    return pg.Page(f"Leaderboard: {page.title}", f"{ours}, {_count(_num_published(page), 'published row')}", [
        pg.Section("About", [
            pg.Bullets([pg.html_join(["The tables as ", pg.link(f"{page.key}.md", "Markdown")]), *page.notes],
                       note=about + _official(page))
        ]),
        *(pg.Section(title, [pg.BlockGroup(_board(board, measured), title=_subset(board), folded=number > 0)
                          for number, board in enumerate(boards)]) for title, boards in groups.items()),
        pg.Section("Runs", list(_runs(page, hashes))),
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


def _subset(board: Board) -> str:
    return "All pairs" if board.subset == ALL else board.subset[:1].upper() + board.subset[1:]


def leaderboard_markdown(page: DataSetPage) -> str:
    """All tables as GitHub's Markdown."""
    lines = [f"# Leaderboard: {page.title}"]
    for board in page.boards:
        lines += ["", f"## {board.title}", "", _table(board, anchors=False).markdown()]
        lines += ["", *(f"- {note}" for note in board.footnotes)] if board.footnotes else []
    return "\n".join([*lines, ""])


def _board(board: Board, measured: MeasuredSystems) -> list[pg.PageBlock]:
    """A table, its footnotes, and what belongs below it."""
    return [_table(board), *(pg.Text(note=note) for note in board.footnotes), *side_by_side(board, measured)]


def _table(board: Board, anchors: bool = True) -> pg.Table:
    rows = []
    for row in board.rows:
        anchor = [pg.link(f"#{_anchor(row)}", "run"), "; "] if anchors and row.evaluations else []
        mark = [pg.styled("mark", row.mark), "; "] if row.mark else []
        rows.append([
            pg.Cell(row.kind, row.kind), pg.Cell(row.name, row.name, wide=True), *_numbers(board, row),
            pg.Cell(pg.html_join([*mark, *anchor, row.source]), row.mark or row.source, wide=True),
        ])  # fmt: skip
    head = ["kind", "method", *board.metrics, "seeds", "pairs", "note"]
    ours = [number for number, row in enumerate(board.rows) if row.kind == RUN]
    return pg.Table(head, rows, bold=ours, ascending=("kind", "method", "note", "MAE"), label=board.title)


def _numbers(board: Board, row: BoardRow) -> Iterator[pg.Cell]:
    """The metrics, seeds and pairs."""
    for metric in board.metrics:
        value, digits = row.values.get(metric), _decimals(board, metric)
        each = ", ".join(f"{single:.{digits}f}" for single in value.values) if value is not None else ""
        interval = row.intervals.get(metric)
        between = "" if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
        yield pg.Cell(_printed(value, digits), "" if value is None else value.mean, each, between)
    for count in (len(row.seeds), row.pairs):
        yield pg.Cell(str(count or ""), count or "")


def _anchor(row: BoardRow) -> str:
    return f"run-{row.evaluations[0].setting}"


def _runs(page: DataSetPage, hashes: dict[str, str]) -> Iterator[pg.PageBlock]:
    """Origin and published files of each setting."""
    rows: dict[str, BoardRow] = {}
    for row in _rows(page):
        if row.evaluations:
            rows.setdefault(_anchor(row), row)
    for anchor, row in rows.items():
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
            names = [name for name in hashes if name.startswith(folder)]
            linked = [pg.html_join([pg.link(name, Path(name).name), f" {hashes[name][:16]}…"]) for name in names]
            seed = "" if run.seed is None else f"seed {run.seed}: "
            published.append(pg.html_join([seed, pg.html_join(linked, ", ")]))
        about = "Predictions with their references and scores, and the evaluation (SHA-256; all of them in "
        note = pg.html_join([about, pg.link(SUMS, SUMS), "):"])
        yield pg.BlockGroup([pg.Facts(facts), pg.Bullets(published, note=note)], title=row.name, anchor=anchor)


def _decimals(board: Board, metric: str) -> int:
    """Decimals of a column: as many as its published rows print; else one, or four for fractions."""
    printed = [
        len(f"{row.values[metric].mean!r}".partition(".")[2])
        for row in board.rows
        if row.kind == PAPER and metric in row.values
    ]
    return max(printed) if printed else (4 if board.protocol == "answers" else 1)


def _printed(value: Spread | None, decimals: int) -> str:
    """The mean, with its deviation if there is more than one value."""
    if value is None:
        return "–"
    text = f"{value.mean:.{decimals}f}"
    return f"{text} ± {value.std:.{decimals}f}" if len(value.values) > 1 else text
