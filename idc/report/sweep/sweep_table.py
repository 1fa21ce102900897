"""A sweep's table with the paper's numbers: its cells as text, and all of it as Markdown."""

from __future__ import annotations

from idc.evaluation.effects import SeededEffect
from idc.evaluation.record import Spread
from idc.report.page import Cell, Table
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


def sweep_table(result: SweepResult) -> Table:
    """The columns of a sweep, differences from the control row, the paper's numbers; baselines after the last row of
    their group."""
    titles = [column.title for column in result.columns]
    effects = [title for title in titles if any(title in row.effects for row in result.rows)]
    paper = [title for title in titles if any(title in row.published for row in result.rows)]
    last = {row.group: row for row in result.rows}
    rows, ours = list[list[object]](), []
    for row in result.rows:
        ours += [] if row.quoted else [len(rows)]
        cells = [Cell(_printed(result, title, row.values.get(title)), title=_each(row.values.get(title)))
                 for title in titles]  # fmt: skip
        rows.append([
            Cell(_joined(row.group, row.label), wide=True), "quoted" if row.quoted else str(len(row.seeds)), *cells,
            *(_effect(row.effects.get(title)) for title in effects), *(_published(row, title) for title in paper),
        ])  # fmt: skip
        for baseline in result.baselines if last[row.group] is row else ():
            if baseline.group == row.group:
                numbers = [f"{baseline.values[title]:.1f}" if title in baseline.values else "" for title in titles]
                name = Cell(_joined(baseline.group, f"baseline, {baseline.name}"), wide=True)
                rows.append([name, "", *numbers, *[""] * len(effects + paper)])
    head = ["row", "seeds", *titles, *(f"{title}, less {result.control}" for title in effects)]
    return Table([*head, *(f"{title} (paper)" for title in paper)], rows, bold=ours)


def meanings(result: SweepResult) -> list[str]:
    """What each column measures."""
    lines = [
        f"{column.title}: {_meaning(column.metric, column.subset)}{'; lower is better' * column.lower_is_better}."
        for column in result.columns
    ]
    if seeds := [effect.seeds for row in result.rows for effect in row.effects.values()]:
        over = "seeds and pairs" if min(seeds) > 1 else "the pairs alone, for these trainings and no others"
        lines.append(f"less {result.control}: difference from that row, with its 95 % interval over {over}.")
    return lines


def baseline_lines(result: SweepResult) -> list[str]:
    """How each baseline was made."""
    return [f"Baseline: {_joined(baseline.group, baseline.name)}, {baseline.text}." for baseline in result.baselines]


def sweep_markdown(result: SweepResult) -> str:
    """The table as GitHub's Markdown, with the lines below it."""
    notes = baseline_lines(result)
    notes += [f"No result: {label}: {why}" for label, why in result.failed.items()]
    return "\n".join([sweep_table(result).markdown(), "", *(f"- {note}" for note in [*notes, cost(result)])])


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
