"""The result of a sweep: its table, mean and spread over the seeds next to the paper's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from idc.evaluation.effects import SeededEffect
from idc.evaluation.record import Baseline, Evaluation, Spread, load_evaluation, spread
from idc.sweep.chain import Step
from idc.sweep.config import (
    DIFFERENCE_RATES,
    JUDGE,
    RIGHT_CLAIMS,
    RIGHT_TYPE,
    TOKENS_PER_SECOND,
    TRAINING_COSTS,
    ColumnConfig,
    PlotConfig,
    RowConfig,
    SweepJob,
)
from idc.sweep.effects import PAIRED, effect
from idc.sweep.plan import TrialPlan

_ANSWERS = "answers"
"""The result of the step that asks questions, among what is measured."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TrialResult(_Record):
    """The result file of a finished trial."""

    label: str
    steps: list[str]
    """Names of its steps, in order."""
    evaluation: str
    """Name of the step of its evaluation, a folder among all steps."""

    def scores(self, store: Path) -> dict[str, float]:
        """Scores of the held-out split, as fractions."""
        return load_evaluation(store / self.evaluation).scores


class SearchedTrial(_Record):
    """A trial of a search."""

    settings: dict[str, Any]
    value: float | None
    """Searched validation metric; the last one measured if the trial was stopped early."""
    step: int
    """Step at which it was measured."""
    state: str
    """running, finished, stopped early, or the error."""


class ResultRow(_Record):
    """A row of the table."""

    label: str
    settings: dict[str, Any]
    seeds: list[int]
    """Seeds of the finished trials."""
    values: dict[str, Spread | None]
    """Column title -> mean and spread over the seeds; scores times 100."""
    effects: dict[str, SeededEffect] = {}
    """Column title -> difference from the control row, over the seeds that both have."""
    published: dict[str, float]
    group: str = ""
    quoted: bool = False
    series: str = ""
    x: float | None = None


class BaselineRow(_Record):
    """A baseline on the pairs that a group of rows is scored on."""

    name: str
    group: str
    values: dict[str, float]
    """Column title -> score times 100."""
    text: str
    """How it is computed."""


class Cost(_Record):
    """Core and GPU hours of all steps, each counted once: training loops, building and scoring. Work that a killed
    process had not yet written to a checkpoint is not included."""

    cpu_hours: float
    gpu_hours: float
    steps: int
    shared_steps: int
    """Number of steps that more than one trial needed."""


class SweepResult(_Record):
    """The contents of a sweep's page."""

    name: str
    title: str
    paper: str
    note: str
    system: str
    columns: list[ColumnConfig]
    control: str | None = None
    rows: list[ResultRow]
    plot: PlotConfig | None
    baselines: list[BaselineRow]
    cost: Cost
    trials: int
    failed: dict[str, str]
    """Label of a trial without a result -> the error."""
    searched: list[SearchedTrial]
    search_metric: str | None
    split: str | None
    pairs: int | None
    """Number of evaluated pairs."""
    settings: dict[str, Any]
    """Settings of all trials."""
    seconds: float
    """Duration of this command."""


def summarise_sweep(
    job: SweepJob,
    rows: Sequence[RowConfig],
    done: Sequence[tuple[TrialPlan, TrialResult]],
    failed: Mapping[str, str],
    searched: Sequence[SearchedTrial],
    store: Path,
    seconds: float,
) -> SweepResult:
    """Gather the results of the steps in ``store``."""
    evaluations = {plan.key: load_evaluation(store / result.evaluation) for plan, result in done}
    table = []
    for number, row in enumerate(rows):
        plans = [plan for plan, _ in done if plan.row == number]
        scored = [evaluations[plan.key] for plan in plans]
        measured = {
            TOKENS_PER_SECOND: _results(store, [plan.steps.speed for plan in plans[:1]]),
            JUDGE: _results(store, [plan.steps.judge for plan in plans]),
            _ANSWERS: _results(store, [plan.steps.answers for plan in plans]),
            **_training_costs(store, plans),
        }
        values = {column.title: _value(column, scored, measured) for column in job.columns}
        table.append(
            ResultRow(
                label=row.label,
                settings=row.settings,
                seeds=[plan.seed for plan in plans],
                values=values,
                effects=_effects(job, rows, number, done, store),
                published=row.published,
                group=row.group,
                quoted=row.quoted,
                series=row.series,
                x=row.x,
            )
        )
    an_evaluation = next(iter(evaluations.values()), None)
    return SweepResult(
        name=job.name,
        title=job.title or job.name,
        paper=job.paper,
        note=job.note,
        system=job.system,
        columns=list(job.columns),
        control=job.control,
        rows=table,
        plot=job.plot,
        baselines=_baselines(job, rows, done, store),
        cost=_cost(store, done),
        trials=len(done) + len(failed),
        failed=dict(failed),
        searched=list(searched),
        search_metric=job.search.metric if job.search is not None else None,
        split=an_evaluation.split if an_evaluation is not None else None,
        pairs=an_evaluation.pairs if an_evaluation is not None else None,
        settings={"base": job.base, **job.settings},
        seconds=seconds,
    )


def _effects(
    job: SweepJob, rows: Sequence[RowConfig], number: int, done: Sequence[tuple[TrialPlan, TrialResult]], store: Path
) -> dict[str, SeededEffect]:
    """Column title -> effect of a row against the control row of its group; empty without one, and for itself."""
    of_group = [other.group == rows[number].group and other.label == job.control for other in rows]
    if not any(of_group) or of_group[number]:
        return {}
    control, treatment = (
        {plan.seed: store / result.evaluation for plan, result in done if plan.row == row}
        for row in (of_group.index(True), number)
    )
    if not (seeds := sorted(control.keys() & treatment.keys())):
        return {}
    folders = [[of_row[seed] for seed in seeds] for of_row in (control, treatment)]
    effects = {
        column.title: effect(column.metric, *folders)
        for column in job.columns
        if column.subset is None and column.metric in PAIRED
    }
    return {title: of_column for title, of_column in effects.items() if of_column is not None}


def _value(
    column: ColumnConfig, evaluations: Sequence[Evaluation], measured: Mapping[str, Sequence[Any]]
) -> Spread | None:
    """A cell; ``measured`` are results of steps that measure what no evaluation has: metric -> one for each trial."""
    if column.of_answers:
        key = column.metric + (f"/{column.subset}" if column.subset else "")
        results = [result[key] for result in measured[_ANSWERS] if key in result]
        return spread(results) if results else None
    if column.metric in measured:
        key = (column.subset or "") if column.metric == JUDGE else column.metric
        results = [result[key] for result in measured[column.metric] if key in result]
        return spread(results) if results else None
    values = [column_score(column, evaluation) for evaluation in evaluations]
    present = [100 * value for value in values if value is not None]
    return spread(present) if present else None


def column_score(column: ColumnConfig, scored: Evaluation | Baseline) -> float | None:
    """The column's metric as a fraction; None if it was not scored, or is not defined."""
    if column.metric == RIGHT_TYPE:
        return scored.types.accuracy if scored.types is not None else None
    if column.metric in RIGHT_CLAIMS:
        rate = getattr(scored.hallucination, RIGHT_CLAIMS[column.metric], None)
        return rate.rate if rate is not None else None
    if column.metric in DIFFERENCE_RATES:
        share: float | None = getattr(scored.differences, DIFFERENCE_RATES[column.metric], None)
        return share
    part = scored if column.subset is None else scored.subsets.get(column.subset)
    value = None if part is None else part.scores.get(column.metric)
    return None if value is None or math.isnan(value) else value


def _baselines(
    job: SweepJob, rows: Sequence[RowConfig], done: Sequence[tuple[TrialPlan, TrialResult]], store: Path
) -> list[BaselineRow]:
    """The baselines of each group whose rows are all scored on the same pairs."""
    of_group: dict[str, set[str]] = {}
    for plan, _ in done:
        if plan.steps.baselines is not None:
            of_group.setdefault(rows[plan.row].group, set()).add(plan.steps.baselines.name)
    baselines = []
    for group, steps in of_group.items():
        if len(steps) > 1:
            continue
        for name, baseline in load_evaluation(store / steps.pop()).baselines.items():
            values = {column.title: column_score(column, baseline) for column in job.columns}
            text = baseline.what + (f" ({baseline.caption!r})" if baseline.caption else "")
            scaled = {title: 100 * value for title, value in values.items() if value is not None}
            baselines.append(BaselineRow(name=name, group=group, values=scaled, text=text))
    return baselines


def _results(store: Path, steps: Sequence[Step | None]) -> list[Any]:
    paths = [store / f"{step.name}.json" for step in steps if step is not None]
    return [json.loads(path.read_text(encoding="utf-8"))["result"] for path in paths if path.exists()]


def _training_costs(store: Path, plans: Sequence[TrialPlan]) -> dict[str, list[dict[str, float]]]:
    """Metric -> of each trial that ends with a training its value, by the metric's name."""
    results = _results(store, [plan.steps.work[-1] for plan in plans if plan.steps.work[-1].train is not None])
    return {
        metric: [{metric: next(result[name] for name in names if name in result)} for result in results]
        for metric, names in TRAINING_COSTS.items()
    }


def _cost(store: Path, done: Sequence[tuple[TrialPlan, TrialResult]]) -> Cost:
    needed = [
        name for plan, _ in {plan.key: (plan, result) for plan, result in done}.values() for name in plan.required
    ]
    alone = {step.name for plan, _ in done for step in (plan.steps.baselines, plan.steps.speed) if step is not None}
    cpu = gpu = 0.0
    steps = 0
    for name in {*needed, *alone}:
        path = store / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            cpu += record["seconds"] * record["cpus"] / 3600
            gpu += record["seconds"] * record["gpus"] / 3600
            steps += 1
    shared = len({name for name in needed if needed.count(name) > 1})
    return Cost(cpu_hours=cpu, gpu_hours=gpu, steps=steps, shared_steps=shared)
