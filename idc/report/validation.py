"""The page of a check of a data set: counts beside the published ones, captions, every problem with pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from idc.data import files
from idc.data.images import decode_image
from idc.data.validation.caption_statistics import LONG
from idc.data.validation.published import ALL, PUBLISHED, Comparison
from idc.data.validation.report import COLUMNS, Validation, errors_line, leaked, statistics_row
from idc.data.validation.run import Example, Findings
from idc.report.html import facts_table, overlay, page, pictures_of
from idc.schema import SPLITS

_BARS = 40
"""Bars of the histogram at most, beside the one for all longer captions."""
_FOOTER = "The page holds all it shows."


def page_path(report: str) -> str:
    """Where the page of a report goes: beside it."""
    return f"{report.removesuffix('.json')}.html"


def write_page(path: str, found: Findings, beside: Sequence[Validation] = ()) -> None:
    """Write the page; ``beside`` are other sets whose captions stand in one table with these."""
    files.locate(path).write(render(found, beside).encode())


def render(found: Findings, beside: Sequence[Validation] = ()) -> str:
    """The page as text."""
    result = found.result
    sections = [
        ("overview", "Overview", _overview(result)),
        ("counts", "Counts", _counts(result)),
        ("captions", "Captions", _captions(result, beside)),
        ("problems", "Problems", _problems(found)),
        ("pairs", "Pairs", _pairs(found.examples)),
        ("notes", "Notes", _notes(result)),
    ]
    verdict = "fit for training" if result.ok else f"not fit for training as it is: {errors_line(result)}"
    return page(f"{result.title}: what is in it", f"{result.pairs} ({result.format}), {verdict}", sections, _FOOTER)


def _overview(result: Validation) -> str:
    tiles = [
        ("pairs that can be used", f"{result.usable_pairs:,}", f"of {result.num_pairs:,}"),
        ("captions", f"{result.statistics.captions:,}", f"{result.without_captions:,} pairs have none"),
        ("errors", f"{result.num_errors:,}", ", ".join(result.errors)),
        ("images in several splits", f"{result.num_leaks:,}", "" if result.images else "told by their names"),
    ]
    if result.published is not None:
        same = "as published" if result.published.agrees else "not as published"
        tiles.append(
            ("counts", same, f"not here: {', '.join(gone)}" if (gone := result.published.absent_splits) else "")
        )
    boxes = "".join(
        f'<div class="tile"><span class="small soft">{escape(label)}</span><b>{escape(value)}</b>'
        f'<span class="small soft">{escape(more)}</span></div>'
        for label, value, more in tiles
    )
    alone = "" if result.images else "<p>Annotations alone: what only images show was not looked at.</p>"
    return f'<div class="tiles">{boxes}</div>{alone}'


# ----------------------------------------------------------------------------------------------------------- counts


def _counts(result: Validation) -> str:
    types = sorted({kind for row in result.by_split_and_type.values() for kind in row})
    rows = [
        [split, *(f"{row.get(kind, 0):,}" for kind in types), f"{sum(row.values()):,}"]
        for split in SPLITS
        if (row := result.by_split_and_type.get(split)) is not None
    ]
    by_type = f"<h3>Pairs by change type</h3>{_table(['split', *types, 'all'], rows)}" if rows else ""
    return (_published(result.published) if result.published is not None else "") + by_type


def _published(comparison: Comparison) -> str:
    rows = []
    columns = [*SPLITS, *([ALL] if any(ALL in line.published for line in comparison.lines) else [])]
    for line in comparison.lines:
        cells = [f"{line.found[c]:,}" if c in line.found else "" for c in columns]
        printed = [f"{line.published[c]:,}" if c in line.published else "" for c in columns]
        mark = {True: "✓", False: "✗", None: ""}[line.agrees]
        rows.append([line.name.replace("_", " "), *_joined(cells, printed), mark])
    explained = "".join(f"<li>{escape(text)}</li>" for text in comparison.explained)
    gone = f"<p>Not here: {escape(', '.join(comparison.absent_splits))}.</p>" if comparison.absent_splits else ""
    return (
        f'<p class="soft">Published: {escape(comparison.source)}. A cell has the number found and, where it is '
        f"another, the published one.</p>{_table(['count', *columns, ''], rows)}{gone}<ul>{explained}</ul>"
    )


def _joined(found: Sequence[str], published: Sequence[str]) -> list[str]:
    return [
        here if here == there or not there else f"{here or 'not counted'} (published {there})"
        for here, there in zip(found, published, strict=True)
    ]


# --------------------------------------------------------------------------------------------------------- captions


def _captions(result: Validation, beside: Sequence[Validation]) -> str:
    if not result.statistics.captions:
        return ""
    rows = [[split, *statistics_row(found)] for split, found in result.statistics_by_split.items()]
    rows.append([f"{result.title}, all", *statistics_row(result.statistics)])
    rows += [[other.title, *statistics_row(other.statistics)] for other in beside]
    for published in dict.fromkeys(r.published.name for r in (result, *beside) if r.published is not None):
        known = PUBLISHED[published]
        if known.table1 is not None:
            name = f"{known.title} (OmniDiff, table 1)"
            rows.append(
                [name, f"{known.table1.pairs:,}", "", f"{known.table1.words}", f"{known.table1.over_20}%", "", ""]
            )
    lengths, per_pair = result.statistics.words_per_caption, result.statistics.captions_per_pair
    return (
        _table(["", *COLUMNS], rows)
        + f'<p class="soft">A pair has {per_pair.least} to {per_pair.most} captions, a caption {lengths.least} to '
        f"{lengths.most} words; {result.statistics.words_seen_once:,} words are seen once. "
        f"{result.statistics.captions_with_capitals:,} captions have capitals, "
        f"{result.statistics.captions_with_punctuation:,} have punctuation. Words and vocabulary are counted in lower "
        "case without punctuation; a sentence ends with a full stop, an exclamation or a question mark.</p>"
        + _histogram(result.statistics.lengths)
    )


def _histogram(lengths: Mapping[int, int]) -> str:
    """Captions by their number of words; the last bar has all longer ones if there are many lengths."""
    longest = max(lengths)
    per_bar = next(n for n in (1, 2, 4) if longest <= n * _BARS or n == 4)  # so that LONG is the end of a bar
    bars: Counter[int] = Counter()
    for length, count in lengths.items():
        bars[min(max(length - 1, 0) // per_bar, _BARS)] += count
    number, top = max(bars) + 1, max(bars.values())
    width, height, left, foot, head = 560.0, 200.0, 46.0, 34.0, 12.0
    ground, right, step = height - foot, width - 8, (width - left - 8) / number
    parts = [
        f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{left - 5:g}" y="{y + 4:.1f}" text-anchor="end">{round(top * share):,}</text>'
        for share in (0.0, 0.5, 1.0)
        for y in [head + (1 - share) * (ground - head)]
    ]
    for bar, count in sorted(bars.items()):
        tall = count / top * (ground - head)
        first, last = bar * per_bar + 1, (bar + 1) * per_bar
        label = (
            f"{first} words and more"
            if bar == _BARS
            else f"{first} to {last} words"
            if last > first
            else f"{first} words"
        )
        parts.append(
            f'<rect x="{left + bar * step + 0.5:.1f}" y="{ground - tall:.1f}" width="{max(step - 1, 0.5):.1f}" '
            f'height="{tall:.1f}" style="fill:var(--model)"><title>{label}: {count:,} captions</title></rect>'
        )
    for words in range(5 * per_bar, number * per_bar + 1, 5 * per_bar):
        x = left + (words / per_bar - 0.5) * step
        parts.append(f'<text x="{x:.1f}" y="{ground + 14:.1f}" text-anchor="middle">{words}</text>')
    if longest > LONG:
        x = left + LONG / per_bar * step
        side, anchor = (4, "start") if x < 0.7 * width else (-4, "end")
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{head:g}" y2="{ground:g}" style="stroke:var(--mark)"/>')
        parts.append(f'<text x="{x + side:.1f}" y="{head - 2:g}" text-anchor="{anchor}">over {LONG} words</text>')
    parts.append(f'<text x="{right:g}" y="{height - 4:g}" text-anchor="end">words in a caption</text>')
    return (
        '<div class="chart" style="max-width:46rem"><b class="small">Lengths</b>'
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="captions by their number of words">'
        f"{''.join(parts)}</svg></div>"
    )


# --------------------------------------------------------------------------------------------------------- problems


def _problems(found: Findings) -> str:
    result = found.result
    out = []
    if result.num_leaks:
        lines = "".join(f"<li>{escape(line)}</li>" for line in leaked(result))
        texts = [f"{' and '.join(leak.pairs)} share an image ({' and '.join(leak.splits)})" for leak in result.leaks]
        names = [name for leak in result.leaks for name in leak.pairs]
        out.append(
            f"<h3>Images in several splits: {result.num_leaks:,}</h3><ul>{lines}</ul>"
            + _list(texts)
            + _cards(found, names)
        )
    for word, problems in (("error", result.problems), ("warning", result.warnings)):
        for code, problem in problems.items():
            names = [text.partition(": ")[0] for text in problem.examples]
            out.append(
                f"<h3>{escape(code)} ({word}): {problem.count:,}</h3>{_list(problem.examples)}{_cards(found, names)}"
            )
    return "".join(out)


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="refs">{items}</ul>' if items else ""


def _cards(found: Findings, names: Iterable[str]) -> str:
    shown = [found.shown[name] for name in dict.fromkeys(names) if name in found.shown]
    return f'<div class="cards">{"".join(map(_card, shown))}</div>' if shown else ""


def _pairs(examples: Mapping[str, Sequence[Example]]) -> str:
    return "".join(
        f'<h3>{escape(split)}</h3><div class="cards">{"".join(map(_card, pairs))}</div>'
        for split, pairs in examples.items()
    )


def _card(pair: Example) -> str:
    pictures = ""
    if pair.before:
        after = decode_image(pair.after)
        views = [("before", decode_image(pair.before)), ("after", after)]
        if pair.mask is not None and (mask := decode_image(pair.mask).max(axis=2)).any():
            views.append(("what changed", overlay(after, mask)))
        pictures = f'<div class="views">{pictures_of(views, pair.pair_id)}</div>'
    known = [pair.pair_id, pair.split, *([pair.change_type] if pair.change_type is not None else [])]
    tags = "".join(f"<span>{escape(text)}</span>" for text in known)
    captions = _list(pair.captions) or '<p class="small soft">no caption</p>'
    return f'<article class="card">{pictures}<div class="tag">{tags}</div>{captions}</article>'


def _notes(result: Validation) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    sizes = {size: f"{count:,} images" for size, count in result.image_sizes.items()}
    if result.different_sizes:
        sizes["unequal"] = f"before and after differ in size in {result.different_sizes:,} pairs; they are resized"
    rejected = {code: f"{count:,} rows" for code, count in result.rejected.items()}
    return (
        (f"<ul>{notes}</ul>" if notes else "")
        + facts_table("Left out of the folder", rejected)
        + facts_table("Image sizes", sizes)
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
