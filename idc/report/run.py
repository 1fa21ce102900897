"""The sections of a run's page: pairs with verdicts, scores with baselines, claims, change types, how it was made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from idc.data.schema import CHANGE_TYPES
from idc.evaluation.baselines import CONSTANT, NEAREST, TRAINED, TRUTH
from idc.evaluation.record import Baseline, Evaluation, SeedSummary, Spread, aggregate, spread
from idc.metrics.changes import UNCLEAR, TypeAgreement
from idc.metrics.difference_lists import F1
from idc.metrics.hallucination import INVENTED, MISSED, Hallucination
from idc.report import page as pg
from idc.report.pair_cards import HEADLINE
from idc.util.units import score_text

Others = Mapping[str, Sequence[Evaluation]]
"""Name -> evaluations of another captioner on the same pairs, one per seed."""

_LABELS = {
    CONSTANT: "the best constant caption",
    NEAREST: "the nearest training pair's caption",
    TRAINED: "the trained baseline",
    TRUTH: "the truth in one wording",
}


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
    warned = []
    for name, of in {"the model": evaluations, **others}.items():
        if shares := [text for evaluation in of if (text := evaluation.warnings()) is not None]:
            warned.append(f"{name}: {' / '.join(dict.fromkeys(shares))}")
    return pg.Section("Scores", [
        pg.Tiles([*_tiles(first, scored, what), *_difference_tile(evaluations)]),
        pg.Text(note=_about(evaluations)),
        pg.Table(["", *metrics], rows, bold=[0]),
        pg.Bullets([f"{name}{quoted.get(name, '')}: {text}." for name, text in what.items() if text]),
        pg.Bullets(warned, note="With the warning that they are unlike the training data:"),
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
    """Every subset of the model; changed and unchanged pairs of the others too."""
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
    """What the captions of every captioner and baseline claim (:mod:`idc.metrics.hallucination`), with intervals, or
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
    head = ["", *(f"{name} (to be low)" if name in (INVENTED, MISSED) else name for name in rates)]
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
    """Captions by the right type and the type that they name."""
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
