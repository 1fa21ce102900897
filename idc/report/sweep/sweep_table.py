"""A sweep's table with the paper's numbers: its cells as text, and all of it as Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from idc.evaluation.effects import SeededEffect
from idc.evaluation.record import Spread
from idc.sweep.config import JUDGE, QUESTIONS, RIGHT_TYPE, TOKENS_PER_SECOND, TRAINING_COSTS
from idc.sweep.summary import ResultRow, SweepResult

_MEANINGS = {
    RIGHT_TYPE: "share of the captions that name the right change type",
    "right_object": "share of captions of changed test pairs that name the right object, by all attributes they name",
    "right_attribute": "share of the attributes named in captions of changed test pairs that are the changed object's",
    "difference_f1": "F1 of the differences that captions claim, against the true lists (docs/evaluation.md)",
    "invented_share": "share of the differences that captions claim which is invented",
    "training_samples_per_second": "samples a second of the row's training, over its whole length",
    "training_memory": "peak memory of the row's training in GiB: of the GPU of its first worker, else of its process",
}


@dataclass(frozen=True)
class TableRow:
    """A row as text.

    Attributes:
        name: of the setting or baseline.
        seeds: their number, or "quoted"; empty for a baseline.
        cells: (text, the single values) for each column.
        effects: differences from the control row, for the columns that have any.
        printed: the paper's numbers, for the columns that have any.
        ours: whether it was run here.
    """

    name: str
    seeds: str
    cells: list[tuple[str, str]]
    printed: list[str]
    effects: list[str]
    ours: bool = False


@dataclass(frozen=True)
class SweepTable:
    """The table.

    Attributes:
        titles: of the columns.
        effects: titles of the columns whose differences from the control row are shown.
        paper: titles of the columns for which the paper prints numbers.
        rows: in the order of the sweep, baselines after the last row of their group.
        meanings: (title, what the column measures).
        baselines: how each baseline was made.
    """

    titles: list[str]
    effects: list[str]
    paper: list[str]
    rows: list[TableRow]
    meanings: list[tuple[str, str]]
    baselines: list[str]


def table_of(result: SweepResult) -> SweepTable:
    """The table of a sweep."""
    titles = [column.title for column in result.columns]
    paper = [title for title in titles if any(title in row.published for row in result.rows)]
    effects = [title for title in titles if any(title in row.effects for row in result.rows)]
    last = {row.group: row for row in result.rows}
    rows = []
    for row in result.rows:
        cells = [(_printed(result, title, row.values.get(title)), _each(row.values.get(title))) for title in titles]
        seeds = "quoted" if row.quoted else str(len(row.seeds))
        published = [_published(row, title) for title in paper]
        against = [_effect(row.effects.get(title)) for title in effects]
        rows.append(TableRow(_joined(row.group, row.label), seeds, cells, published, against, not row.quoted))
        for baseline in result.baselines if last[row.group] is row else ():
            if baseline.group == row.group:
                numbers = [f"{baseline.values[title]:.1f}" if title in baseline.values else "" for title in titles]
                name = _joined(baseline.group, f"baseline, {baseline.name}")
                cells = [(number, "") for number in numbers]
                rows.append(TableRow(name, "", cells, [""] * len(paper), [""] * len(effects)))
    meanings = [
        (column.title, _meaning(column.metric, column.subset) + "; lower is better" * column.lower_is_better)
        for column in result.columns
    ]
    if effects:
        fewest = min(row.effects[title].seeds for row in result.rows for title in row.effects)
        over = "seeds and pairs" if fewest > 1 else "the pairs alone, for these trainings and no others"
        meanings.append((f"less {result.control}", f"difference from that row, with its 95 % interval over {over}"))
    return SweepTable(
        titles,
        [f"{title}, less {result.control}" for title in effects],
        paper,
        rows,
        meanings,
        [f"{_joined(baseline.group, baseline.name)}, {baseline.text}" for baseline in result.baselines],
    )


def sweep_markdown(result: SweepResult) -> str:
    """The table as GitHub's Markdown, with the lines below it."""
    table = table_of(result)
    head = ["", "seeds", *table.titles, *table.effects, *(f"{title} (paper)" for title in table.paper)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in table.rows:
        name = row.name.replace("|", "\\|")
        cells = [name, row.seeds, *(text for text, _ in row.cells), *row.effects, *row.printed]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [ordering.sentence() for ordering in result.orderings]
    notes += [f"Baseline: {text}." for text in table.baselines]
    notes += [f"No result: {label}: {why}" for label, why in result.failed.items()]
    return "\n".join([*lines, "", *(f"- {note}" for note in [*notes, cost(result)])])


def cost(result: SweepResult) -> str:
    """The cost of the sweep, in words."""
    spent = result.cost
    gpus = f" and {spent.gpu_hours:.2f} GPU-hours" if spent.gpu_hours else ""
    return (
        f"Cost: {spent.cpu_hours:.2f} CPU-hours{gpus} for {result.trials} trials, {spent.steps} steps, of which "
        f"{spent.shared_steps} served several trials; this start of the command took {result.seconds / 60:.1f} minutes."
    )


def _joined(group: str, name: str) -> str:
    return f"{group}: {name}" if group else name


def _printed(result: SweepResult, title: str, value: Spread | None) -> str:
    if value is None:
        return "–"
    metric = next(column.metric for column in result.columns if column.title == title)
    form = {TOKENS_PER_SECOND: ".0f", **dict.fromkeys(TRAINING_COSTS, ".2f")}.get(metric, ".1f")
    text = f"{value.mean:{form}}"
    return f"{text} ± {value.std:{form}}" if len(value.values) > 1 else text


def _effect(effect: SeededEffect | None) -> str:
    if effect is None:
        return ""
    low, high = effect.interval.low, effect.interval.high
    return f"{100 * effect.effect:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _each(value: Spread | None) -> str:
    return ", ".join(f"{single:.2f}" for single in value.values) if value is not None else ""


def _published(row: ResultRow, title: str) -> str:
    """As papers print: with at least one decimal."""
    if title not in row.published:
        return ""
    text = f"{row.published[title]:g}"
    return text if "." in text else f"{text}.0"


def _meaning(metric: str, subset: str | None) -> str:
    if metric == TOKENS_PER_SECOND:
        return (
            "tokens per second, padding counted, from decoded images to words, measured alone after all trials on the "
            "row's first seed"
        )
    if metric in _MEANINGS:
        return _MEANINGS[metric]
    if metric.startswith(tuple(f"{kind}/" for kind in QUESTIONS)):
        kind, _, measure = metric.partition("/")
        of = f", of {subset}s" if subset else ""
        return f"{measure} of the answers of type {kind}{of}, times 100"
    if metric == JUDGE:
        part = f" with {subset!r}" if subset else ""
        return f"mean of a language model's scores of the captions of the test pairs{part}, 0 to 100"
    return f"{metric} of the test pairs" + (f" with {subset!r}, scored alone" if subset else "")
