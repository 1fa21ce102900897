"""Evaluations of several settings as one table in Markdown, and each setting minus one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from idc.evaluation.effects import SeededEffect, pairs_needed, seeded_effect
from idc.evaluation.record import Evaluation, load_evaluation, spread
from idc.evaluation.significance import pairs_to_see
from idc.metrics.difference_lists import F1, INVENTED
from idc.metrics.hallucination import wilson
from idc.report.config import TabulateJob
from idc.report.paper_claims.config import METRIC_NAMES, ClaimMetric
from idc.report.paper_claims.pair_values import (
    MissingError,
    check_comparable,
    evaluations_by_seed,
    load_records,
    values_of_rows,
)
from idc.sweep.config import RIGHT_TYPE, ColumnConfig
from idc.sweep.summary import column_score

_NOTHING = "–"
_MOST_SEEDS = 30


def evaluations_table(job: TabulateJob) -> str:
    """The tables. A row without an evaluation is empty.

    Raises:
        ValueError: no row has an evaluation, or the evaluations are of other pairs or by other rules.
    """
    rows = {name: evaluations_by_seed(pattern) for name, pattern in job.rows.items()}
    if not any(rows.values()):
        raise ValueError(f"rows: there is no evaluation {next(iter(job.rows.values()))}, nor one of another row")
    records = {name: [load_evaluation(path) for path in row.values()] for name, row in rows.items()}
    try:
        check_comparable([record for of_row in records.values() for record in of_row])
    except MissingError as error:
        raise ValueError(str(error)) from None
    lines = _scores(job, records)
    if job.against is not None and rows[job.against]:
        lines += ["", *_differences(job, job.against, rows)]
    return "\n".join(lines) + "\n"


def _scores(job: TabulateJob, records: Mapping[str, Sequence[Evaluation]]) -> list[str]:
    every = [record for of_row in records.values() for record in of_row]
    cells = [[name, str(len(of_row) or _NOTHING), *(_cell(metric, of_row) for metric in job.metrics)]
             for name, of_row in records.items()]  # fmt: skip
    baselines = {name: baseline for record in reversed(every) for name, baseline in record.baselines.items()}
    for name, baseline in baselines.items():
        values = [column_score(_column(metric), baseline) for metric in job.metrics]
        cells.append([f"baseline, {name}", "", *(_NOTHING if v is None else f"{100 * v:.1f}" for v in values)])
    pairs = " or ".join(dict.fromkeys(f"{record.pairs:,}" for record in every))
    return [
        *_markdown(["", "seeds", *map(_heading, job.metrics)], cells),
        "",
        f"{pairs} pairs of {every[0].split}, x100; with several seeds mean ± standard deviation, with one the 95 % "
        "interval over the pairs.",
    ]


def _differences(job: TabulateJob, against: str, rows: Mapping[str, Mapping[str, Path]]) -> list[str]:
    metrics = [metric for metric in job.metrics if metric in METRIC_NAMES]
    cells = []
    for name, row in rows.items():
        seeds = sorted(row.keys() & rows[against].keys())
        if name == against or not seeds:
            continue
        both = [rows[against], row]
        effects = {metric: _effect(metric, both, seeds) for metric in metrics}
        planned = [_planned(effect, job.percent) for effect in effects.values()]
        cells.append([name, str(len(seeds)), *map(_difference, effects.values()), *planned])
    if not cells:
        return [f"No other row has a seed of {against!r}."]
    head = [f"minus {against}", "seeds", *(METRIC_NAMES[metric] for metric in metrics)]
    head += [f"pairs for {job.percent:g} % of {METRIC_NAMES[metric]}" for metric in metrics]
    return [
        *_markdown(head, cells),
        "",
        "Differences on the same pairs and seeds, x100, with 95 % intervals over seeds and pairs, with one seed over "
        f"the pairs alone. Pairs: by this spread a difference of {job.percent:g} % of {against} would be seen with so "
        "many (for the right object: changed ones) in 80 % of repetitions; the fewest seeds that suffice are named.",
    ]


def _effect(metric: ClaimMetric, rows: Sequence[Mapping[str, Path]], seeds: Sequence[str]) -> SeededEffect | None:
    """The last row minus the first; None if the pairs do not have the metric."""
    try:
        return seeded_effect(*values_of_rows(metric, load_records(rows, seeds), rows, seeds))
    except MissingError:
        return None


def _difference(effect: SeededEffect | None) -> str:
    interval = None if effect is None else effect.interval or effect.of_pairs
    if effect is None or interval is None:
        return _NOTHING
    return f"{100 * effect.effect:+.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def _planned(effect: SeededEffect | None, percent: float) -> str:
    if effect is None or effect.control <= 0:
        return _NOTHING
    least = percent / 100 * effect.control
    if effect.components is not None:
        for seeds in range(effect.seeds, _MOST_SEEDS + 1):
            if (pairs := pairs_needed(effect.components, least, seeds)) is not None:
                return f"{pairs:,} with {seeds} seeds"
        return f"no number with {_MOST_SEEDS} seeds"
    assert effect.of_pairs is not None
    return f"{pairs_to_see(effect.of_pairs, effect.pairs, least):,}"


def _cell(metric: str, records: Sequence[Evaluation]) -> str:
    scores = [score for record in records if (score := column_score(_column(metric), record)) is not None]
    if not scores:
        return _NOTHING
    if len(scores) > 1:
        over = spread(scores)
        return f"{100 * over.mean:.1f} ± {100 * over.std:.1f}"
    interval = _interval(metric, records[0])
    between = "" if interval is None else f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
    return f"{100 * scores[0]:.1f}{between}"


def _interval(metric: str, record: Evaluation) -> tuple[float, float] | None:
    """Over the pairs, as the evaluation has it."""
    if metric == RIGHT_TYPE:
        return None if record.types is None else wilson(record.types.accuracy, record.types.pairs)
    if metric == "right_object":
        return None if record.hallucination is None else record.hallucination.interval("object")
    if metric in _OF_LISTS:
        return None if record.differences is None else record.differences.intervals.get(_OF_LISTS[metric])
    interval = record.intervals.get(metric)
    return None if interval is None else (interval.low, interval.high)


_OF_LISTS = {"difference_f1": F1, "invented_share": INVENTED}


def _column(metric: str) -> ColumnConfig:
    return ColumnConfig(title=metric, metric=metric)


def _heading(metric: str) -> str:
    names = {str(name): words for name, words in METRIC_NAMES.items()}
    return "invented" if metric == "invented_share" else names.get(metric, metric)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]
