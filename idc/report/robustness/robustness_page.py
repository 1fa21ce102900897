"""The robustness table: one captioner on clean, corrupted and swapped pairs, and trainings on noised captions.

Each row has the baselines of the same set. They matter: under heavy noise a captioner that writes one sentence for all
pairs may lose nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from idc.atomic import write_text
from idc.data.config import RobustnessConfig
from idc.evaluation.record import Evaluation
from idc.report.collect import environment
from idc.report.page import render
from idc.report.pair_cards import GalleryItem
from idc.report.sweep.sweep_table import markdown, table_of
from idc.sweep.summary import SweepResult

COLUMNS = {"B": "BLEU-4", "M": "METEOR", "R": "ROUGE-L", "C": "CIDEr"}
"""NAMC's columns."""

NAMC = {
    "clean": {"B": 14.4, "M": 18.3, "R": 45.2, "C": 51.0},
    "gaussian_noise": {"B": 12.1, "M": 16.7, "R": 43.6, "C": 43.1},
    "fog": {"B": 11.8, "M": 15.4, "R": 41.3, "C": 42.2},
}
"""NAMC with all modules on Image-Editing-Request, its images corrupted at severity 5 (table 10)."""


@dataclass(frozen=True)
class Condition:
    """One row: what was done to the pairs, and the captioner's scores on them.

    Attributes:
        name: of its set; "clean" for the pairs as they are.
        what: in words.
        evaluation: on the changed split.
        items: pairs to show.
    """

    name: str
    what: str
    evaluation: Evaluation
    items: Sequence[GalleryItem] = ()


def label(config: RobustnessConfig) -> str:
    """The label of a row."""
    if config.kind == "swap_order":
        return "before and after swapped"
    if config.kind == "replace_words":
        return f"{config.share:.0%} of the words replaced"
    return f"{config.kind.replace('_', ' ')}, severity {config.severity}"


def write_robustness(
    folder: Path, artifact: str, conditions: Sequence[Condition], sweep: SweepResult | None = None
) -> Path:
    """Write ``report.html``, ``table.md`` and ``robustness.json``. Returns the page's path.

    Args:
        conditions: the clean pairs first.
        sweep: trainings on noised captions.
    """
    head, rows, machine = _head(conditions), _rows(conditions), environment()
    record = {
        "artifact": artifact,
        "rows": {name: dict(zip(head, cells, strict=True)) for name, *cells in rows},
        "published": {"NAMC, table 10, Image-Editing-Request": NAMC},
        "words": sweep.model_dump(mode="json") if sweep is not None else None,
        "environment": machine,
    }
    write_text(folder / "robustness.json", json.dumps(record, indent=1) + "\n")
    lines = [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    write_text(folder / "table.md", "\n".join([*lines, *(["", markdown(sweep)] if sweep is not None else [])]) + "\n")
    first = conditions[0].evaluation
    page = render(
        "robustness.html",
        title="Robustness",
        subtitle=f"{artifact}; {first.pairs} pairs of the split {first.split}",
        head=["", *head],
        rows=rows,
        baselines=[(name, one.what) for name, one in first.baselines.items()],
        swapped=any(condition.name == "swap_order" for condition in conditions),
        published_head=["", *COLUMNS],
        published=[[name, *(f"{NAMC[name][column]:.1f}" for column in COLUMNS)] for name in NAMC],
        sweep=sweep,
        table=table_of(sweep) if sweep is not None else None,
        orders=[found.sentence() for found in sweep.orderings] if sweep is not None else [],
        conditions=[condition for condition in conditions if condition.items],
        protocol={**first.protocol, **machine},
    )
    return write_text(folder / "report.html", page)


def _head(conditions: Sequence[Condition]) -> list[str]:
    others = [f"C, {name}" for name in conditions[0].evaluation.baselines]
    return [*COLUMNS, "C, share of clean", *others, "right change type", "distinct captions", "pairs"]


def _rows(conditions: Sequence[Condition]) -> list[list[str]]:
    """Label and cells; scores times 100."""
    clean = conditions[0].evaluation
    found = []
    for condition in conditions:
        own = condition.evaluation
        cells = [f"{100 * own.scores[metric]:.1f}" if metric in own.scores else "" for metric in COLUMNS.values()]
        both = own.scores.get("CIDEr"), clean.scores.get("CIDEr")
        cells.append(f"{both[0] / both[1]:.0%}" if both[0] is not None and both[1] else "")
        for name in clean.baselines:
            other = own.baselines.get(name)
            cells.append(f"{100 * other.scores['CIDEr']:.1f}" if other and "CIDEr" in other.scores else "")
        cells.append(f"{own.types.accuracy:.1%} of {own.types.pairs}" if own.types is not None else "")
        found.append([condition.what, *cells, str(own.distinct_captions), str(own.pairs)])
    return found
