"""The robustness table: one captioner on clean, corrupted and swapped pairs.

Each row has the baselines of the same set. They matter: under heavy noise a captioner that writes one sentence for all
pairs may lose nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from idc.data.config import RobustnessConfig
from idc.evaluation.record import Evaluation
from idc.metrics.change_maps import MODEL, PIXELS
from idc.report.collect import environment
from idc.report.leaderboard.scored_runs import ROBUSTNESS
from idc.report.page import Table
from idc.util.atomic import write_text
from idc.util.units import score_text

COLUMNS = {"B": "BLEU-4", "M": "METEOR", "R": "ROUGE-L", "C": "CIDEr"}
"""NAMC's columns."""


@dataclass(frozen=True)
class Condition:
    """One row: what was done to the pairs, and the captioner's scores on them.

    Attributes:
        name: of its set; "clean" for the pairs as they are.
        what: in words.
        evaluation: on the changed split.
    """

    name: str
    what: str
    evaluation: Evaluation


def label(config: RobustnessConfig) -> str:
    """The label of a row."""
    if config.kind == "swap_order":
        return "before and after swapped"
    return f"{config.kind.replace('_', ' ')}, severity {config.severity}"


def write_robustness(folder: Path, artifact: str, conditions: Sequence[Condition]) -> Path:
    """Write ``table.md`` and ``robustness.json``; the clean pairs come first. Returns the table's path."""
    head, rows, machine = _head(conditions), _rows(conditions), environment()
    record = {
        "artifact": artifact,
        "rows": {name: dict(zip(head, cells, strict=True)) for name, *cells in rows},
        "environment": machine,
    }
    write_text(folder / ROBUSTNESS, json.dumps(record, indent=1) + "\n")
    return write_text(folder / "table.md", Table(["", *head], rows).markdown() + "\n")


def cider_share(condition: Condition, clean: Condition) -> float | None:
    """CIDEr as a share of the clean pairs'; None without scores, or where it is not defined."""
    changed, unchanged = (of.evaluation.scores.get("CIDEr", math.nan) for of in (condition, clean))
    return changed / unchanged if unchanged and not math.isnan(changed) else None


def _head(conditions: Sequence[Condition]) -> list[str]:
    others = [f"C, {name}" for name in conditions[0].evaluation.baselines]
    claims = ["right object"] if conditions[0].evaluation.hallucination is not None else []
    maps = [f"map AP, {way}" for way in (MODEL, PIXELS)] if conditions[0].evaluation.change_maps is not None else []
    return [*COLUMNS, "C, share of clean", *others, "right change type", *claims, *maps, "distinct captions", "pairs"]


def _rows(conditions: Sequence[Condition]) -> list[list[str]]:
    """Label and cells; scores times 100."""
    clean = conditions[0].evaluation
    rows = []
    for condition in conditions:
        evaluation = condition.evaluation
        cells = [
            score_text(evaluation.scores[metric]) if metric in evaluation.scores else "" for metric in COLUMNS.values()
        ]
        share = cider_share(condition, conditions[0])
        cells.append("" if share is None else f"{share:.0%}")
        for name in clean.baselines:
            other = evaluation.baselines.get(name)
            cells.append(score_text(other.scores["CIDEr"]) if other and "CIDEr" in other.scores else "")
        cells.append(
            f"{evaluation.types.accuracy:.1%} of {evaluation.types.pairs}" if evaluation.types is not None else ""
        )
        if clean.hallucination is not None:
            cells.append(f"{evaluation.hallucination.object.rate:.1%}" if evaluation.hallucination is not None else "")
        if clean.change_maps is not None:
            maps = evaluation.change_maps
            cells += [f"{100 * maps.scores[way]['AP']:.1f}" if maps is not None else "" for way in (MODEL, PIXELS)]
        rows.append([condition.what, *cells, str(evaluation.distinct_captions), str(evaluation.pairs)])
    return rows
