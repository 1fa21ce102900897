"""The result of a sweep: its table, mean and spread over the seeds next to the paper's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from idc.data.schema import NO_CHANGE
from idc.data.store import iter_rows
from idc.evaluation.record import Baseline, Evaluation, Spread, load_evaluation, load_predictions, spread
from idc.evaluation.rendered_truth import rendered_truth
from idc.evaluation.significance import SeededEffect, seeded_effect
from idc.metrics.scene_scores import F1, hallucination
from idc.sweep.chain import Step
from idc.sweep.config import (
    DIFFERENCE_RATES,
    JUDGE,
    RIGHT_CLAIMS,
    RIGHT_TYPE,
    TOKENS_PER_SECOND,
    TRAINING_COSTS,
    ColumnConfig,
    RowConfig,
    SweepJob,
    SweepTable,
)
from idc.sweep.plan import TrialPlan

PAIRED = ("CIDEr", "right_type", "right_object", "difference_f1")
"""Metrics with a value for each pair."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SearchedTrial(_Record):
    """A trial of a search."""

    settings: dict[str, Any]
    value: float | None
    """Searched validation metric; the last one measured if the trial was stopped early."""
    step: int
    """Step at which it was measured."""
    state: str
    """running, finished, stopped early, or the error."""


class ResultRow(RowConfig):
    """A row of the table with its results."""

    seeds: list[int]
    """Seeds of the finished trials."""
    values: dict[str, Spread | None]
    """Column title -> mean and spread over the seeds; scores times 100."""
    effects: dict[str, SeededEffect] = Field({})
    """Column title -> difference from the control row, over the seeds that both have."""


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


class SweepResult(SweepTable):
    """The contents of a sweep's page."""

    rows: list[ResultRow]
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
    done: Sequence[TrialPlan],
    failed: Mapping[str, str],
    searched: Sequence[SearchedTrial],
    store: Path,
    seconds: float,
) -> SweepResult:
    """Gather the results of the steps in ``store``."""
    table = []
    for number, row in enumerate(rows):
        plans = [plan for plan in done if plan.row == number]
        values = {column.title: column_values(column, plans, store) for column in job.columns}
        cells = {title: spread(numbers) if numbers else None for title, numbers in values.items()}
        effects = _effects(job, rows, number, done, store)
        table.append(ResultRow(**dict(row), seeds=[plan.seed for plan in plans], values=cells, effects=effects))
    evaluation = load_evaluation(store / done[0].steps.evaluation.name) if done else None
    return SweepResult(
        **{name: getattr(job, name) for name in SweepTable.model_fields} | {"title": job.title or job.name},
        rows=table,
        baselines=_baselines(job, rows, done, store),
        cost=_cost(store, done),
        trials=len(done) + len(failed),
        failed=dict(failed),
        searched=list(searched),
        search_metric=job.search.metric if job.search is not None else None,
        split=evaluation.split if evaluation is not None else None,
        pairs=evaluation.pairs if evaluation is not None else None,
        settings={"base": job.base, **job.settings},
        seconds=seconds,
    )


def reading_fault(plan: TrialPlan, store: Path) -> str | None:
    """Why the results of a finished trial cannot be read, as after a copy or an update, and what to do; None if they
    can."""
    steps = filter(None, (plan.steps.evaluation, plan.steps.baselines))
    try:
        for folder in (store / step.name for step in steps):
            load_evaluation(folder)
            load_predictions(folder)
        _records(store, plan.required)
    except (ValueError, OSError) as error:
        return f"cannot be read: {error}; remove this step from {store} and run the sweep again"
    return None


def _effects(
    job: SweepTable, rows: Sequence[RowConfig], number: int, done: Sequence[TrialPlan], store: Path
) -> dict[str, SeededEffect]:
    """Column title -> effect of a row against the control row of its group; empty without one, and for itself."""
    of_group = [other.group == rows[number].group and other.label == job.control for other in rows]
    if not any(of_group) or of_group[number]:
        return {}
    control, treatment = (
        {plan.seed: store / plan.steps.evaluation.name for plan in done if plan.row == row}
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


def effect(metric: str, control: Sequence[Path], treatment: Sequence[Path]) -> SeededEffect | None:
    """The effect on one of :data:`PAIRED`; None if the metric is missing, or the rows have different pairs.

    Args:
        control, treatment: folders of the evaluations, one per seed, in the same order.
    """
    by_seed = [_values(metric, folder) for folder in (*control, *treatment)]
    names = sorted(by_seed[0])
    if len(names) < 2 or any(values.keys() != by_seed[0].keys() for values in by_seed):
        return None
    table = np.array([[values[name] for name in names] for values in by_seed], float)
    return seeded_effect(table[: len(control)], table[len(control) :])


@lru_cache(maxsize=128)  # the control row's are read for every other row
def _values(metric: str, folder: Path) -> dict[str, float]:
    rows = load_predictions(folder)
    if metric == "CIDEr":
        return {row.pair_id: row.scores["CIDEr"] for row in rows if "CIDEr" in row.scores}
    if metric == "right_type":
        return {row.pair_id: float(row.named_type == row.change_type) for row in rows if row.change_type is not None}
    if metric == "difference_f1":
        return {row.pair_id: row.differences.scores[F1] for row in rows if row.differences is not None}
    record = load_evaluation(folder)
    pairs = str(record.protocol.get("pairs"))
    if not Path(pairs).is_dir():
        return {}
    truth = rendered_truth(iter_rows(pairs, ["pair_id", "change_type", "source", "meta"], record.split))
    changed = {name: true for name, true in truth.changes.items() if true.kind != NO_CHANGE} if truth else {}
    return {
        row.pair_id: hallucination([(row.caption, changed[row.pair_id])]).object.rate
        for row in rows
        if row.pair_id in changed
    }


def column_values(column: ColumnConfig, plans: Sequence[TrialPlan], store: Path) -> list[float]:
    """The column's number in each of a row's trials that has it; scores times 100."""
    metric, subset = column.metric, column.subset
    steps: Sequence[Step | None]
    keys: tuple[str, ...] = (metric,)
    if metric == TOKENS_PER_SECOND:
        steps = [plan.steps.speed for plan in plans[:1]]
    elif metric in TRAINING_COSTS:
        last = [plan.steps.work[-1] for plan in plans]
        steps, keys = [step if step.train is not None else None for step in last], TRAINING_COSTS[metric]
    elif metric == JUDGE:
        steps, keys = [plan.steps.judge for plan in plans], (subset or "",)
    elif column.of_answers:
        steps, keys = [plan.steps.answers for plan in plans], ("/".join(filter(None, (metric, subset))),)
    else:
        scores = [column_score(column, load_evaluation(store / plan.steps.evaluation.name)) for plan in plans]
        return [100 * score for score in scores if score is not None]
    records = [record["result"] for record in _records(store, [step.name for step in steps if step is not None])]
    return [next(result[key] for key in keys if key in result) for result in records if result.keys() & keys]


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


def _baselines(job: SweepJob, rows: Sequence[RowConfig], done: Sequence[TrialPlan], store: Path) -> list[BaselineRow]:
    """The baselines of each group whose rows are all scored on the same pairs."""
    of_group: dict[str, set[str]] = {}
    for plan in done:
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


def _records(store: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    paths = [store / f"{name}.json" for name in names]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def _cost(store: Path, done: Sequence[TrialPlan]) -> Cost:
    needed = [name for plan in {plan.key: plan for plan in done}.values() for name in plan.required]
    timed: list[Step | None] = [step for plan in done for step in (plan.steps.baselines, plan.steps.speed)]
    records = _records(store, list({*needed, *(step.name for step in timed if step is not None)}))
    cpu, gpu = (sum(record["seconds"] * record[kind] / 3600 for record in records) for kind in ("cpus", "gpus"))
    shared = len({name for name in needed if needed.count(name) > 1})
    return Cost(cpu_hours=cpu, gpu_hours=gpu, steps=len(records), shared_steps=shared)
