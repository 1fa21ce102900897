"""The page of a run, read from its folders: pairs with verdicts, scores with baselines, claims, types, protocol."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from idc.data.images import decode_image
from idc.data.schema import CHANGE_TYPES
from idc.data.store import iter_rows, read_manifest
from idc.evaluation.baselines import load_comparable
from idc.evaluation.record import (
    CONSTANT,
    EVALUATION,
    NEAREST,
    TRAINED,
    TRUTH,
    Baseline,
    Evaluation,
    ScoredCaption,
    SeedSummary,
    Spread,
    aggregate,
    load_evaluation,
    load_predictions,
    spread,
)
from idc.metrics.change_types import UNCLEAR, TypeAgreement
from idc.metrics.scene_scores import F1, INVENTED_CHANGE, MISSED_CHANGE, Hallucination
from idc.report import page as pg
from idc.report.config import ReportJob
from idc.report.pair_cards import HEADLINE, pair_card
from idc.util.atomic import write_text
from idc.util.cores import usable_cores
from idc.util.units import score_text

Others = Mapping[str, Sequence[Evaluation]]
"""Name -> evaluations of another captioner on the same pairs, one per seed."""

_LABELS = {
    CONSTANT: "the best constant caption",
    NEAREST: "the nearest training pair's caption",
    TRAINED: "the trained baseline",
    TRUTH: "the truth in one wording",
}

_OPENING, _SHOWN, _EXTREMES = 6, 12, 4
"""Pairs at the top of the page, of all change types below, and with the best or worst CIDEr."""

_PACKAGES = ("torch", "ray", "deepspeed", "diffusers", "mitsuba", "opencv-python-headless", "pycocoevalcap", "numpy")


def evaluation_page(evaluation: str, pairs: str) -> Path | None:
    """Write the page of one evaluation into its folder, if it is not there yet; None for pairs without images."""
    if not read_manifest(pairs).has_images:
        return None
    path, scores = Path(evaluation) / "report.html", Path(evaluation) / EVALUATION
    if not path.exists() or path.stat().st_mtime < scores.stat().st_mtime:
        title = "Image difference captioning: an evaluation"
        job = ReportJob(out=str(path), title=title, evaluations=(evaluation,), pairs=pairs)
        write_text(path, collect(job).html())
    return path


def collect(job: ReportJob) -> pg.Page:
    """The page of a run, read from its folders.

    Raises:
        ValueError: a folder lacks its files, or an evaluation of ``compare`` is of other pairs.
    """
    evaluations = [load_evaluation(folder) for folder in job.evaluations]
    captions = load_predictions(job.evaluations[0])
    chosen = {
        "A few of every kind": spread_over_types(captions, _SHOWN),
        "Best by CIDEr": by_score(captions, _EXTREMES, best=True),
        "Worst by CIDEr": by_score(captions, _EXTREMES, best=False),
    }
    opening = spread_over_types(captions, _OPENING)
    cards = gallery([row for rows in (opening, *chosen.values()) for row in rows], job.pairs, job.procedures)
    galleries = {title: [cards[row.pair_id] for row in rows] for title, rows in chosen.items()}
    first, others = evaluations[0], _others(job, evaluations[0], captions)
    timings = {name: f"{seconds:.1f} s" for name, seconds in first.seconds.items()}
    sections = [
        pairs_section([cards[row.pair_id] for row in opening], galleries),
        scores_section(evaluations, others),
        claims_section(evaluations, others),
        types_section(evaluations),
        record_section(first.protocol, timings, environment()),
    ]
    return pg.Page(job.title, "", sections, pg.SCORES_NOTE)


def _others(job: ReportJob, first: Evaluation, captions: Sequence[ScoredCaption]) -> dict[str, list[Evaluation]]:
    if taken := job.compare.keys() & {"model", TRUTH, *first.baselines}:
        raise ValueError(f"compare.{min(taken)}: the page has another row of this name; name the captioner")
    references = {row.pair_id: row.references for row in captions}
    same = (references, first.split, str(first.protocol.get("name")), list(first.scores))
    return {
        name: [load_comparable(folder, *same, f"compare.{name}") for folder in folders]
        for name, folders in job.compare.items()
    }


def spread_over_types(captions: Sequence[ScoredCaption], count: int) -> list[ScoredCaption]:
    """``count`` pairs, one of each change type in turn, in their given order."""
    waiting: dict[str | None, list[ScoredCaption]] = {}
    for row in captions:
        waiting.setdefault(row.change_type, []).append(row)
    turns = zip_longest(*waiting.values())
    return [row for turn in turns for row in turn if row is not None][:count]


def by_score(captions: Sequence[ScoredCaption], count: int, best: bool) -> list[ScoredCaption]:
    """The pairs with the highest or lowest CIDEr, ties in their given order."""
    scored = [row for row in captions if HEADLINE in row.scores]
    return sorted(scored, key=lambda row: -row.scores[HEADLINE] if best else row.scores[HEADLINE])[:count]


def gallery(captions: Iterable[ScoredCaption], pairs: str, procedures: str | None) -> dict[str, pg.Card]:
    """The pairs with their images and, if they have one, their procedure; all must be in ``pairs``."""
    wanted = {row.pair_id: row for row in captions}
    split = {row.split for row in wanted.values()}
    only = split.pop() if len(split) == 1 and split != {"all"} else None
    images = _find(pairs, ("pair_id", "before", "after", "mask", "source"), only, set(wanted))
    if lost := sorted(wanted.keys() - images.keys()):
        raise ValueError(
            f"{pairs} lacks {len(lost)} of the captioned pairs: {', '.join(lost[:5])}; give the evaluated pairs"
        )
    columns = ("pair_id", "frames", "confidence", "keyframes")
    films = _find(procedures, columns, only, set(wanted)) if procedures is not None else {}
    cards = {}
    for name, row in wanted.items():
        pair, film = images[name], films.get(name)
        mask = decode_image(pair["mask"]).max(axis=2) if pair["mask"] else None
        frames = [decode_image(frame) for frame in film["frames"]] if film is not None else []
        whole = film is not None and len(frames) == len(film["confidence"]) + 2
        cards[name] = pair_card(
            name,
            decode_image(pair["before"]),
            decode_image(pair["after"]),
            row.caption,
            references=row.references,
            change_type=row.change_type,
            named_type=row.named_type,
            mask=mask if mask is not None and mask.any() else None,
            frames=frames,
            confidence=film["confidence"] if film is not None and whole else (),
            keyframes=film["keyframes"] if film is not None else (),
            scores=row.scores,
            nearest=row.nearest,
        )
    return cards


def environment() -> dict[str, str]:
    """The machine and the versions: Python, system, cores, memory, packages."""
    facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    facts["cores"] = str(usable_cores())
    if hasattr(os, "sysconf"):
        facts["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _find(path: str, columns: Sequence[str], split: str | None, ids: set[str]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for row in iter_rows(path, columns, split, batch_size=32):
        if row["pair_id"] in ids:
            rows[row["pair_id"]] = row
            if len(rows) == len(ids):
                break
    return rows


def scores_section(evaluations: Sequence[Evaluation], others: Others) -> pg.Section:
    """Scores of all captioners and baselines, as tiles and as tables.

    Args:
        evaluations: of the model, one per seed.
    """
    if not evaluations or not evaluations[0].scores:
        return pg.Section("Scores", [])
    first, captioners = evaluations[0], {"model": evaluations, **others}
    what = {"model": str(first.training or "")}
    for name, of in others.items():
        what[name] = str(of[0].training or f"the captions in {of[0].protocol.get('captioner')}")
    scored = {name: aggregate(of) for name, of in captioners.items()}
    truth = {TRUTH: first.upper_bound} if first.upper_bound is not None else {}
    for name, baseline in {**first.baselines, **truth}.items():
        subsets = {part: _spreads(subset.scores) for part, subset in baseline.subsets.items()}
        scored[name] = SeedSummary(scores=_spreads(baseline.scores), subsets=subsets, type_accuracy=None)
        what[name] = baseline.what
    metrics = sorted(first.scores, key=lambda metric: metric != HEADLINE)
    rows = [[name, *(_cell(of.scores.get(metric)) for metric in metrics)] for name, of in scored.items()]
    quoted = {name: f" (“{baseline.caption}”)" for name, baseline in first.baselines.items() if baseline.caption}
    warned, turned = [], []
    for name, of in {"the model": evaluations, **others}.items():
        if shares := [text for evaluation in of if (text := evaluation.warnings()) is not None]:
            warned.append(f"{name}: {' / '.join(dict.fromkeys(shares))}")
        turned += [f"{name}: {evaluation.reversal}" for evaluation in of if evaluation.reversal is not None]
    return pg.Section("Scores", [
        pg.Tiles([*_tiles(first, scored, what), *_difference_tile(evaluations)]),
        pg.Text(note=_about(evaluations)),
        pg.Table(["", *metrics], rows, bold=[0]),
        pg.Bullets([f"{name}{quoted.get(name, '')}: {text}." for name, text in what.items() if text]),
        pg.Bullets(warned, note="With the warning that they are unlike the training data:"),
        pg.Bullets(turned, note="Of pairs that were also captioned with their images swapped:"),
        _subsets(first, scored, metrics),
    ])  # fmt: skip


def _about(evaluations: Sequence[Evaluation]) -> str:
    first, seeds = evaluations[0], len(evaluations)
    over = f"mean and standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    empty = f", {first.empty_captions} of them empty" if first.empty_captions else ""
    return (
        f"{first.pairs} pairs of the split {first.split} with {first.references} references, {over}. "
        f"{first.distinct_captions} distinct captions{empty}. The constant baseline uses nothing of a pair, the "
        "nearest-neighbour baseline only its thumbnails: a captioner has to be well above both. A trained baseline is "
        "a plain captioner: what a method adds is its distance from that one."
    )


def _mean(value: Spread, unit: str = "") -> str:
    """Times 100, with its deviation if there is more than one value."""
    text = score_text(value.mean)
    if math.isnan(value.mean):
        return text
    return f"{text}{unit} ± {100 * value.std:.1f}" if len(value.values) > 1 else text + unit


def _cell(value: Spread | None) -> pg.Cell:
    """The mean, and the single values for the pointer."""
    if value is None:
        return pg.Cell("")
    return pg.Cell(_mean(value), title=", ".join(map(score_text, value.values)) if len(value.values) > 1 else "")


def _spreads(scores: Mapping[str, float]) -> dict[str, Spread]:
    return {name: spread([value]) for name, value in scores.items()}


def _tiles(first: Evaluation, scored: Mapping[str, SeedSummary], what: Mapping[str, str]) -> list[tuple[str, str, str]]:
    tiles, model = [], scored["model"]
    for name, of in scored.items() if HEADLINE in first.scores else ():
        value, ours = of.scores[HEADLINE], model.scores[HEADLINE]
        times = f"the model has {ours.mean / value.mean:.1f} times as much" if value.mean > 0 and name != TRUTH else ""
        tiles.append((f"{HEADLINE}-D, {_LABELS.get(name, name)}", _mean(value), what[name] if of is model else times))
    if model.type_accuracy is not None and first.types is not None:
        chance = f"always {first.types.most_frequent!r} gives {first.types.chance_most_frequent:.0%}"
        label = f"captions that name the right change type, of {first.types.pairs} pairs"
        tiles.append((label, _mean(model.type_accuracy, "%"), chance))
    return tiles


def _difference_tile(evaluations: Sequence[Evaluation]) -> list[tuple[str, str, str]]:
    differences = [evaluation.differences for evaluation in evaluations if evaluation.differences is not None]
    if not differences:
        return []
    low, high = differences[0].intervals.get(F1, (0.0, 0.0))
    interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f}; " if len(differences) == 1 and high else ""
    baselines = [f"{name} {100 * baseline.differences.f1:.1f}" for name, baseline in evaluations[0].baselines.items()
                 if baseline.differences is not None]  # fmt: skip
    label = f"{F1}, by {differences[0].protocol}, of {differences[0].pairs} pairs"
    value = _mean(spread([scores.f1 for scores in differences]))
    return [(label, value, f"{interval}{', '.join(baselines)}".rstrip("; "))]


def _subsets(first: Evaluation, scored: Mapping[str, SeedSummary], metrics: Sequence[str]) -> pg.Table:
    rows: list[list[str | pg.Cell]] = []
    bold = []
    for name, subset in first.subsets.items():
        for captioner, of in scored.items():
            if captioner == "model" or name in ("change", "no change"):
                bold += [len(rows)] if captioner == "model" else []
                facts = [name, str(subset.pairs)] if captioner == "model" else ["", ""]
                cells = [_cell(of.subsets.get(name, {}).get(metric)) for metric in metrics]
                rows.append([*facts, captioner, *cells])
    note = (
        "Each subset is scored alone, as the official code does: CIDEr's document frequencies are those of the subset."
    )
    return pg.Table(
        ["subset", "pairs", "captions by", *metrics], rows, bold=bold, title="Subsets", folded=True, note=note
    )


def claims_section(evaluations: Sequence[Evaluation], others: Others) -> pg.Section:
    """What the captions of every captioner and baseline claim (:mod:`idc.metrics.scene_scores`), with intervals, or
    with deviations if there are several seeds."""
    captioners: dict[str, Sequence[Evaluation | Baseline]] = {"model": evaluations, **others}
    captioners |= {name: [baseline] for name, baseline in evaluations[0].baselines.items()}
    named = {name: [of.hallucination for of in per_seed if of.hallucination is not None]
             for name, per_seed in captioners.items()}  # fmt: skip
    if not named["model"]:
        return pg.Section("Right object, right attributes", [])
    rates = named["model"][0].rates()
    rows = [[name, *(_claim_cell(claims, rate) for rate in rates)] for name, claims in named.items() if claims]
    rows.append(["chance, model", *(f"{rate.chance:.1%}" for rate in rates.values())])
    note = (
        "What the captions say of the changed object, compared with the scene that was rendered. object: the caption "
        "names at least one attribute of the changed object, and all it names are right. attribute: of all attributes "
        "named. In brackets 95 % intervals (Wilson, at most one case per pair); with several seeds, mean and standard "
        "deviation. chance: the same captions dealt out to the pairs at random."
    )
    head = ["", *(f"{name} (to be low)" if name in (INVENTED_CHANGE, MISSED_CHANGE) else name for name in rates)]
    return pg.Section("Right object, right attributes", [pg.Table(head, rows, note=note, bold=[0])])


def _claim_cell(hallucinations: Sequence[Hallucination], name: str) -> str:
    """The rate with its interval, or its mean over several seeds with their deviation."""
    rates = [hallucination.rates().get(name) for hallucination in hallucinations]
    values = [rate.rate for rate in rates if rate is not None and rate.total]
    if not values:
        return "–"  # nothing of the kind was claimed
    if len(values) > 1:
        over = spread(values)
        return f"{over.mean:.1%} ± {100 * over.std:.1f}"
    low, high = hallucinations[0].interval(name)
    return f"{values[0]:.1%} ({100 * low:.1f} to {100 * high:.1f})"


def types_section(evaluations: Sequence[Evaluation]) -> pg.Section:
    """How often the captions name the right change type, and what they name instead."""
    agreements = [evaluation.types for evaluation in evaluations if evaluation.types is not None]
    if not agreements or len(agreements) < len(evaluations):
        return pg.Section("Change types", [])
    first = agreements[0]
    accuracy = _mean(spread([agreement.accuracy for agreement in agreements]), "%")
    note = (
        f"{accuracy} of {first.pairs} captions name the right change type, judged by their words. Always naming "
        f"“{first.most_frequent}” gives {first.chance_most_frequent:.1%}."
    )
    rows = [[kind, _cell(spread([agreement.per_type[kind] for agreement in agreements]))] for kind in first.per_type]
    table = pg.Table(["type", "share of its captions that name it"], rows, note=note)
    return pg.Section("Change types", [table, _confusion(first)])


def _confusion(types: TypeAgreement) -> pg.Table:
    columns = [kind for kind in (*CHANGE_TYPES, UNCLEAR) if any(row.get(kind) for row in types.table.values())]
    rows = []
    for actual, row in types.table.items():
        cells = []
        for kind in columns:
            color, share = "29,122,70" if kind == actual else "179,55,46", row.get(kind, 0) / sum(row.values())
            cells.append(pg.Cell(str(row.get(kind, 0) or "·"), color=f"rgba({color},{0.5 * share:.2f})"))
        rows.append([actual, *cells])
    note = "Captions by the right type (rows) and the type that they name (columns)."
    return pg.Table(["", *columns], rows, title="What is named instead", folded=True, note=note)


def pairs_section(opening: Sequence[pg.Card], galleries: Mapping[str, Sequence[pg.Card]]) -> pg.Section:
    """The first pairs, and further ones below their headings."""
    note = pg.html_join([
        "The first evaluated pairs of each change type in turn, not selected by score, and below them others. A "
        "caption is ", pg.styled("said right small", "green"), " if its words name the right kind of change and ",
        pg.styled("said wrong small", "red"), " if not; words that are in no reference are dotted. Under each frame of "
        "the procedure is its confidence; key frames are framed.",
    ])  # fmt: skip
    folded = [pg.Cards(cards, title=f"{title} ({len(cards)})", folded=True) for title, cards in galleries.items()]
    return pg.Section("Pairs and their captions", [pg.Text(note=note), pg.Cards(opening), *folded])


def record_section(
    protocol: Mapping[str, object], timings: Mapping[str, str], machine: Mapping[str, str]
) -> pg.Section:
    """How the numbers were made."""
    facts = {"Protocol": protocol, "Timings of the evaluation": timings, "Environment": machine}
    blocks = [pg.Facts(rows, title=title, folded=True) for title, rows in facts.items()]
    return pg.Section("Protocol and environment", blocks)
