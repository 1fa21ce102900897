"""The page of a checked data set: counts with the published ones, captions, every problem with pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from idc.data import files
from idc.data.images import decode_image
from idc.data.schema import SPLITS
from idc.data.validation.published import ALL, CountComparison
from idc.data.validation.report import COLUMNS, Validation, errors_line, leaked, published_count_rows, statistics_row
from idc.data.validation.run import Example, ValidationFindings
from idc.report.page import BlockGroup, Bullets, Card, Cards, Facts, Page, PageBlock, Section, Table, Text, Tiles
from idc.report.pair_cards import overlay


def page_path(report: str) -> str:
    """Where the page of a JSON report is written: next to it."""
    return f"{report.removesuffix('.json')}.html"


def write_validation_page(path: str, findings: ValidationFindings) -> None:
    """Write the page."""
    files.locate(path).write(validation_page(findings).html().encode())


def validation_page(findings: ValidationFindings) -> Page:
    """The page of what was found."""
    result = findings.result
    verdict = "fit for training" if result.ok else f"not fit for training as it is: {errors_line(result)}"
    alone = "Annotations alone: checks that need the images were not made."
    return Page(f"{result.title}: what is in it", f"{result.pairs} ({result.format}), {verdict}", [
        Section("Overview", [Tiles(_tiles(result)), Text(note="" if result.images else alone)]),
        Section("Counts", [
            *([_published(result.published)] if result.published is not None else []),
            _by_type(result),
        ]),
        Section("Captions", _captions(result) if result.statistics.captions else []),
        Section("Problems", _problems(findings)),
        Section("Pairs", [Cards([_card(pair) for pair in pairs], title=split)
                          for split, pairs in findings.examples.items()]),
        Section("Notes", [
            Bullets(result.notes),
            Facts({code: f"{count:,} rows" for code, count in result.rejected.items()}, title="Left out of the folder",
                  folded=True),
            Facts(_sizes(result), title="Image sizes", folded=True),
        ]),
    ])  # fmt: skip


def _tiles(result: Validation) -> list[tuple[str, str, str]]:
    tiles = [
        ("pairs that can be used", f"{result.usable_pairs:,}", f"of {result.num_pairs:,}"),
        ("captions", f"{result.statistics.captions:,}", f"{result.without_captions:,} pairs have none"),
        ("errors", f"{result.num_errors:,}", ", ".join(result.errors)),
        ("images in several splits", f"{result.num_leaks:,}", "" if result.images else "compared by name"),
    ]
    if result.published is not None:
        same = "as published" if result.published.agrees else "not as published"
        absent = result.published.absent_splits
        tiles.append(("counts", same, f"not here: {', '.join(absent)}" if absent else ""))
    return tiles


def _by_type(result: Validation) -> Table:
    types = sorted({kind for row in result.by_split_and_type.values() for kind in row})
    rows = [
        [split, *(f"{row.get(kind, 0):,}" for kind in types), f"{sum(row.values()):,}"]
        for split in SPLITS
        if (row := result.by_split_and_type.get(split)) is not None
    ]
    return Table(["split", *types, "all"], rows, title="Pairs by change type")


def _published(comparison: CountComparison) -> PageBlock:
    columns = [*SPLITS, *([ALL] if any(ALL in line.published for line in comparison.lines) else [])]
    rows = []
    for line in comparison.lines:
        cells = [
            _compared(*(f"{counts[c]:,}" if c in counts else "" for counts in (line.found, line.published)))
            for c in columns
        ]
        rows.append([line.name.replace("_", " "), *cells, {True: "✓", False: "✗", None: ""}[line.agrees]])
    note = (
        f"Published: {comparison.source}. A cell has the number found and, where it is another, the published one."
        + (f" Not here: {', '.join(comparison.absent_splits)}." if comparison.absent_splits else "")
    )
    return BlockGroup([Table(["count", *columns, ""], rows, note=note), Bullets(comparison.explained)])


def _compared(counted: str, published: str) -> str:
    return counted if counted == published or not published else f"{counted or 'not counted'} (published {published})"


def _captions(result: Validation) -> list[PageBlock]:
    rows = [[split, *statistics_row(statistics)] for split, statistics in result.statistics_by_split.items()]
    rows.append([f"{result.title}, all", *statistics_row(result.statistics)])
    rows += published_count_rows(result)
    counted = result.statistics
    note = (
        f"A pair has {counted.captions_per_pair.least} to {counted.captions_per_pair.most} captions, a caption "
        f"{counted.words_per_caption.least} to {counted.words_per_caption.most} words. "
        f"{counted.captions_with_capitals:,} captions have capitals, {counted.captions_with_punctuation:,} "
        "have punctuation. Words and vocabulary are counted in lower case "
        "without punctuation; a sentence ends with a full stop, an exclamation or a question mark."
    )
    return [Table(["", *COLUMNS], rows), Text(note=note)]


def _problems(findings: ValidationFindings) -> list[PageBlock]:
    result, problems = findings.result, list[PageBlock]()
    if result.num_leaks:
        shared = (f"{' and '.join(leak.pairs)} share an image ({' and '.join(leak.splits)})" for leak in result.leaks)
        lines = [*leaked(result), *shared]
        cards = _shown(findings, (name for leak in result.leaks for name in leak.pairs))
        problems.append(BlockGroup([Bullets(lines), cards], title=f"Images in several splits: {result.num_leaks:,}"))
    for word, kinds in (("error", result.problems), ("warning", result.warnings)):
        for code, problem in kinds.items():
            cards = _shown(findings, (text.partition(": ")[0] for text in problem.examples))
            problems.append(BlockGroup([Bullets(problem.examples), cards], title=f"{code} ({word}): {problem.count:,}"))
    return problems


def _shown(findings: ValidationFindings, names: Iterable[str]) -> Cards:
    return Cards([_card(findings.shown[name]) for name in dict.fromkeys(names) if name in findings.shown])


def _card(pair: Example) -> Card:
    views = []
    if pair.before:
        after = decode_image(pair.after)
        views = [("before", decode_image(pair.before)), ("after", after)]
        if pair.mask is not None and (mask := decode_image(pair.mask).max(axis=2)).any():
            views.append(("what changed", overlay(after, mask)))
    tags = [pair.pair_id, pair.split, *([pair.change_type] if pair.change_type is not None else [])]
    return Card(pair.pair_id, views, tags=tags, bullets=pair.captions or ["no caption"])


def _sizes(result: Validation) -> Mapping[str, str]:
    sizes = {size: f"{count:,} images" for size, count in result.image_sizes.items()}
    if result.different_sizes:
        sizes["unequal"] = f"before and after differ in size in {result.different_sizes:,} pairs; they are resized"
    return sizes
