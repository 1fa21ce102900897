"""The trials of a table, and the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from idc.data.store import fingerprint
from idc.sweep.chain import TrialSteps
from idc.sweep.config import SweepJob


@dataclass(frozen=True)
class TrialPlan:
    """One trial of a table.

    Attributes:
        key: file name of its result; changes with everything that the result depends on.
        label: readable name.
        row: number of the table's row.
        seed: of this repetition.
        steps: its steps.
        settings: the row's dotted settings.
    """

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


def plan_table(job: SweepJob, store: str) -> list[TrialPlan]:
    """Plan the trials of a table, row by row and seed by seed.

    Raises:
        ValueError: an input (a folder of pairs, a tokenizer) cannot be read.
    """
    plans = []
    for number, row in enumerate(job.table):
        for seed in job.seeds if not row.quoted else ():
            steps = job.trial(row.settings, seed).steps(store)
            label = ", ".join(
                [*filter(None, [row.group]), row.label, *([f"seed {seed}"] if len(job.seeds) > 1 else [])]
            )
            key = fingerprint([step.name for step in steps.scored])
            plans.append(TrialPlan(key, label, number, seed, steps, dict(row.settings)))
    return plans


def spread_out(plans: Sequence[TrialPlan], concurrent: int) -> list[TrialPlan]:
    """Order trials so that those running at the same time share few steps: of two that need the same step, the second
    would wait for the first with idle cores."""
    waiting = list(plans)
    order: list[TrialPlan] = []
    begun: set[str] = set()
    while waiting:
        beside = [set(plan.required) for plan in order[-(concurrent - 1) :]] if concurrent > 1 else []
        new = set().union(*beside) - begun

        def shared(plan: TrialPlan, new: set[str] = new) -> int:
            return len(new.intersection(plan.required))

        chosen = min(waiting, key=shared)
        waiting.remove(chosen)
        order.append(chosen)
        if len(order) >= concurrent:
            begun.update(order[-concurrent].required)
    return order
