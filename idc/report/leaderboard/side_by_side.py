"""Sections below a table of the leaderboard: paired tests between our settings, and measurements of their captioners
(parameters, training, tokens a second, robustness)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from idc.captioning.throughput import Throughput
from idc.evaluation.config import CompareJob
from idc.evaluation.record import EVALUATION, Evaluation, load_evaluation
from idc.evaluation.significance import SystemComparison, compare_evaluations
from idc.metrics.difference_lists import F1
from idc.report.leaderboard.boards import RUN, Board, BoardRow
from idc.report.leaderboard.published_rows import ALL
from idc.report.page import Table

TESTED = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "S_m*", F1)
"""Scores with a paired test."""
MAX_TESTS = 10
"""Number of settings, from the best on, that the best one is tested against."""


@dataclass(frozen=True)
class MeasuredSystems:
    """Measurements of captioners, by the identity of their artifact (:attr:`Evaluation.artifact`).

    Attributes:
        throughput: of captioners that were measured by turns.
        robustness: identity -> what was done to the pairs -> evaluation; "" for the pairs as they are.
    """

    throughput: Throughput | None = None
    robustness: Mapping[str, Mapping[str, Evaluation]] = field(default_factory=dict)


NOTHING_MEASURED = MeasuredSystems()


def read_measured(throughput: str | None, robustness: Sequence[str]) -> MeasuredSystems:
    """Read measured speeds (``jobs/evaluate.py``) and folders of ``jobs/robustness.py``.

    Raises:
        ValueError: they are something else.
    """
    tables: dict[str, Mapping[str, Evaluation]] = {}
    for folder in robustness:
        by_change = {_change(evaluation): evaluation for evaluation in map(load_evaluation, _evaluations(folder))}
        if "" not in by_change or by_change[""].artifact is None:
            raise ValueError(f"--robustness: {folder!r} has no evaluation of an artifact on the pairs as they are")
        tables[by_change[""].artifact] = by_change
    return MeasuredSystems(Throughput.read(throughput) if throughput is not None else None, tables)


def _evaluations(folder: str) -> list[Path]:
    folders = sorted(path.parent for path in Path(folder).glob(f"*/{EVALUATION}"))
    if not folders:
        raise ValueError(f"--robustness: {folder!r} holds no robustness table; `python jobs/robustness.py` writes one")
    return folders


def _change(of: Evaluation) -> str:
    """The change that was made to the pairs of an evaluation; "" if none."""
    data = of.protocol.get("data")
    return str(data.get("variant", "")) if isinstance(data, Mapping) else ""


def side_by_side(board: Board, measured: MeasuredSystems) -> list[Table]:
    """The tables below a table, of our settings on all pairs by the protocol of their evaluations; those without rows
    are left out."""
    rows = [row for row in board.rows if row.kind == RUN and row.evaluations]
    if board.subset != ALL or any(_protocol(row) != board.protocol for row in rows):
        return []
    return [_tests(rows), _captioners(rows, measured)]


def _protocol(row: BoardRow) -> str:
    return str(row.evaluations[0].evaluation.protocol.get("name", "not stated"))


# -- paired tests -------------------------------------------------------------------------------------------------


def _tests(rows: Sequence[BoardRow]) -> Table:
    """The best setting minus each other one, a row for each seed that both have."""
    cells: list[list[str]] = []
    notes: list[str] = []
    metrics: list[str] = []
    comparisons: list[tuple[str, str, SystemComparison]] = []
    for other in rows[1 : 1 + MAX_TESTS]:
        for seed, a, b in _paired_seeds(other, rows[0]):
            try:
                test = compare_evaluations(CompareJob(a=str(a), b=str(b)))
            except ValueError as error:
                notes.append(f"{rows[0].name} and {other.name}: {error}.")
                continue
            comparisons.append((f"{rows[0].name} – {other.name}", seed, test))
            metrics += [name for name in test.metrics if name in TESTED and name not in metrics]
    for name, seed, test in comparisons:
        cells.append([name, seed])
        for metric in metrics:
            if (row := test.metrics.get(metric)) is None:
                cells[-1].append("")
                continue
            between = f"{100 * row.interval.low:+.1f} to {100 * row.interval.high:+.1f}"
            cells[-1].append(f"{100 * row.difference:+.1f} ({between}), p = {row.p:.4f}")
    if comparisons:
        test = comparisons[0][2]
        notes.append(
            "Differences on the same pairs, x100, with 95 % intervals by paired bootstrap "
            f"({test.resamples:,} resamples); p: approximate randomisation, two-sided, {test.exchanges:,} exchanges "
            f"(at least {1 / (1 + test.exchanges):.4f}), not corrected for the number of tests. A test is about the "
            "pairs: the spread over the seeds is in the table above."
        )
    if (left := len(rows) - 1 - MAX_TESTS) > 0:
        notes.append(f"{left} more settings are not tested.")
    return Table(["difference", "seed", *metrics], cells, title="Paired tests", note=" ".join(notes))


def _paired_seeds(setting: BoardRow, other: BoardRow) -> Iterator[tuple[str, Path, Path]]:
    """(Seed, evaluation, evaluation) for the seeds of both; without a common seed the first of each."""
    first, second = ({run.seed: run.folder for run in row.evaluations} for row in (setting, other))
    if shared := [seed for seed in first if seed in second]:
        for seed in shared:
            yield "" if seed is None else str(seed), first[seed], second[seed]
    else:
        names = ["" if row.seeds[0] is None else str(row.seeds[0]) for row in (other, setting)]
        yield " – ".join(names), setting.evaluations[0].folder, other.evaluations[0].folder


# -- captioners ---------------------------------------------------------------------------------------------------


def _captioners(rows: Sequence[BoardRow], measured: MeasuredSystems) -> Table:
    """Training, parameters, speed, robustness: a row per setting of which anything is known."""
    timed = {
        captioner.identity: name
        for name, captioner in (measured.throughput.captioners if measured.throughput else {}).items()
    }
    changes = list(dict.fromkeys(name for table in measured.robustness.values() for name in table if name))
    cells = []
    for row in rows:
        name = next((timed[identity] for identity in _identities(row) if identity in timed), None)
        table = next(
            (measured.robustness[identity] for identity in _identities(row) if identity in measured.robustness), {}
        )
        training = row.evaluations[0].evaluation.training
        speed = ["", ""]
        if measured.throughput is not None and name is not None:
            median, low, high = measured.throughput.tokens_per_second(name)
            speed = [
                measured.throughput.captioners[name].size,
                f"{median:,.0f} ({low:,.0f} to {high:,.0f})",
            ]
        elif not table and training is None:
            continue
        cells.append([row.name, str(training or ""), *speed, *(_robust(table, change) for change in changes)])
    notes = []
    if (speeds := measured.throughput) is not None:
        notes.append(
            f"Tokens a second: {speeds.pairs} pairs x {speeds.tokens} tokens (the longest reference, padding "
            f"included), from images to words, on {speeds.device} with {speeds.cores} cores: the median of "
            f"{len(next(iter(speeds.captioners.values())).seconds)} rounds, in which the captioners took turns, and "
            "the slowest and fastest. Parameters: all numbers in the weights of the artifact; a base model, which is "
            "named, is not in it."
        )
    if changes:
        sizes = sorted({evaluation.pairs for table in measured.robustness.values() for evaluation in table.values()})
        notes.append(
            "Robustness: CIDEr x100 of the first seed with changed images, and its share of that on the clean ones, on "
            f"{' or '.join(map(str, sizes))} pairs."
        )
    head = ["captioner", "training, first seed", "parameters", "tokens a second", *changes]
    return Table(head, cells, title="The captioners", note=" ".join(notes))


def _identities(row: BoardRow) -> list[str]:
    return [run.evaluation.artifact for run in row.evaluations if run.evaluation.artifact is not None]


def _robust(table: Mapping[str, Evaluation], change: str) -> str:
    if change not in table or not (clean := table[""].scores.get("CIDEr")) or math.isnan(clean):
        return ""
    score = table[change].scores["CIDEr"]
    return f"{100 * score:.1f} ({score / clean:.0%})"
