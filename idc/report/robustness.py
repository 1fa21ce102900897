"""The robustness table: one captioner on clean, corrupted and swapped pairs, and what training on noised words costs.

Each row has the baselines of the same set. They matter: under heavy noise a captioner that says one sentence of
all pairs may lose nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from idc.data.config import RobustnessConfig
from idc.evaluation.record import Evaluation
from idc.report.collect import environment
from idc.report.html import GalleryItem, cards, page, write_text
from idc.report.sweep import markdown as sweep_markdown
from idc.report.sweep import table as sweep_table
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
    """One row: what was done to the pairs, and how the captioner did on them.

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
    """What a row is called."""
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
    rows = _rows(conditions)
    record = {
        "artifact": artifact,
        "rows": {name: dict(zip(_head(conditions), cells, strict=True)) for name, cells in rows},
        "published": {"NAMC, table 10, Image-Editing-Request": NAMC},
        "words": sweep.model_dump(mode="json") if sweep is not None else None,
        "environment": environment(),
    }
    write_text(folder / "robustness.json", json.dumps(record, indent=1) + "\n")
    lines = [f"| | {' | '.join(_head(conditions))} |", "|---" * (len(_head(conditions)) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    if sweep is not None:
        lines += ["", sweep_markdown(sweep)]
    write_text(folder / "table.md", "\n".join(lines) + "\n")
    first = conditions[0].evaluation
    sections = [
        ("images", "Images and order", _images(conditions, rows)),
        ("words", "Words", _words(sweep) if sweep is not None else ""),
        ("pairs", "The same pairs", _pairs(conditions)),
        ("record", "Protocol and machine", _facts({**first.protocol, **environment()})),
    ]
    subtitle = f"{artifact}; {first.pairs} pairs of the split {first.split}"
    return write_text(folder / "report.html", page("Robustness", subtitle, sections))


def _head(conditions: Sequence[Condition]) -> list[str]:
    head = list(COLUMNS)
    head += ["C, share of clean", *(f"C, {name}" for name in conditions[0].evaluation.baselines)]
    return [*head, "right change type", "distinct captions", "pairs"]


def _rows(conditions: Sequence[Condition]) -> list[tuple[str, list[str]]]:
    """Label and cells; scores times 100."""
    clean = conditions[0].evaluation
    found = []
    for condition in conditions:
        own = condition.evaluation
        cells = [f"{100 * own.scores[metric]:.1f}" if metric in own.scores else "" for metric in COLUMNS.values()]
        both = own.scores.get("CIDEr"), clean.scores.get("CIDEr")
        cells.append(f"{both[0] / both[1]:.0%}" if both[0] is not None and both[1] else "")
        for name in clean.baselines:
            baseline = own.baselines.get(name)
            cells.append(f"{100 * baseline.scores['CIDEr']:.1f}" if baseline and "CIDEr" in baseline.scores else "")
        cells.append(f"{own.types.accuracy:.1%} of {own.types.pairs}" if own.types is not None else "")
        found.append((condition.what, [*cells, str(own.distinct_captions), str(own.pairs)]))
    return found


def _images(conditions: Sequence[Condition], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    out = [
        "<p>The captioner as it is, on its evaluated split with nothing changed, with both images corrupted "
        "(Hendrycks and Dietterich 2019), and with before and after swapped. Scores times 100.</p>",
        _table(_head(conditions), rows),
    ]
    for name, baseline in conditions[0].evaluation.baselines.items():
        out.append(f'<p class="small soft"><b>{escape(name)}</b>: {escape(baseline.what)}.</p>')
    if any(condition.name == "swap_order" for condition in conditions):
        out.append(
            '<p class="small soft">A reference tells what became of the first image, so swapped pairs have references '
            "of their own: made from the known scene where the pairs are rendered; of other pairs only the unchanged "
            "ones are scored.</p>"
        )
    published = [(name, [f"{NAMC[name][column]:.1f}" for column in COLUMNS]) for name in NAMC]
    out.append(
        '<h3>Published</h3><p class="small soft">NAMC with all modules, fine-tuned on Image-Editing-Request, both '
        "corruptions at severity 5 (its table 10): another system on other data, for the size of the loss.</p>"
        + _table(list(COLUMNS), published)
    )
    return "".join(out)


def _words(sweep: SweepResult) -> str:
    note = f"<p>{escape(sweep.note)}</p>" if sweep.note else ""
    orders = "".join(f"<li>{escape(found.sentence())}</li>" for found in sweep.orderings)
    failed = "".join(f"<li>No result: {escape(name)}: {escape(why)}</li>" for name, why in sweep.failed.items())
    return (
        "<p>A captioner reads no words, so noise in captions can only reach it in training: trainings of the same "
        "length on clean and on noised captions, all scored against clean references.</p>"
        f"{note}{sweep_table(sweep)}<ul>{orders}{failed}</ul>"
    )


def _pairs(conditions: Sequence[Condition]) -> str:
    return "".join(f"<h3>{escape(one.what)}</h3>{cards(one.items)}" for one in conditions if one.items)


def _table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    )
    return f'<div class="scroll"><table><thead><tr><th></th>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _facts(facts: Mapping[str, object]) -> str:
    rows = [(name, [", ".join(value) if isinstance(value, list) else str(value)]) for name, value in facts.items()]
    return _table([""], rows)
