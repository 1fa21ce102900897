"""The page of a checked data set: counts with the published ones, captions, every problem with pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from idc.data import files
from idc.data.images import decode_image
from idc.data.validation.caption_statistics import LONG
from idc.data.validation.duplicates import Leak
from idc.data.validation.published import ALL, CountComparison
from idc.data.validation.report import (
    COLUMNS,
    Validation,
    errors_line,
    leaked,
    published_count_rows,
    statistics_row,
)
from idc.data.validation.run import Example, ValidationFindings
from idc.report import charts
from idc.report.page import render_template
from idc.report.pair_cards import overlay
from idc.schema import SPLITS


def page_path(report: str) -> str:
    """Where the page of a JSON report is written: next to it."""
    return f"{report.removesuffix('.json')}.html"


def write_validation_page(path: str, findings: ValidationFindings) -> None:
    """Write the page."""
    files.locate(path).write(render_validation(findings).encode())


def render_validation(findings: ValidationFindings) -> str:
    """The page as text."""
    result = findings.result
    verdict = "fit for training" if result.ok else f"not fit for training as it is: {errors_line(result)}"
    return render_template(
        "validation.html",
        title=f"{result.title}: what is in it",
        subtitle=f"{result.pairs} ({result.format}), {verdict}",
        tiles_shown=_tiles(result),
        annotations_alone=not result.images,
        published=_published(result.published) if result.published is not None else None,
        by_type=_by_type(result),
        captions=_captions(result) if result.statistics.captions else None,
        problems=_problems(findings),
        examples={split: [_card(pair) for pair in pairs] for split, pairs in findings.examples.items()},
        notes=result.notes,
        rejected={code: f"{count:,} rows" for code, count in result.rejected.items()},
        sizes=_sizes(result),
    )


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


def _by_type(result: Validation) -> tuple[list[str], list[list[str]]]:
    """Head and rows: pairs by split and change type."""
    types = sorted({kind for row in result.by_split_and_type.values() for kind in row})
    rows = [
        [split, *(f"{row.get(kind, 0):,}" for kind in types), f"{sum(row.values()):,}"]
        for split in SPLITS
        if (row := result.by_split_and_type.get(split)) is not None
    ]
    return ["split", *types, "all"], rows


def _published(comparison: CountComparison) -> dict[str, Any]:
    columns = [*SPLITS, *([ALL] if any(ALL in line.published for line in comparison.lines) else [])]
    rows = []
    for line in comparison.lines:
        cells = [
            _compared(*(f"{counts[c]:,}" if c in counts else "" for counts in (line.found, line.published)))
            for c in columns
        ]
        rows.append([line.name.replace("_", " "), *cells, {True: "✓", False: "✗", None: ""}[line.agrees]])
    return {
        "source": comparison.source,
        "head": ["count", *columns, ""],
        "rows": rows,
        "absent": ", ".join(comparison.absent_splits),
        "explained": comparison.explained,
    }


def _compared(counted: str, published: str) -> str:
    return counted if counted == published or not published else f"{counted or 'not counted'} (published {published})"


def _captions(result: Validation) -> dict[str, Any]:
    rows = [[split, *statistics_row(statistics)] for split, statistics in result.statistics_by_split.items()]
    rows.append([f"{result.title}, all", *statistics_row(result.statistics)])
    rows += published_count_rows(result)
    counted = result.statistics
    return {
        "head": ["", *COLUMNS],
        "rows": rows,
        "per_pair": counted.captions_per_pair,
        "words": counted.words_per_caption,
        "seen_once": f"{counted.words_seen_once:,}",
        "capitals": f"{counted.captions_with_capitals:,}",
        "punctuation": f"{counted.captions_with_punctuation:,}",
        "histogram": charts.histogram("Lengths", counted.lengths, LONG),
    }


def _problems(findings: ValidationFindings) -> list[dict[str, Any]]:
    """Leaks, errors and warnings: heading, lines, examples, cards."""
    result, problems = findings.result, []
    if result.num_leaks:
        problems.append(
            {
                "title": f"Images in several splits: {result.num_leaks:,}",
                "lines": list(leaked(result)),
                "examples": [_shared(leak) for leak in result.leaks],
                "cards": _shown(findings, (name for leak in result.leaks for name in leak.pairs)),
            }
        )
    for word, kinds in (("error", result.problems), ("warning", result.warnings)):
        for code, problem in kinds.items():
            problems.append(
                {
                    "title": f"{code} ({word}): {problem.count:,}",
                    "lines": [],
                    "examples": problem.examples,
                    "cards": _shown(findings, (text.partition(": ")[0] for text in problem.examples)),
                }
            )
    return problems


def _shared(leak: Leak) -> str:
    return f"{' and '.join(leak.pairs)} share an image ({' and '.join(leak.splits)})"


def _shown(findings: ValidationFindings, names: Iterable[str]) -> list[dict[str, Any]]:
    return [_card(findings.shown[name]) for name in dict.fromkeys(names) if name in findings.shown]


def _card(pair: Example) -> dict[str, Any]:
    views = []
    if pair.before:
        after = decode_image(pair.after)
        views = [("before", decode_image(pair.before)), ("after", after)]
        if pair.mask is not None and (mask := decode_image(pair.mask).max(axis=2)).any():
            views.append(("what changed", overlay(after, mask)))
    tags = [pair.pair_id, pair.split, *([pair.change_type] if pair.change_type is not None else [])]
    return {"pair_id": pair.pair_id, "views": views, "tags": tags, "captions": pair.captions}


def _sizes(result: Validation) -> Mapping[str, str]:
    sizes = {size: f"{count:,} images" for size, count in result.image_sizes.items()}
    if result.different_sizes:
        sizes["unequal"] = f"before and after differ in size in {result.different_sizes:,} pairs; they are resized"
    return sizes
