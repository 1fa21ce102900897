"""One self-contained HTML page of a run: six pairs with verdicts, scores beside baselines, curves, a gallery.

The page loads nothing: styles and pictures are inside, and its content security policy forbids the rest. It needs no
script, follows the reader's light or dark setting, and fits a telephone.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.images import resize_image
from idc.data.text import words
from idc.evaluation.baselines import CONSTANT, NEAREST, TRUTH
from idc.evaluation.record import Baseline, Evaluation, Spread, aggregate, spread
from idc.metrics.changes import UNCLEAR, TypeAgreement
from idc.schema import CHANGE_TYPES, NO_CHANGE

IMAGE_EDGE, FRAME_EDGE = 480, 160
"""Longest edge in pixels of the pictures of a pair, and of a frame in a filmstrip."""

HEADLINE = "CIDEr"
_POINTS = 300
_NOT_CHARTED = ("step", "seconds_per_step", "samples_per_second", "data_wait_share", "peak_rss_gib")


@dataclass(frozen=True)
class GalleryItem:
    """A pair as the gallery shows it; images are uint8 RGB ``(H, W, 3)``.

    Attributes:
        pair_id: its id.
        before, after: the two images.
        caption: the model's caption.
        references: reference captions, may be empty.
        change_type: the right one, if it is known.
        named_type: the one the caption names, if it names one.
        mask: ``(H, W)``, non-zero where the scene changed.
        frames: the procedure with both ends, l + 2 images; may be empty.
        confidence: of the l frames between.
        keyframes: indices into ``frames`` of the key frames, from 1 to l.
        scores: of this caption.
        nearest: the caption of the nearest training pair.
        note: a word on where the pair is from.
    """

    pair_id: str
    before: np.ndarray
    after: np.ndarray
    caption: str
    references: Sequence[str] = ()
    change_type: str | None = None
    named_type: str | None = None
    mask: np.ndarray | None = None
    frames: Sequence[np.ndarray] = ()
    confidence: Sequence[float] = ()
    keyframes: Sequence[int] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    nearest: str | None = None
    note: str = ""


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
        reconstructions: (image, image after the tokenizer and back).
        tokenizer: measured values of the image tokenizer.
        opening: pairs that the page begins with, each with its verdict.
        galleries: heading -> pairs.
        imagined: pairs with what is imagined between them: (what it is, frames with both ends).
        real: pairs from elsewhere.
        configs: name -> resolved config.
        environment: what the run ran on.
        timings: what took how long, in words.
    """

    title: str
    subtitle: str = ""
    evaluations: Sequence[Evaluation] = ()
    logs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    reconstructions: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    tokenizer: Mapping[str, float] = field(default_factory=dict)
    opening: Sequence[GalleryItem] = ()
    galleries: Mapping[str, Sequence[GalleryItem]] = field(default_factory=dict)
    imagined: Sequence[tuple[GalleryItem, Sequence[tuple[str, np.ndarray]]]] = ()
    real: Sequence[RealPairs] = ()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, str] = field(default_factory=dict)


def write_report(path: str | Path, report: RunReport) -> Path:
    """Write the page; a page that is there is replaced in one move."""
    return write_text(Path(path), render(report))


def write_text(path: Path, text: str) -> Path:
    """Write a file in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def render(report: RunReport) -> str:
    """The page as text."""
    sections = [
        ("pairs", "Pairs and their captions", _opening(report.opening)),
        ("scores", "Scores", _scores(report.evaluations)),
        ("types", "Change types", _types(report.evaluations)),
        ("training", "Training", _training(report.logs)),
        ("tokenizer", "Image tokenizer", _tokenizer(report.reconstructions, report.tokenizer)),
        ("gallery", "Held-out pairs", _galleries(report.galleries)),
        ("imagined", "The imagined change", _imagined(report.imagined)),
        ("real", "Real pairs", "".join(map(_real, report.real))),
        ("protocol", "Protocol and run", _record(report)),
    ]
    return page(report.title, report.subtitle, sections)


SCORES_FOOTER = "Scores are the field's usual ones times 100. The page holds all it shows."


def page(
    title: str,
    subtitle: str,
    sections: Sequence[tuple[str, str, str]],
    footer: str = SCORES_FOOTER,
    script: str = "",
) -> str:
    """A self-contained page of sections (id, heading, body as HTML); empty ones are left out.

    ``script``, if there is one, runs at the end of the page; its policy allows this one alone, by its hash.
    """
    present = [(name, heading, body) for name, heading, body in sections if body]
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in present)
    bodies = "".join(
        f'<section id="{name}"><h2>{escape(heading)}</h2>{body}</section>\n' for name, heading, body in present
    )
    style = files("idc.report").joinpath("page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy, script = f"{policy}; script-src 'sha256-{digest}'", f"<script>{script}</script>\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header class="top"><h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p></header>\n'
        f'<nav aria-label="Sections"><div>{links}</div></nav>\n<main>\n{bodies}</main>\n'
        f"<footer>{escape(footer)}</footer>\n{script}</body>\n</html>\n"
    )


# ----------------------------------------------------------------------------------------------------------- scores


def _scores(evaluations: Sequence[Evaluation]) -> str:
    if not evaluations or not evaluations[0].scores:
        return ""
    first, summary = evaluations[0], aggregate(evaluations)
    beside = {**first.baselines, **({TRUTH: first.ceiling} if first.ceiling is not None else {})}
    out = [_tiles(first, summary.scores, summary.type_accuracy)]
    seeds = f", mean and standard deviation over {summary.runs} seeds" if summary.runs > 1 else ", one seed"
    out.append(
        f'<p class="soft">{first.pairs} pairs of the split <b>{escape(first.split)}</b> with {first.references} '
        f"references{seeds}. {first.distinct_captions} distinct captions were said"
        + (f", {first.empty_captions} of them empty" if first.empty_captions else "")
        + ". The constant baseline ignores the pair, the nearest baseline sees thumbnails alone: a captioner has to be "
        "well above both."
        + (" The truth, in one wording, is the ceiling." if first.ceiling is not None else "")
        + "</p>"
    )
    out.append('<div class="metrics">')
    for metric, value in sorted(summary.scores.items(), key=lambda item: item[0] != HEADLINE):
        top = max([*value.values, *(other.scores[metric] for other in beside.values()), 1e-9])
        rows = _bar("model", value, top) + "".join(
            _bar(name, spread([other.scores[metric]]), top, name) for name, other in beside.items()
        )
        out.append(f'<div class="metric"><h3>{escape(metric)}</h3>{rows}</div>')
    out.append("</div>")
    for name, baseline in beside.items():
        said = f": <q>{escape(baseline.caption)}</q>" if baseline.caption else ""
        out.append(f'<p class="small soft"><b>{escape(name)}</b>{said}: {escape(baseline.what)}.</p>')
    out.append(_subset_table(first, summary.subsets, beside))
    return "".join(out)


def _tiles(first: Evaluation, scores: Mapping[str, Spread], accuracy: Spread | None) -> str:
    tiles = []
    if HEADLINE in scores:
        tiles.append((f"{HEADLINE}-D, model", _mean(scores[HEADLINE]), ""))
        for name, label in ((CONSTANT, "the best constant caption"), (NEAREST, "the nearest training pair's caption")):
            if name in first.baselines:
                baseline = first.baselines[name].scores[HEADLINE]
                times = f"the model has {scores[HEADLINE].mean / baseline:.1f} times as much" if baseline > 0 else ""
                tiles.append((f"{HEADLINE}-D, {label}", f"{100 * baseline:.1f}", times))
        if first.ceiling is not None:
            tiles.append((f"{HEADLINE}-D, the truth in one wording", f"{100 * first.ceiling.scores[HEADLINE]:.1f}", ""))
    if accuracy is not None and first.types is not None:
        chance = f"always {first.types.most_frequent!r} gives {first.types.chance_most_frequent:.0%}"
        label = f"captions that name the right change type, of {first.types.pairs} pairs"
        tiles.append((label, _mean(accuracy, "%"), chance))
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span class="small soft">{escape(label)}</span><b>{escape(value)}</b>'
            f'<span class="small soft">{escape(more)}</span></div>'
            for label, value, more in tiles
        )
        + "</div>"
    )


def _mean(value: Spread, unit: str = "") -> str:
    """Times 100, with its deviation if there is more than one value."""
    text = f"{100 * value.mean:.1f}{unit}"
    return f"{text} ± {100 * value.std:.1f}" if len(value.values) > 1 else text


def _bar(label: str, value: Spread, top: float, kind: str = "model") -> str:
    """A labelled bar; the single values of several seeds are ticks on it."""
    ticks = ""
    if len(value.values) > 1:
        ticks = "".join(f'<u style="left:calc({_percent(one / top)} - 1px)"></u>' for one in value.values)
    return (
        f'<div class="bar"><span>{escape(label)}</span><span class="track"><i class="{escape(kind)}" '
        f'style="width:{_percent(value.mean / top)}"></i>{ticks}</span><span>{_mean(value)}</span></div>'
    )


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def _subset_table(
    first: Evaluation, subsets: Mapping[str, Mapping[str, Spread]], beside: Mapping[str, Baseline]
) -> str:
    if not subsets:
        return ""
    metrics = list(first.scores)
    head = "".join(f"<th>{escape(metric)}</th>" for metric in metrics)
    rows = []
    for name, values in subsets.items():
        cells = "".join(f"<td>{_mean(values[metric])}</td>" for metric in metrics)
        rows.append(
            f'<tr class="model"><td>{escape(name)}</td><td>{first.subsets[name].pairs}</td><td>model</td>{cells}</tr>'
        )
        for floor_name, baseline in beside.items():
            if name in ("change", "no change"):
                cells = "".join(f"<td>{100 * baseline.subsets[name].scores[metric]:.1f}</td>" for metric in metrics)
                rows.append(f"<tr><td></td><td></td><td>{escape(floor_name)}</td>{cells}</tr>")
    return (
        '<h3>Subsets</h3><p class="small soft">Each subset is scored alone, as the official code does: '
        "CIDEr's document frequencies are those of the subset.</p>"
        '<div class="scroll"><table>'
        f"<thead><tr><th>subset</th><th>pairs</th><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _types(evaluations: Sequence[Evaluation]) -> str:
    agreements = [e.types for e in evaluations if e.types is not None]
    if not agreements or len(agreements) != len(evaluations):
        return ""
    first = agreements[0]
    accuracy = spread([one.accuracy for one in agreements])
    bars = []
    for kind in first.per_type:
        shares = spread([one.per_type[kind] for one in agreements])
        bars.append(_bar(kind, shares, 1.0))
    return (
        f"<p>{_mean(accuracy, '%')} of {first.pairs} captions name the right change type, told by their words. Always "
        f"naming <b>{escape(first.most_frequent)}</b> gives {100 * first.chance_most_frequent:.1f}%, guessing with the "
        f"types' frequencies {100 * first.chance_matched:.1f}%.</p>"
        '<h3>Share of each type\'s captions that name it</h3><div class="metrics"><div class="metric">'
        + "".join(bars)
        + "</div></div>"
        + _confusion(first)
    )


def _confusion(types: TypeAgreement) -> str:
    named = [kind for kind in (*CHANGE_TYPES, UNCLEAR) if any(row.get(kind) for row in types.table.values())]
    head = "".join(f"<th>{escape(kind)}</th>" for kind in named)
    rows = []
    for actual, row in types.table.items():
        total = sum(row.values())
        cells = []
        for kind in named:
            count = row.get(kind, 0)
            color = "29,122,70" if kind == actual else "179,55,46"
            cells.append(f'<td style="background:rgba({color},{0.5 * count / total:.2f})">{count or "·"}</td>')
        rows.append(f"<tr><th>{escape(actual)}</th>{''.join(cells)}</tr>")
    return (
        '<h3>What is named instead</h3><p class="small soft">Captions by the right type (rows) and the type that '
        'they name (columns).</p><div class="scroll"><table class="confusion">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        "</div>"
    )


# ---------------------------------------------------------------------------------------------------------- training


def _training(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    out = []
    for name, lines in logs.items():
        if not lines:
            continue
        charts = [_chart(title, lines, keys) for title, keys in _chart_groups(lines)]
        last = lines[-1]
        facts = [f"{last['step']} steps"]
        if "seconds_per_step" in last:
            times = sorted(line["seconds_per_step"] for line in lines if "seconds_per_step" in line)
            facts.append(f"{times[len(times) // 2]:.3g} s a step")
        if "peak_rss_gib" in last:
            facts.append(f"{max(line.get('peak_rss_gib', 0.0) for line in lines):.2g} GiB at most")
        out.append(f'<h3>{escape(name)} <span class="small soft">{", ".join(facts)}</span></h3>')
        out.append(f'<div class="charts">{"".join(charts)}</div>')
        if once := _measured_once(lines):
            out.append(f'<p class="small soft">Measured once: {escape(once)}.</p>')
    return "".join(out)


def _measured_once(lines: Sequence[Mapping[str, Any]]) -> str:
    """What one point, too few for a curve, says."""
    names = [key for _, keys in _chart_groups(lines) for key in keys if sum(key in line for line in lines) == 1]
    values = {key: next(line[key] for line in lines if key in line) for key in names}
    return ", ".join(f"{key} {_number(value)}" for key, value in values.items())


def _chart_groups(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Losses share a chart, learning rates share one, every other measured value has its own."""
    keys = list(dict.fromkeys(key for line in lines for key, value in line.items() if isinstance(value, (int, float))))
    losses = [key for key in keys if key.startswith("loss") or key.endswith("_loss")]
    rates = [key for key in keys if key.startswith("lr/")]
    measured = [key for key in keys if key not in (*losses, *rates, *_NOT_CHARTED)]
    measured.sort(key=lambda key: not key.startswith("validation/"))
    groups = [("loss", losses), ("learning rate", rates), *((key, [key]) for key in measured)]
    return [(title, own) for title, own in groups if own]


def _chart(title: str, lines: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    curves = {key: _thinned([(line["step"], float(line[key])) for line in lines if key in line]) for key in keys}
    curves = {key: points for key, points in curves.items() if len(points) > 1}
    if not curves:
        return ""
    everything = [point for points in curves.values() for point in points]
    left, right = min(x for x, _ in everything), max(x for x, _ in everything)
    low, high = min(y for _, y in everything), max(y for _, y in everything)
    low = min(low, 0.0) if low >= 0 and low < 0.5 * high else low
    width, height, margin, top, foot = 360.0, 190.0, 46.0, 8.0, 22.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left) if right > left else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return margin + across * (width - margin - 8), top + (1 - up) * (height - top - foot)

    parts = []
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        _, y = place(left, value)
        parts.append(f'<line class="grid" x1="{margin:g}" x2="{width - 8:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{margin - 5:g}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    parts.append(f'<text x="{margin:g}" y="{height - 5:g}">{left:,}</text>')
    parts.append(f'<text x="{width - 8:g}" y="{height - 5:g}" text-anchor="end">step {right:,}</text>')
    legend = []
    for number, (key, points) in enumerate(curves.items()):
        color = f"var(--c{number % 6})"
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline style="stroke:{color}" points="{line}"/>')
        legend.append(f'<span style="--own:{color}">{escape(key)} {_number(points[-1][1])}</span>')
    return (
        f'<div class="chart"><b class="small">{escape(title)}</b>'
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)} by step">'
        f"{''.join(parts)}</svg>"
        f'<div class="legend">{"".join(legend)}</div></div>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most 300 points: means of neighbours, the last one kept as it is. What is not finite is left out."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if len(points) <= _POINTS:
        return list(points)
    blocks = np.array_split(np.array(points[:-1]), _POINTS - 1)
    means = [(int(block[-1, 0]), float(block[:, 1].mean())) for block in blocks]
    return [*means, points[-1]]


def _number(value: float) -> str:
    return f"{value:.3g}" if value == 0 or 1e-2 <= abs(value) < 1e5 else f"{value:.1e}"


def _tokenizer(reconstructions: Sequence[tuple[np.ndarray, np.ndarray]], values: Mapping[str, float]) -> str:
    if not reconstructions and not values:
        return ""
    out = []
    if values:
        facts = ", ".join(f"{escape(name)} {_number(value)}" for name, value in values.items())
        out.append(f"<p>{facts}</p>")
    if reconstructions:
        pictures = "".join(
            f"<figure>{_img(image, 'image', FRAME_EDGE)}{_img(back, 'reconstruction', FRAME_EDGE)}</figure>"
            for image, back in reconstructions
        )
        out.append('<p class="soft">Above the image, below what the tokens keep of it.</p>')
        out.append(f'<div class="recs">{pictures}</div>')
    return "".join(out)


# ----------------------------------------------------------------------------------------------------------- gallery


def _galleries(galleries: Mapping[str, Sequence[GalleryItem]]) -> str:
    shown = {title: items for title, items in galleries.items() if items}
    if not shown:
        return ""
    legend = (
        '<p class="soft">A caption is <span class="said right small">green</span> if its words name the right kind of '
        'change and <span class="said wrong small">red</span> if not; words that stand in no reference are dotted. '
        "Under each frame of the procedure is its confidence; key frames are framed.</p>"
    )
    return legend + "".join(f"<h3>{escape(title)}</h3>{cards(items)}" for title, items in shown.items())


def _opening(items: Sequence[GalleryItem]) -> str:
    if not items:
        return ""
    how = '<p class="soft">The first evaluated pairs of each change type in turn, not selected by score.</p>'
    return f'{how}<div class="cards">{"".join(map(_opening_card, items))}</div>'


def _opening_card(item: GalleryItem) -> str:
    """Pair, caption, verdict in words and one reference."""
    verdict = ""
    if judged := _judged(item):
        actual = "nothing changed" if item.change_type == NO_CHANGE else f"the change type is “{item.change_type}”"
        said = "as the caption says" if judged == "right" else f"the caption names {_named(item)}"
        verdict = f'<p class="verdict {judged}">{_MARKS[judged]} {judged.title()}: {escape(f"{actual}, {said}.")}</p>'
    reference = f'<p class="small soft">Reference: {escape(item.references[0])}</p>' if item.references else ""
    return (
        f'<article class="card"><div class="views">{_views(item)}</div>'
        f'<p class="said">{_marked(item.caption, ())}</p>{verdict}{reference}</article>'
    )


_MARKS = {"right": "✓", "wrong": "✗"}


def _judged(item: GalleryItem) -> str:
    """Whether the caption names the pair's change type, ``right`` or ``wrong``; empty if the type is not known."""
    if item.change_type not in CHANGE_TYPES:
        return ""
    return "right" if item.named_type == item.change_type else "wrong"


def _named(item: GalleryItem) -> str:
    return {None: "no type", NO_CHANGE: "no change"}.get(item.named_type) or str(item.named_type)


def _views(item: GalleryItem) -> str:
    """Before, after and, if the changed region is known, its overlay."""
    views = [("before", item.before), ("after", item.after)]
    if item.mask is not None:
        views.append(("what changed", overlay(item.after, item.mask)))
    return pictures_of(views, item.pair_id)


def cards(items: Iterable[GalleryItem]) -> str:
    """Pairs with what was said of them, side by side."""
    return f'<div class="cards">{"".join(map(_card, items))}</div>'


def _card(item: GalleryItem) -> str:
    verdict = _judged(item)
    tags = [f"<span>{escape(item.pair_id)}</span>"]
    if verdict:
        kind = "no change" if item.change_type == NO_CHANGE else str(item.change_type)
        tags.append(f'<span class="{verdict}">{_MARKS[verdict]} is {escape(kind)}, names {escape(_named(item))}</span>')
    elif item.named_type is not None:
        tags.append(f"<span>names {escape(item.named_type)}</span>")
    if HEADLINE in item.scores:
        tags.append(f"<span>{HEADLINE} {100 * item.scores[HEADLINE]:.0f}</span>")
    if item.note:
        tags.append(f"<span>{escape(item.note)}</span>")
    references = "".join(f"<li>{escape(reference)}</li>" for reference in item.references)
    nearest = f'<p class="small soft">nearest training pair: {escape(item.nearest)}</p>' if item.nearest else ""
    return (
        f'<article class="card"><div class="views">{_views(item)}</div>'
        + _filmstrip(item)
        + f'<p class="said {verdict}">{_marked(item.caption, item.references)}</p>'
        + f'<div class="tag">{"".join(tags)}</div>'
        + (f'<ul class="refs">{references}</ul>' if references else "")
        + nearest
        + "</article>"
    )


def pictures_of(views: Iterable[tuple[str, np.ndarray]], pair_id: str) -> str:
    """Labelled pictures of a pair, uint8 RGB ``(H, W, 3)``, as figures for a grid of the class ``views``."""
    return "".join(
        f"<figure>{_img(image, f'{label}, pair {pair_id}', IMAGE_EDGE)}<figcaption>{label}</figcaption></figure>"
        for label, image in views
    )


def _marked(caption: str, references: Sequence[str]) -> str:
    """The caption, with the words that no reference has dotted."""
    if not caption.split():
        return '<span class="soft">(says nothing)</span>'
    if not references:
        return escape(caption)
    known = {word for reference in references for word in words(reference)}
    return " ".join(
        escape(word)
        if all(part in known or not part[0].isalnum() for part in words(word))
        else f"<s>{escape(word)}</s>"
        for word in caption.split()
    )


def _filmstrip(item: GalleryItem) -> str:
    if not len(item.frames):
        return ""
    figures = []
    last = len(item.frames) - 1
    for number, frame in enumerate(item.frames):
        key = number in item.keyframes
        label, bar = {0: "before", last: "after"}.get(number, f"frame {number}"), ""
        if 0 < number < last and len(item.confidence) == last - 1:
            confidence = float(item.confidence[number - 1])
            label = f"{confidence:.3f}"
            bar = f'<div class="track"><i style="width:{_percent(confidence)}"></i></div>'
        opening = '<figure class="key">' if key else "<figure>"
        figures.append(
            f"{opening}{_img(frame, f'frame {number}', FRAME_EDGE)}{bar}"
            f"<figcaption>{label}{'<br>key' if key else ''}</figcaption></figure>"
        )
    return f'<div class="film">{"".join(figures)}</div>'


def _imagined(pairs: Sequence[tuple[GalleryItem, Sequence[tuple[str, np.ndarray]]]]) -> str:
    if not pairs:
        return ""
    cards = []
    for item, ways in pairs:
        pictures = pictures_of([("before", item.before), ("after", item.after)], item.pair_id)
        strips = "".join(
            f'<p class="small soft">{escape(way)}</p>{_imagined_frames(frames, item.pair_id)}' for way, frames in ways
        )
        cards.append(
            f'<article class="card"><div class="views">{pictures}</div><p class="said">{escape(item.caption)}</p>'
            f'<div class="tag"><span>{escape(item.pair_id)}</span></div>{strips}</article>'
        )
    legend = (
        '<p class="soft">What the procedure encoder expects between the two images, drawn by the image tokenizer from '
        "the codes it predicts. The ends of a strip are the two images as their own codes show them, which is the most "
        "that the pictures between can look like.</p>"
    )
    return f'{legend}<div class="cards">{"".join(cards)}</div>'


def _imagined_frames(frames: np.ndarray, pair_id: str) -> str:
    last = len(frames) - 1
    figures = []
    for number, frame in enumerate(frames):
        label = {0: "before", last: "after"}.get(number, f"imagined {number}")
        figures.append(
            f"<figure>{_img(frame, f'{label}, pair {pair_id}', FRAME_EDGE)}<figcaption>{label}</figcaption></figure>"
        )
    return f'<div class="film">{"".join(figures)}</div>'


def overlay(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The image dimmed, with the masked part in its colours under a tint and with an outline."""
    hit = np.asarray(mask > 0)
    if hit.shape != image.shape[:2]:
        hit = resize_image((hit * 255).astype(np.uint8), image.shape[:2]) > 127
    grey = image.mean(axis=2, keepdims=True) * 0.45 + 0.25 * image
    out = np.where(hit[..., None], 0.65 * image + 0.35 * np.array([255, 60, 40]), grey)
    padded = np.pad(hit, 1)
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    out[hit & ~inside] = (255, 220, 60)
    return np.clip(out, 0, 255).astype(np.uint8)


def _img(image: np.ndarray, alt: str, edge: int) -> str:
    from PIL import Image

    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"the report takes images as uint8 (H, W, 3), got {image.dtype} {image.shape} for {alt!r}")
    height, width = image.shape[:2]
    if (scale := edge / max(height, width)) < 1:
        image = resize_image(image, (max(1, round(height * scale)), max(1, round(width * scale))))
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, format="JPEG", quality=88, subsampling=0)
    data = base64.b64encode(stream.getvalue()).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" alt="{escape(alt)}" width="{image.shape[1]}" '
        f'height="{image.shape[0]}" loading="lazy">'
    )


def _real(real: RealPairs) -> str:
    out = [f"<h3>{escape(real.title)}</h3><p>{escape(real.text)}</p>"]
    if real.evaluation is not None and (types := real.evaluation.types) is not None:
        shares = []
        for kind, row in types.table.items():
            total = sum(row.values())
            label = "unchanged pairs" if kind == NO_CHANGE else f"{kind} pairs"
            said = "that nothing changed" if kind == NO_CHANGE else f"a {kind} change"
            others = [other for name, other in types.table.items() if name != kind]
            elsewhere = sum(other.get(kind, 0) for other in others)
            count = sum(sum(other.values()) for other in others)
            beside = f"; it says so of {elsewhere} of the {count} others ({elsewhere / count:.0%})" if count else ""
            shares.append(
                f"<li>of {total} {escape(label)}, {row.get(kind, 0)} captions ({row.get(kind, 0) / total:.0%}) say "
                f"{escape(said)}{beside}</li>"
            )
        out.append(
            f"<ul>{''.join(shares)}</ul><p>Right change type: {types.accuracy:.1%} of {types.pairs} pairs; always "
            f"<b>{escape(types.most_frequent)}</b>: {types.chance_most_frequent:.1%}; one of the "
            f"{len(CHANGE_TYPES)} types at random: {1 / len(CHANGE_TYPES):.1%}.</p>" + _confusion(types)
        )
    if real.items:
        out.append(cards(real.items))
    return "".join(out)


# ------------------------------------------------------------------------------------------------------------ record


def _record(report: RunReport) -> str:
    out = []
    if report.evaluations:
        out.append(facts_table("Protocol", report.evaluations[0].protocol))
    out.append(facts_table("Timings", report.timings))
    out.append(facts_table("Environment", report.environment))
    for name, config in report.configs.items():
        text = json.dumps(config, indent=1, ensure_ascii=False, default=str)
        out.append(f"<details><summary>Config: {escape(name)}</summary><pre>{escape(text)}</pre></details>")
    return "".join(out)


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """Names and values under a heading; nothing if there are none."""
    if not facts:
        return ""
    rows = "".join(
        f'<tr><td>{escape(str(name))}</td><td class="text">'
        f"{escape(', '.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<h3>{escape(title)}</h3><div class="scroll"><table><tbody>{rows}</tbody></table></div>'
