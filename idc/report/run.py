"""The page of a run: pairs with verdicts, scores with baselines, change types, curves, a gallery."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from idc.atomic import write_text
from idc.evaluation.baselines import CONSTANT, NEAREST, TRAINED, TRUTH
from idc.evaluation.record import Evaluation, SeedSummary, Spread, aggregate, spread
from idc.metrics.changes import UNCLEAR, TypeAgreement
from idc.metrics.difference_lists import F1
from idc.report import charts
from idc.report.claims import claims_table
from idc.report.page import number, render_template, width
from idc.report.pair_cards import HEADLINE, GalleryItem
from idc.schema import CHANGE_TYPES, NO_CHANGE
from idc.units import factor, score_text

_NOT_CHARTED = (
    "step", "seconds_per_step", "samples_per_second", "data_wait_share", "peak_rss_gib", "peak_gpu_gib"
)  # fmt: skip


@dataclass(frozen=True)
class RealPairs:
    """Pairs from elsewhere, captioned by the same model.

    Attributes:
        title, text: what they are.
        evaluation: how often the right change type is named; scores too, if there are references.
        items: pairs to show.
    """

    title: str
    text: str = ""
    evaluation: Evaluation | None = None
    items: Sequence[GalleryItem] = ()


@dataclass(frozen=True)
class RunReport:
    """Everything the page shows; what is empty is left out.

    Attributes:
        title, subtitle: of the page.
        evaluations: of one seed each, the first is the one whose captions are shown.
        logs: run name -> lines of its ``log.jsonl``.
        tokenizer: measured values of the image tokenizer.
        opening: the first pairs of the page, each with its verdict.
        galleries: heading -> pairs.
        real: pairs from elsewhere.
        configs: name -> resolved config.
        environment: what the run ran on.
        timings: what took how long, in words.
        others: name -> evaluations of another captioner on the same pairs.
    """

    title: str
    subtitle: str = ""
    evaluations: Sequence[Evaluation] = ()
    logs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    tokenizer: Mapping[str, float] = field(default_factory=dict)
    opening: Sequence[GalleryItem] = ()
    galleries: Mapping[str, Sequence[GalleryItem]] = field(default_factory=dict)
    real: Sequence[RealPairs] = ()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Sequence[Evaluation]] = field(default_factory=dict)


def write_run_page(path: str | Path, report: RunReport) -> Path:
    """Write the page; an existing page is replaced in one move."""
    return write_text(Path(path), render_report(report))


def render_report(report: RunReport) -> str:
    """The page as text."""
    return render_template(
        "run.html",
        title=report.title,
        subtitle=report.subtitle,
        opening=report.opening,
        scores=_scores(report.evaluations, report.others),
        claims=claims_table(report.evaluations, report.others),
        types=_types(report.evaluations),
        trainings=[_training(name, lines) for name, lines in report.logs.items() if lines],
        tokenizer=", ".join(f"{name} {number(value)}" for name, value in report.tokenizer.items()),
        galleries={title: items for title, items in report.galleries.items() if items},
        real=[_real(real) for real in report.real],
        protocol=report.evaluations[0].protocol if report.evaluations else {},
        timings=report.timings,
        environment=report.environment,
        configs={
            name: json.dumps(config, indent=1, ensure_ascii=False, default=str)
            for name, config in report.configs.items()
        },
    )


# ----------------------------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class _Bar:
    """A labelled bar: its value in words, its width, and the positions of the single values of several seeds."""

    label: str
    kind: str
    text: str
    width: str
    ticks: list[str]


def _bar(label: str, value: Spread, top: float, kind: str = "model") -> _Bar:
    ticks = [width(single / top) for single in value.values] if len(value.values) > 1 else []
    return _Bar(label, kind, _mean(value), width(value.mean / top), ticks)


def _mean(value: Spread, unit: str = "") -> str:
    """Times 100, with its deviation if there is more than one value."""
    text = score_text(value.mean)
    if math.isnan(value.mean):
        return text
    return f"{text}{unit} ± {100 * value.std:.1f}" if len(value.values) > 1 else text + unit


@dataclass(frozen=True)
class _Compared:
    """Another captioner, a baseline or the upper bound."""

    what: str
    scores: Mapping[str, Spread]
    subsets: Mapping[str, Mapping[str, Spread]]
    kind: str
    caption: str | None = None


def _compared(first: Evaluation, others: Mapping[str, Sequence[Evaluation]]) -> dict[str, _Compared]:
    """All that the page compares the model with, by name."""
    compared = {}
    for name, evaluations in others.items():
        summary = aggregate(evaluations)
        what = str(evaluations[0].training or f"the captions in {evaluations[0].protocol.get('captioner')}")
        compared[name] = _Compared(what, summary.scores, summary.subsets, "trained")
    truth = {TRUTH: first.ceiling} if first.ceiling is not None else {}
    for name, other in {**first.baselines, **truth}.items():
        subsets = {part: _spreads(subset.scores) for part, subset in other.subsets.items()}
        compared[name] = _Compared(other.what, _spreads(other.scores), subsets, name, other.caption)
    return compared


def _warned(captioners: Mapping[str, Sequence[Evaluation]]) -> list[str]:
    """Share of the pairs with the warning, one line per captioner that has one to give; all different shares of its
    seeds."""
    lines = []
    for name, evaluations in captioners.items():
        shares = [text for evaluation in evaluations if (text := evaluation.warnings()) is not None]
        lines += [f"{name}: {' / '.join(dict.fromkeys(shares))}"] if shares else []
    return lines


def _spreads(scores: Mapping[str, float]) -> dict[str, Spread]:
    return {name: spread([value]) for name, value in scores.items()}


def _scores(evaluations: Sequence[Evaluation], others: Mapping[str, Sequence[Evaluation]]) -> dict[str, Any] | None:
    if not evaluations or not evaluations[0].scores:
        return None
    first, summary = evaluations[0], aggregate(evaluations)
    compared = _compared(first, others)
    metrics = {}
    for metric, value in sorted(summary.scores.items(), key=lambda item: item[0] != HEADLINE):
        every = [*value.values, *(single for other in compared.values() for single in other.scores[metric].values)]
        top = max([1e-9, *(single for single in every if not math.isnan(single))])
        bars = [_bar(name, other.scores[metric], top, other.kind) for name, other in compared.items()]
        metrics[metric] = [_bar("model", value, top), *bars]
    return {
        "tiles": [
            *_tiles(first, summary.scores, summary.type_accuracy, compared),
            *_object_tile(evaluations),
            *_difference_tile(evaluations),
        ],
        "model": str(first.training or ""),
        "pairs": first.pairs,
        "split": first.split,
        "references": first.references,
        "seeds": summary.runs,
        "distinct": first.distinct_captions,
        "empty": first.empty_captions,
        "warned": _warned({"the model": evaluations, **others}),
        "upper_bound": first.ceiling is not None,
        "trained": TRAINED in first.baselines,
        "metrics": metrics,
        "compared": [(name, other.caption, other.what) for name, other in compared.items()],
        "columns": list(first.scores),
        "subsets": _subset_rows(first, summary, compared),
    }


_LABELS = {
    CONSTANT: "the best constant caption",
    NEAREST: "the nearest training pair's caption",
    TRAINED: "the trained baseline",
    TRUTH: "the truth in one wording",
}


def _tiles(
    first: Evaluation, scores: Mapping[str, Spread], accuracy: Spread | None, compared: Mapping[str, _Compared]
) -> list[tuple[str, str, str]]:
    tiles = []
    if HEADLINE in scores:
        tiles.append((f"{HEADLINE}-D, model", _mean(scores[HEADLINE]), str(first.training or "")))
        for name, other in compared.items():
            value = other.scores[HEADLINE]
            times = f"the model has {scores[HEADLINE].mean / value.mean:.1f} times as much" if value.mean > 0 else ""
            label = f"{HEADLINE}-D, {_LABELS.get(name, name)}"
            tiles.append((label, _mean(value), times if name != TRUTH else ""))
    if accuracy is not None and first.types is not None:
        chance = f"always {first.types.most_frequent!r} gives {first.types.chance_most_frequent:.0%}"
        label = f"captions that name the right change type, of {first.types.pairs} pairs"
        tiles.append((label, _mean(accuracy, "%"), chance))
    return tiles


def _object_tile(evaluations: Sequence[Evaluation]) -> list[tuple[str, str, str]]:
    hallucinations = [evaluation.hallucination for evaluation in evaluations if evaluation.hallucination is not None]
    if not hallucinations or not hallucinations[0].changed:
        return []
    low, high = hallucinations[0].interval("object")
    interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f}; " if len(hallucinations) == 1 else ""
    label = f"captions that name the right object, of {hallucinations[0].changed} changed pairs"
    value = _mean(spread([hallucination.object.rate for hallucination in hallucinations]), "%")
    return [(label, value, f"{interval}chance {hallucinations[0].object.chance:.1%}")]


def _difference_tile(evaluations: Sequence[Evaluation]) -> list[tuple[str, str, str]]:
    differences = [evaluation.differences for evaluation in evaluations if evaluation.differences is not None]
    if not differences:
        return []
    low, high = differences[0].intervals.get(F1, (0.0, 0.0))
    interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f}; " if len(differences) == 1 and high else ""
    baselines = [f"{name} {100 * baseline.differences.f1:.1f}" for name, baseline in evaluations[0].baselines.items()
                 if baseline.differences is not None]  # fmt: skip
    note = f"{interval}{', '.join(baselines)}".rstrip("; ")
    return [
        (
            f"{F1}, by {differences[0].protocol}, of {differences[0].pairs} pairs",
            _mean(spread([scores.f1 for scores in differences])),
            note,
        )
    ]


def _subset_rows(
    first: Evaluation, summary: SeedSummary, compared: Mapping[str, _Compared]
) -> list[tuple[bool, list[str]]]:
    """Whether a row is the model's, and its cells."""
    rows = []
    for name, values in summary.subsets.items():
        model_cells = [_mean(values[metric]) for metric in first.scores]
        rows.append((True, [name, str(first.subsets[name].pairs), "model", *model_cells]))
        for other_name, other in compared.items() if name in ("change", "no change") else ():
            cells = [_mean(other.subsets[name][metric]) for metric in first.scores]
            rows.append((False, ["", "", other_name, *cells]))
    return rows


def _types(evaluations: Sequence[Evaluation]) -> dict[str, Any] | None:
    agreements = [e.types for e in evaluations if e.types is not None]
    if not agreements or len(agreements) != len(evaluations):
        return None
    first = agreements[0]
    return {
        "accuracy": _mean(spread([agreement.accuracy for agreement in agreements]), "%"),
        "pairs": first.pairs,
        "most_frequent": first.most_frequent,
        "chance_most_frequent": f"{100 * first.chance_most_frequent:.1f}%",
        "chance_matched": f"{100 * first.chance_matched:.1f}%",
        "bars": [
            _bar(kind, spread([agreement.per_type[kind] for agreement in agreements]), 1.0) for kind in first.per_type
        ],
        "confusion": _confusion(first),
    }


def _confusion(types: TypeAgreement) -> dict[str, Any]:
    """Columns, and rows of (actual type, (colour, count) for each column)."""
    columns = [kind for kind in (*CHANGE_TYPES, UNCLEAR) if any(row.get(kind) for row in types.table.values())]
    rows = []
    for actual, row in types.table.items():
        cells = []
        for kind in columns:
            color, share = "29,122,70" if kind == actual else "179,55,46", row.get(kind, 0) / sum(row.values())
            cells.append((f"rgba({color},{0.5 * share:.2f})", row.get(kind, 0)))
        rows.append((actual, cells))
    return {"columns": columns, "rows": rows}


# ------------------------------------------------------------------------------------------ training, real


def _training(name: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Name, facts, charts, and the values that one point, too few for a curve, has."""
    facts = [f"{lines[-1]['step']} steps"]
    if "seconds_per_step" in lines[-1]:
        times = sorted(line["seconds_per_step"] for line in lines if "seconds_per_step" in line)
        facts.append(f"{times[len(times) // 2]:.3g} s per step")
    if "peak_rss_gib" in lines[-1]:
        facts.append(f"{max(line.get('peak_rss_gib', 0.0) for line in lines):.2g} GiB at most")
    curves: list[Markup] = []
    once = []
    for title, keys in _chart_groups(lines):
        points = {
            key: [(line["step"], factor(key) * float(line[key])) for line in lines if key in line] for key in keys
        }
        curves.append(charts.curves(title, points))
        once += [f"{key} {number(values[0][1])}" for key, values in points.items() if len(values) == 1]
    return {"name": name, "facts": ", ".join(facts), "charts": curves, "once": ", ".join(once)}


def _chart_groups(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Losses share a chart, learning rates share one, every other measured value has its own."""
    keys = list(dict.fromkeys(key for line in lines for key, value in line.items() if isinstance(value, (int, float))))
    losses = [key for key in keys if key.startswith("loss") or key.endswith("_loss")]
    rates = [key for key in keys if key.startswith("lr/")]
    measured = [key for key in keys if key not in (*losses, *rates, *_NOT_CHARTED)]
    measured.sort(key=lambda key: not key.startswith("validation/"))
    groups = [("loss", losses), ("learning rate", rates), *((key, [key]) for key in measured)]
    return [(title, members) for title, members in groups if members]


def _real(real: RealPairs) -> dict[str, Any]:
    section: dict[str, Any] = {"title": real.title, "text": real.text, "shown": real.items, "types": None}
    section["warned"] = real.evaluation.warnings() if real.evaluation is not None else None
    if real.evaluation is not None and (types := real.evaluation.types) is not None:
        section["types"] = {
            "shares": [_share(types, kind) for kind in types.table],
            "accuracy": f"{types.accuracy:.1%}",
            "pairs": types.pairs,
            "most_frequent": types.most_frequent,
            "chance_most_frequent": f"{types.chance_most_frequent:.1%}",
            "num_types": len(CHANGE_TYPES),
            "chance": f"{1 / len(CHANGE_TYPES):.1%}",
            "confusion": _confusion(types),
        }
    return section


def _share(types: TypeAgreement, kind: str) -> str:
    """How many captions of a type's pairs name it, and how many of the other pairs'."""
    row, others = types.table[kind], [other for name, other in types.table.items() if name != kind]
    total, elsewhere = sum(row.values()), sum(other.get(kind, 0) for other in others)
    label = "unchanged pairs" if kind == NO_CHANGE else f"{kind} pairs"
    said = "that nothing changed" if kind == NO_CHANGE else f"a {kind} change"
    count = sum(sum(other.values()) for other in others)
    also = f"; it says so of {elsewhere} of the {count} others ({elsewhere / count:.0%})" if count else ""
    return f"of {total} {label}, {row.get(kind, 0)} captions ({row.get(kind, 0) / total:.0%}) say {said}{also}"
