"""The leaderboard on disk: a page for each data set and an index, the same tables as Markdown, CSV and LaTeX, and the
predictions and references of every run with their hashes.

    index.html  <data set>.html .md .csv .tex  runs/<data set>/<evaluation>/  SHA256SUMS  leaderboard.json

The pages load nothing. Their one script sorts tables; it is named by its hash in the page's policy.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from idc.evaluation.record import Spread
from idc.report.html import page as html_page
from idc.report.html import write_text
from idc.report.leaderboard import PAPER, RUN, Board, Page, Row, published_files
from idc.report.leaderboard_runs import MARKER
from idc.report.published import ALL, load_published

SUMS = "SHA256SUMS"

SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const first = head.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.value ?? "";
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const x = value(a), y = value(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
"""
"""Sorts by the column whose button is pressed, with mouse or keyboard; again turns the order. Rows without a value stay
last."""


def write_leaderboard(out: Path, pages: Sequence[Page]) -> list[Path]:
    """Write all files; those of an earlier leaderboard in the folder that are no longer wanted are removed.

    Returns:
        the pages, the index first.

    Raises:
        ValueError: the folder holds something else.
    """
    before = _earlier(out)
    out.mkdir(parents=True, exist_ok=True)
    copied: dict[str, str] = {}
    for page in pages:
        for name, path in published_files(page):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)
            copied[name] = hashlib.sha256((out / name).read_bytes()).hexdigest()
    written = ["index.html"]
    write_text(out / "index.html", _index(pages))
    for page in pages:
        for suffix, text in (
            ("html", render(page, copied)),
            ("md", markdown(page)),
            ("csv", as_csv(page)),
            ("tex", latex(page)),
        ):
            written.append(f"{page.key}.{suffix}")
            write_text(out / written[-1], text)
    write_text(out / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sorted(copied.items())))
    files = sorted([*written, *copied, SUMS])
    for name in before - set(files):
        (out / name).unlink(missing_ok=True)
    write_text(out / MARKER, json.dumps({"files": files}, indent=1) + "\n")
    return [out / name for name in written if name.endswith(".html")]


def _earlier(out: Path) -> set[str]:
    """Files of the leaderboard that is there."""
    if (out / MARKER).exists():
        return set(json.loads((out / MARKER).read_text(encoding="utf-8"))["files"])
    if out.exists() and any(out.iterdir()):
        raise ValueError(
            f"--out: {str(out)!r} is not empty and holds no leaderboard (no {MARKER}); take another folder"
        )
    return set()


# --------------------------------------------------------------------------------------------------------------- page


def render(page: Page, hashes: dict[str, str]) -> str:
    """A data set's page; ``hashes``: of the published files by their names."""
    groups: dict[tuple[str, str, str], list[Board]] = {}
    for board in page.boards:
        groups.setdefault((board.split, board.variant, board.protocol), []).append(board)
    exports = " ".join(f'<a href="{escape(page.key)}.{end}">{name}</a>' for end, name in _EXPORTS.items())
    sections = [("about", "About", f"{_about(page)}<p>The tables as {exports}.</p>")]
    for number, ((split, variant, protocol), boards) in enumerate(groups.items()):
        body = []
        for board in boards:
            table = _table(board)
            if board is boards[0]:
                body.append(f"<h3>{escape(_subset(board))}</h3>{table}")
            else:
                body.append(f"<details><summary>{escape(_subset(board))}</summary>{table}</details>")
        heading = ", ".join(filter(None, [split, variant])) + f" · protocol {protocol}"
        sections.append((f"table-{number}", heading, "".join(body)))
    sections.append(("runs", "Runs", _runs(page, hashes)))
    sections.append(("papers", "Papers", _papers(page)))
    settings = {row.evaluations[0].setting for row in _rows(page) if row.evaluations}
    published = sum(row.kind == PAPER for row in _rows(page))
    ours = f"{_count(len(page.scored), 'run')} of ours in {_count(len(settings), 'setting')}"
    subtitle = f"{ours}, {_count(published, 'published row')}"
    return html_page(f"Leaderboard: {page.title}", subtitle, sections, script=SORT)


_EXPORTS = {"md": "Markdown", "csv": "CSV", "tex": "LaTeX"}


def _rows(page: Page) -> Iterator[Row]:
    return (row for board in page.boards for row in board.rows)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _subset(board: Board) -> str:
    return "All pairs" if board.subset == ALL else board.subset[:1].upper() + board.subset[1:]


def _about(page: Page) -> str:
    official = ""
    if page.official is not None and page.official.test:
        sizes = ", ".join(f"{name} {size:,}" for name, size in page.official.test.items())
        official = f" The official test split: {sizes} ({page.official.source})."
    elif page.official is not None:
        official = f" Official test split: {page.official.source}."
    notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
    return (
        "<p>Numbers of different splits, subsets or protocols stand in different tables. Runs show the mean and the "
        "standard deviation over their seeds; published rows are what the named table prints, on its own terms: other "
        "training data, selection and decoding. Captioning scores are times 100. A heading sorts its table."
        f"{escape(official)}</p>" + (f"<ul>{notes}</ul>" if notes else "")
    )


def _table(board: Board) -> str:
    names = [("kind", "ascending"), ("method", "ascending")]
    heads = "".join(_head(name, order) for name, order in names)
    heads += "".join(_head(metric, "ascending" if metric == "MAE" else "descending") for metric in board.metrics)
    heads += _head("seeds", "descending") + _head("pairs", "descending") + _head("note", "ascending")
    decimals = {metric: _decimals(board, metric) for metric in board.metrics}
    rows = []
    for row in board.rows:
        cells = _cell(row.kind) + _cell(row.name, "text")
        for metric in board.metrics:
            value = row.values.get(metric)
            text = _number(value, decimals[metric])
            each = ", ".join(f"{one:.{decimals[metric]}f}" for one in value.values) if value is not None else ""
            cells += f'<td data-value="{"" if value is None else value.mean}" title="{each}">{text}</td>'
        cells += _cell(str(len(row.seeds)) if row.seeds else "") + _cell(str(row.pairs or ""))
        mark = f'<b class="mark">{escape(row.mark)}</b>; ' if row.mark else ""
        where = f'<a href="#{_anchor(row)}">run</a>; ' if row.evaluations else ""
        cells += f'<td class="text small" data-value="{escape(row.mark or row.source)}">{mark}{where}'
        cells += f"{escape(row.source)}</td>"
        kind = ' class="model"' if row.kind == RUN else ""
        rows.append(f"<tr{kind}>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="sortable" aria-label="{escape(board.title)}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        + "".join(f'<p class="small soft">{escape(note)}</p>' for note in board.footnotes)
    )


def _head(name: str, first: str) -> str:
    kind = ' class="text"' if first == "ascending" and name != "MAE" else ""
    return f'<th scope="col"{kind} data-first="{first}"><button type="button">{escape(name)}</button></th>'


def _cell(text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<td{style} data-value="{escape(text)}">{escape(text)}</td>'


def _anchor(row: Row) -> str:
    return f"run-{row.evaluations[0].setting}"


def _runs(page: Page, hashes: dict[str, str]) -> str:
    out, seen = [], set()
    for row in _rows(page):
        if not row.evaluations or _anchor(row) in seen:
            continue
        seen.add(_anchor(row))
        first = row.evaluations[0]
        facts = [
            ("settings", row.source),
            ("selected by", row.selection),
            ("evaluation", row.command or "not recorded"),
            ("training", "; ".join(filter(None, (one.training for one in row.evaluations))) or "not recorded"),
            ("commit", row.commit),
            ("pairs", f"{first.evaluation.protocol.get('pairs', '')} ({first.data.fingerprint})"),
        ]
        lines = "".join(
            f'<tr><th scope="row">{name}</th><td class="text">{escape(text)}</td></tr>' for name, text in facts
        )
        files = ""
        for one in row.evaluations:
            seed = "" if one.seed is None else f"seed {one.seed}: "
            files += f'<li class="small">{seed}{_links(page, one.evaluation.fingerprint, hashes)}</li>'
        out.append(
            f'<article id="{_anchor(row)}"><h3>{escape(row.name)}</h3><div class="scroll"><table><tbody>{lines}</tbody>'
            f"</table></div><p class='small'>Predictions with their references and scores, and the evaluation "
            f"(SHA-256; all of them in <a href='{SUMS}'>{SUMS}</a>):</p><ul>{files}</ul></article>"
        )
    return "".join(out)


def _links(page: Page, evaluation: str, hashes: dict[str, str]) -> str:
    own = [name for name in hashes if name.startswith(f"runs/{page.key}/{evaluation}/")]
    return ", ".join(
        f'<a href="{escape(name)}">{escape(Path(name).name)}</a> <code>{hashes[name][:16]}…</code>' for name in own
    )


def _papers(page: Page) -> str:
    published = load_published()
    cited = dict.fromkeys(table.paper for table in published.tables if table.data_set == page.key)
    items = [
        f"<li>{escape(paper.method)} paper: {escape(paper.authors)}, “{escape(paper.title)}”</li>"
        for paper in (published.papers[name] for name in cited)
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _index(pages: Sequence[Page]) -> str:
    rows = []
    for page in pages:
        published = sum(row.kind == PAPER for row in _rows(page))
        rows.append(
            f'<tr><td class="text"><a href="{escape(page.key)}.html">{escape(page.title)}</a></td>'
            f"<td>{len(page.scored)}</td><td>{published}</td></tr>"
        )
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">data set</th><th scope="col">our runs</th>'
        f'<th scope="col">published rows</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )
    return html_page("Leaderboard", "One page a data set", [("data-sets", "Data sets", table)])


# ------------------------------------------------------------------------------------------------------------- numbers


def _decimals(board: Board, metric: str) -> int:
    """As many as the published rows of the column print; else one, and four of fractions."""
    printed = [
        len(f"{row.values[metric].mean!r}".partition(".")[2])
        for row in board.rows
        if row.kind == PAPER and metric in row.values
    ]
    return max(printed) if printed else (4 if board.protocol == "answers" else 1)


def _number(value: Spread | None, decimals: int) -> str:
    if value is None:
        return "–"
    text = f"{value.mean:.{decimals}f}"
    return f"{text} ± {value.std:.{decimals}f}" if len(value.values) > 1 else text


# ------------------------------------------------------------------------------------------------------------- exports


def markdown(page: Page) -> str:
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


def latex(page: Page) -> str:
    """All tables as LaTeX ``tabular``, with the package booktabs."""
    lines = [f"% Leaderboard: {_tex(page.title)}. Needs \\usepackage{{booktabs}}."]
    for board in page.boards:
        head, *rows = _printed(board)
        columns = "ll" + "r" * (len(head) - 3) + "p{6cm}"
        lines += ["", f"% {_tex(board.title)}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule"]
        lines.append(" & ".join(map(_tex, head)) + " \\\\")
        lines.append("\\midrule")
        lines += [" & ".join(map(_tex, row)) + " \\\\" for row in rows]
        lines += ["\\bottomrule", "\\end{tabular}", *(f"% {_tex(note)}" for note in board.footnotes)]
    return "\n".join([*lines, ""])


def as_csv(page: Page) -> str:
    """All tables as one, a row each; mean and standard deviation of each metric with all their digits."""
    metrics = list(dict.fromkeys(metric for board in page.boards for metric in board.metrics))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [column for metric in metrics for column in (metric, f"{metric} std")]
    place = ("data_set", "split", "variant", "subset", "protocol")
    origin = ("seeds", "pairs", "mark", "source", "selection", "command", "commit", "evaluations")
    writer.writerow([*place, "kind", "method", *columns, *origin])
    for board in page.boards:
        for row in board.rows:
            numbers: list[float | str] = []
            for metric in metrics:
                value = row.values.get(metric)
                numbers += ["", ""] if value is None else [value.mean, value.std if len(value.values) > 1 else ""]
            seeds = " ".join("" if seed is None else str(seed) for seed in row.seeds).strip()
            of = " ".join(one.evaluation.fingerprint for one in row.evaluations)
            where = (page.key, board.split, board.variant, board.subset, board.protocol)
            came = (seeds, row.pairs or "", row.mark, row.source, row.selection, row.command, row.commit, of)
            writer.writerow([*where, row.kind, row.name, *numbers, *came])
    return out.getvalue()


def _printed(board: Board) -> Iterator[list[str]]:
    """Head and rows as text."""
    decimals = {metric: _decimals(board, metric) for metric in board.metrics}
    yield ["kind", "method", *board.metrics, "seeds", "pairs", "note"]
    for row in board.rows:
        numbers = [_number(row.values.get(metric), decimals[metric]) for metric in board.metrics]
        seeds, pairs = str(len(row.seeds) or ""), str(row.pairs or "")
        yield [row.kind, row.name, *numbers, seeds, pairs, "; ".join(filter(None, [row.mark, row.source]))]


_TEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"±": "$\\pm$", "†": "\\textdagger{}", "–": "--", "<": "$<$", ">": "$>$"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(mark, mark) for mark in text)
