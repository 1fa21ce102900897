"""The leaderboard's tables: settings of runs with mean and spread over their seeds, baselines, and published rows.

Numbers of different data, splits, subsets or protocols are in different tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from idc.data.store import fingerprint
from idc.evaluation.answers import RESULT as ANSWERS
from idc.evaluation.answers import AnswerScores
from idc.evaluation.provenance import UNKNOWN_COMMIT
from idc.evaluation.published_rows import ALL, DataSet, load_published, published_rows
from idc.evaluation.record import EVALUATION, TRUTH, Baseline, Evaluation, Interval, Spread, spread
from idc.metrics.scene_scores import F1, wilson
from idc.report.leaderboard.scored_runs import ScoredRuns, find, read_scored_runs
from idc.util import logs
from idc.util.model_faults import first_error

RUN, BASELINE, UPPER_BOUND, PAPER = "run", "baseline", "upper bound", "published"
"""Kinds of rows."""

ORDER = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "S_m*")
TYPE_ACCURACY = "right type"
"""Share of captions that name the right change type."""
CLAIMS = {"right object": "object", "right attribute": "attribute"}
"""Columns of :mod:`idc.metrics.scene_scores` where the truth is known."""


@dataclass(frozen=True)
class BoardRow:
    """A row of a table.

    Attributes:
        kind: run, baseline, upper bound or published.
        source: paper and table, or the setting's supervision and what distinguishes it.
        values: metric -> its values over the seeds, in printed units.
        pairs: scored pairs, if known.
        mark: what a reader must know before comparing; ``footnote``: printed once below the table.
        setting: fingerprint of a run's setting; the rows of one setting have the same ``origin``: how it was made.
        intervals: metric -> 95 % interval over the pairs, of the first seed, in printed units, where it is known.
    """

    kind: str
    name: str
    source: str
    values: dict[str, Spread]
    seeds: tuple[int | None, ...] = ()
    pairs: int | None = None
    mark: str = ""
    footnote: str = ""
    setting: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """A table of one split, variant, subset and protocol, whose numbers may be compared; best rows first, by CIDEr or
    else by the last column."""

    split: str
    variant: str
    subset: str
    protocol: str
    metrics: tuple[str, ...]
    rows: tuple[BoardRow, ...]

    @property
    def footnotes(self) -> list[str]:
        return [note for note in dict.fromkeys(row.footnote for row in self.rows) if note]

    @property
    def title(self) -> str:
        subset = "all pairs" if self.subset == ALL else self.subset
        return ", ".join(filter(None, [self.split, self.variant, subset])) + f"; protocol {self.protocol}"


@dataclass
class DataSetPage:
    """Contents of the page of one data set."""

    key: str
    title: str
    official: DataSet | None
    boards: list[Board] = field(default_factory=list)
    scored: list[ScoredRuns] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather_boards(runs: Sequence[str]) -> list[DataSetPage]:
    """The pages of all data sets that runs were scored on, and of all that have published rows.

    Args:
        runs: folders (or patterns of them) that are searched for evaluations and scored answers, at any depth.

    Raises:
        ValueError: a folder is missing or holds no evaluation. An evaluation that cannot be read, or whose data set is
            not known, is left out with a note, unless there is no other.
    """
    official = load_published().data_sets
    scored: list[ScoredRuns] = []
    answered: list[tuple[Path, AnswerScores]] = []
    faults: list[str] = []
    for folder in find(runs):
        try:
            if (folder / ANSWERS).exists():
                answered.append((folder, _read_answers(folder / ANSWERS)))
            if (folder / EVALUATION).exists():
                scored.append(read_scored_runs(folder))
        except (ValueError, OSError) as error:
            faults.append(str(error))
    if faults and not (scored or answered):
        raise ValueError("\n".join(faults))
    for fault in faults:
        logs.event("left_out", f"left out: {fault}", "warning")
    pages: dict[str, DataSetPage] = {}
    for run in scored:
        page = pages.setdefault(run.key, DataSetPage(run.key, run.title, official.get(run.key)))
        same = run.evaluation.fingerprint
        if same and (twin := next((o for o in page.scored if o.evaluation.fingerprint == same), None)):
            page.notes.append(f"{run.folder} is the same evaluation as {twin.folder} and is counted once")
        else:
            page.scored.append(run)
    for key in (*official, *(result.data_set for _, result in answered)):
        pages.setdefault(key, DataSetPage(key, official[key].title if key in official else key, official.get(key)))
    for page in pages.values():
        rows = [*_runs(page), *_compared(page), *_published(page.key)]
        for folder, result in answered:
            rows += _answers(folder, result) if result.data_set == page.key else ()
        page.boards = _boards(rows)
    return sorted(pages.values(), key=lambda page: (not page.scored, page.title))


BoardKey = tuple[str, str, str, str]
"""Split, variant, subset, protocol: a table."""


def _runs(page: DataSetPage) -> Iterator[tuple[BoardKey, BoardRow]]:
    settings: dict[str, list[ScoredRuns]] = {}
    for run in page.scored:
        settings.setdefault(run.setting, []).append(run)
    for runs in settings.values():
        runs.sort(key=lambda run: (run.seed is None, run.seed or 0, str(run.folder)))
        first = runs[0].evaluation
        row = _setting_row(page, runs)
        lost = next(filter(None, (_unrecorded(run.evaluation.protocol.get("commit")) for run in runs)), "")
        for subset, pairs in _subset_sizes(first).items():
            scores = [_scores(run.evaluation, subset)[0] for run in runs]
            if values := _over_seeds(scores):
                typed = first.types.pairs if TYPE_ACCURACY in values and first.types is not None else pairs
                marks = [row.mark, _unofficial(page.official, first.split, subset, pairs)]
                marks += [f"{TYPE_ACCURACY}: of {typed:,} pairs"] if typed != pairs else []
                yield (
                    _board_key(runs[0], subset),
                    replace(
                        row, values=values, pairs=pairs, mark=_joined(*marks, lost), intervals=_scores(first, subset)[1]
                    ),
                )
        for protocol in first.extra_protocols:
            values = _over_seeds([_defined(run.evaluation.extra_protocols[protocol]) for run in runs])
            mark = _joined(row.mark, _unofficial(page.official, first.split, ALL, first.pairs), lost)
            board_key = (*_board_key(runs[0], ALL)[:3], protocol)
            yield board_key, replace(row, values=values, pairs=first.pairs, mark=mark)


def _over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The metrics that all seeds have, in printed units."""
    shared = [metric for metric in scores[0] if all(metric in of_seed for of_seed in scores)]
    return {metric: spread([100 * of_seed[metric] for of_seed in scores]) for metric in shared}


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _setting_row(page: DataSetPage, runs: Sequence[ScoredRuns]) -> BoardRow:
    first, seeds = runs[0], tuple(run.seed for run in runs)
    protocols = [run.evaluation.protocol for run in runs]
    others = [other.settings for other in page.scored if other.settings.get("system") == first.settings.get("system")]
    training = first.evaluation.training
    taught = f"supervision: {training.supervision}" if training is not None and training.supervision else ""
    source = _joined(taught, _differences(first.settings, others) or str(protocols[0].get("captioner", "")))

    def recorded(key: str, separator: str) -> str:
        return separator.join(dict.fromkeys(text for protocol in protocols if (text := str(protocol.get(key) or ""))))

    return BoardRow(
        kind=RUN,
        name=first.name,
        source=source,
        values={},
        seeds=seeds,
        mark="a seed occurs twice" if len(set(seeds)) < len(seeds) and None not in seeds else "",
        setting=first.setting,
        origin={
            "folders": ", ".join(str(run.folder) for run in runs),
            "settings": source,
            "selected by": recorded("selection", "; "),
            "evaluation": recorded("command", "; ") or "not recorded",
            "training": _joined(*(run.training for run in runs)) or "not recorded",
            "commit": recorded("commit", ", "),
            "pairs": f"{protocols[0].get('pairs', '')} ({first.data})",
        },
    )


def _compared(page: DataSetPage) -> Iterator[tuple[BoardKey, BoardRow]]:
    """The baselines and the upper bound of every data and number of pairs that runs were scored on, once each."""
    seen: set[str] = set()
    for run in page.scored:
        compared = [(BASELINE, name, baseline) for name, baseline in run.evaluation.baselines.items()]
        compared += [(UPPER_BOUND, TRUTH, run.evaluation.upper_bound)] if run.evaluation.upper_bound else []
        for (kind, name, other), (subset, pairs) in product(compared, _subset_sizes(run.evaluation).items()):
            scores, intervals = _scores(other, subset)
            # Every run scores the baselines anew: a difference in the last bits must not make a second row.
            rounded = {metric: round(value, 9) for metric, value in scores.items()}
            board_key = _board_key(run, subset)
            mark = fingerprint(board_key, name, pairs, rounded, run.data)
            if scores and mark not in seen:
                seen.add(mark)
                yield (
                    board_key,
                    BoardRow(
                        kind=kind,
                        name=f"{kind}: {name}",
                        source=repr(other.caption) if other.caption else str(other.training or ""),
                        footnote=f"{kind}, {name}: {other.what}.",
                        values={metric: spread([100 * value]) for metric, value in scores.items()},
                        pairs=pairs,
                        mark=_unofficial(page.official, run.evaluation.split, subset, pairs),
                        intervals=intervals if kind == BASELINE else {},
                    ),
                )


def _answers(folder: Path, result: AnswerScores) -> Iterator[tuple[BoardKey, BoardRow]]:
    for measures in result.measures:
        question = {"binary": "change or not"}.get(measures.type, measures.type)
        board_key = ("test", "", f"{question}, {measures.of}" if measures.of else question, "answers")
        scores, constant = ({metric: spread([value]) for metric, value in values.items()}
                            for values in (measures.scores, measures.baseline))  # fmt: skip
        unread = f"{measures.unreadable} unreadable predictions count as wrong" if measures.unreadable else ""
        mark = "; ".join(filter(None, [unread, _unrecorded(result.commit)]))
        yield board_key, BoardRow(RUN, str(folder), result.answers, scores, pairs=measures.questions, mark=mark)
        what = f"always the most frequent answer ({measures.baseline_answer!r})"
        yield board_key, BoardRow(BASELINE, "baseline: constant", what, constant, pairs=measures.questions)


def _published(data_set: str) -> Iterator[tuple[BoardKey, BoardRow]]:
    for row in published_rows(data_set):
        table, paper = row.table, load_published().papers[row.table.paper]
        cited = f"{paper.method} paper, {table.table}"
        yield (
            ("test", table.variant, table.subset, table.protocol),
            BoardRow(
                kind=PAPER,
                name=row.method,
                source=f"{cited}, its own method" if row.own else cited,
                values={metric: spread([value]) for metric, value in row.values.items()},
                footnote=f"{cited}: {table.note}" if table.note else "",
            ),
        )


def _board_key(run: ScoredRuns, subset: str) -> BoardKey:
    return (run.evaluation.split, run.variant, subset, str(run.evaluation.protocol.get("name", "not stated")))


def _subset_sizes(evaluation: Evaluation) -> dict[str, int]:
    return {ALL: evaluation.pairs, **{name: subset.pairs for name, subset in evaluation.subsets.items()}}


def _scores(of: Evaluation | Baseline, subset: str) -> tuple[dict[str, float], dict[str, Interval]]:
    """Scores and shares as fractions, and of all pairs their intervals, times 100: by bootstrap those of scores and
    difference lists, Wilson's those of shares."""
    if subset != ALL:
        return _defined(of.subsets[subset].scores) if subset in of.subsets else {}, {}
    values = _defined(of.scores)
    ends: dict[str, tuple[float, float]] = {}
    if isinstance(of, Evaluation):
        ends = {name: (interval.low, interval.high) for name, interval in of.intervals.items()}
    if of.types is not None:
        values[TYPE_ACCURACY], ends[TYPE_ACCURACY] = of.types.accuracy, wilson(of.types.accuracy, of.types.pairs)
    if (claims := of.hallucination) is not None:
        shares = {name: claims.rates()[rate] for name, rate in CLAIMS.items()}
        values |= {name: share.rate for name, share in shares.items()}
        ends |= {name: claims.interval(CLAIMS[name]) for name, share in shares.items() if share.total}
    if of.differences is not None:
        values[F1] = of.differences.f1
        ends |= {F1: of.differences.intervals[F1]} if F1 in of.differences.intervals else {}
    return values, {name: Interval(low=100 * low, high=100 * high) for name, (low, high) in ends.items()}


def _defined(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if not math.isnan(value)}


def _unofficial(official: DataSet | None, split: str, subset: str, pairs: int) -> str:
    """A mark for a number of pairs that is not the official split's."""
    if official is None or split != "test":
        return ""
    expected = official.test.get(subset)
    return f"{pairs:,} pairs, the official split has {expected:,}" if expected not in (None, pairs) else ""


def _unrecorded(commit: Any) -> str:
    """A mark for numbers of which nobody knows what program made them."""
    return "commit of the program not recorded" if commit in (None, "", UNKNOWN_COMMIT) else ""


def _differences(settings: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The settings by which this one differs from the others of its system on the page; at most six."""
    keys = [key for key in settings if any(other.get(key, None) != settings[key] for other in others)]
    shown = [f"{key} = {settings[key]}" for key in keys[:6]]
    return ", ".join([*shown, *([f"and {len(keys) - 6} more"] if len(keys) > 6 else [])])


def _boards(rows: Sequence[tuple[BoardKey, BoardRow]]) -> list[Board]:
    """The tables; rows best first (of MAE the lowest), those without the number last."""
    tables: dict[BoardKey, list[BoardRow]] = {}
    for board_key, row in rows:
        tables.setdefault(board_key, []).append(row)
    boards = []
    for board_key, board_rows in tables.items():
        metrics = dict.fromkeys(metric for row in board_rows for metric in row.values)
        columns = (*(name for name in ORDER if name in metrics), *(name for name in metrics if name not in ORDER))
        lead = "CIDEr" if "CIDEr" in columns else columns[-1]
        sign = 1.0 if lead == "MAE" else -1.0

        def by_lead(row: BoardRow, lead: str = lead, sign: float = sign) -> float:
            return sign * row.values[lead].mean if lead in row.values else math.inf

        boards.append(Board(*board_key, columns, tuple(sorted(board_rows, key=by_lead))))
    return sorted(boards, key=lambda b: (b.split != "test", b.split, b.variant, b.subset != ALL))


def _read_answers(path: Path) -> AnswerScores:
    try:
        return AnswerScores.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        fault = f"{path} has no answers of this version ({first_error(error)})"
        raise ValueError(f"{fault}; score them again") from None
