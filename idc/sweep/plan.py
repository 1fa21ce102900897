"""The trials of a table, and the order in which they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from idc.data.store import fingerprint
from idc.sweep.chain import TrialSteps
from idc.sweep.config import SweepJob


@dataclass(frozen=True)
class TrialPlan:
    """One trial of a table: of ``row``, with ``seed``. ``key`` changes with everything that its result depends on;
    ``settings`` are the row's."""

    key: str
    label: str
    row: int
    seed: int
    steps: TrialSteps
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def required(self) -> list[str]:
        """Names of the steps that its scores need, in order."""
        return [step.name for step in self.steps.scored]

    def done(self, store: Path) -> bool:
        """Whether all of these steps are done."""
        return all((store / f"{name}.json").exists() and (store / name).exists() for name in self.required)


def plan_table(job: SweepJob, store: str) -> list[TrialPlan]:
    """Plan the trials of a table, row by row and seed by seed.

    Raises:
        ValueError: an input (a folder of pairs, a tokenizer) cannot be read.
    """
    plans = []
    for number, row in enumerate(job.table):
        for seed in job.seeds if not row.quoted else ():
            label = ", ".join(filter(None, [row.group, row.label, f"seed {seed}" if len(job.seeds) > 1 else ""]))
            plans.append(plan_trial(job, store, label, row.settings, seed, number))
    return plans


def plan_trial(job: SweepJob, store: str, label: str, settings: dict[str, Any], seed: int, row: int = 0) -> TrialPlan:
    steps = job.trial(settings, seed).steps(store)
    key = fingerprint([step.name for step in steps.scored])
    return TrialPlan(key, label, row, seed, steps, dict(settings))


def spread_out(plans: Sequence[TrialPlan]) -> list[TrialPlan]:
    """Alternate between trials with different first steps, after those that all need: of two side by side that need the
    same one, the second would wait for the first with idle cores."""
    needed_by = Counter(name for plan in plans for name in {*plan.required})
    queues: dict[str, list[TrialPlan]] = {}
    for plan in plans:
        first = next((name for name in plan.required if needed_by[name] < len(plans)), "")
        queues.setdefault(first, []).append(plan)
    return [plan for turn in zip_longest(*queues.values()) for plan in turn if plan is not None]
