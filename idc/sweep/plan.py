"""What a trial is made of: steps, each a folder named by everything it depends on.

A system offers its chain of jobs as the module ``idc.systems.<name>.sweep`` (:class:`Chain`). Two trials, or two
sweeps, that need the same step find it under the same name, so it is done once.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from idc.data.store import fingerprint

if TYPE_CHECKING:
    from idc.config import ConfigModel
    from idc.sweep.config import SweepJob
    from idc.training.config import TrainConfig


@dataclass(frozen=True)
class Step:
    """One thing to be done, in a folder of its own.

    Attributes:
        name: the folder's name: a word and a fingerprint of all that the result depends on.
        entry: ``"module:function"``. Of a training: as :func:`cluster.train.launch` takes it. Else
            ``f(payload, folder, run) -> dict``, which does nothing where the folder is complete; ``run`` runs a data
            job's chunks.
        payload: JSON-able.
        train: the loop's settings, of a training.
        cpus, gpus: what it works with, for the account.
    """

    name: str
    entry: str
    payload: dict[str, Any]
    train: TrainConfig | None = None
    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class TrialSteps:
    """What a chain makes of a trial's config.

    Attributes:
        work: in order; the last one is the training whose artifact is evaluated.
        evaluation: scores on the held-out split, an evaluation's folder.
        baselines: an evaluation's folder with the baselines to print, the same for all trials of the same pairs;
            none if no baseline is asked for.
        speed: gives ``{"tokens_per_second": ...}``; run alone on the machine.
    """

    work: tuple[Step, ...]
    evaluation: Step
    baselines: Step | None
    speed: Step


class Chain(Protocol):
    """What the module ``idc.systems.<name>.sweep`` offers."""

    Trial: type[ConfigModel]
    """Config of a trial: the settings of its jobs, a section each."""
    SEEDS: ClassVar[Sequence[str]]
    """Dotted settings that a repetition's seed sets."""
    DERIVED: ClassVar[dict[str, tuple[str, ...]]]
    """Section -> settings that the chain makes itself (names, folders); left out of base files, refused elsewhere."""
    WATCHED: str
    """Dotted section of the loop whose validation a search looks at."""

    def steps(self, trial: Any, store: str) -> TrialSteps:
        """The steps of a trial; ``store`` is the folder of all steps. Reads manifests, and hashes small inputs."""


@dataclass(frozen=True)
class TrialPlan:
    """One trial of a table.

    Attributes:
        key: its name: changes with anything that its result depends on.
        label: for people.
        row: number of the table's row.
        seed: of this repetition.
        settings: the row's dotted settings.
        steps: what to do.
    """

    key: str
    label: str
    row: int
    seed: int
    steps: TrialSteps
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def required(self) -> list[str]:
        """Names of its steps, in order."""
        return [step.name for step in (*self.steps.work, self.steps.evaluation)]


def chain_of(system: str) -> Chain:
    """The chain of a system in ``idc.systems.SYSTEMS``."""
    return cast(Chain, importlib.import_module(f"idc.systems.{system}.sweep"))


def train_sections(trial: ConfigModel, path: str = "") -> dict[str, TrainConfig]:
    """Dotted name -> settings of each loop in a trial's config."""
    from idc.config import ConfigModel
    from idc.training.config import TrainConfig

    found: dict[str, TrainConfig] = {}
    for name in type(trial).model_fields:
        value = getattr(trial, name)
        if isinstance(value, TrainConfig):
            found[f"{path}{name}"] = value
        elif isinstance(value, ConfigModel):
            found |= train_sections(value, f"{path}{name}.")
    return found


def plan_table(job: SweepJob, store: str) -> list[TrialPlan]:
    """The trials of a table, row by row and seed by seed.

    Raises:
        ValueError: an input (a folder of pairs, a tokenizer) cannot be read.
    """
    chain = chain_of(job.system)
    plans = []
    for number, row in enumerate(job.table):
        for seed in job.seeds if not row.quoted else ():
            steps = chain.steps(job.trial(row.settings, seed), store)
            label = ", ".join(
                [*filter(None, [row.group]), row.label, *([f"seed {seed}"] if len(job.seeds) > 1 else [])]
            )
            key = fingerprint([step.name for step in (*steps.work, steps.evaluation)])
            plans.append(TrialPlan(key, label, number, seed, steps, dict(row.settings)))
    return plans


def spread_out(plans: Sequence[TrialPlan], concurrent: int) -> list[TrialPlan]:
    """An order in which trials that run at the same time share few steps: of two that need the same one, the second
    would wait for the first with its cores idle."""
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
