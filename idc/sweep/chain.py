"""The contract between sweeps and systems: a trial's steps, each a folder named by everything it depends on.

A system offers its chain of jobs as the module ``idc.systems.<name>.sweep`` (:class:`Chain`); ``steps.py`` makes the
steps that all systems share. Two trials, or two sweeps, that need the same step find it under the same name, so it is
done once.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from idc.config import ConfigModel
from idc.training.config import TrainConfig


@dataclass(frozen=True)
class Step:
    """One unit of work, in a folder of its own.

    Attributes:
        name: the folder's name: a word and a fingerprint of everything that the result depends on.
        entry: ``"module:function"``, imported by the worker. For a training as the launcher takes it; else
            ``f(payload, folder, run) -> dict``, which does nothing if the folder is complete; ``run`` runs the chunks
            of a data job.
        payload: argument of the entry, JSON-able.
        train: settings of the loop, for a training.
        cpus, gpus: resources it uses, for the sweep's cost.
    """

    name: str
    entry: str
    payload: dict[str, Any]
    train: TrainConfig | None = None
    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class TrialSteps:
    """The steps of one trial.

    Attributes:
        work: in order; the last one makes the artifact that is evaluated (of a search, it is a training).
        evaluation: scores the held-out split; its folder is an evaluation's.
        baselines: scores the baselines, once for all trials of the same pairs; its folder is an evaluation's. None if
            the settings have no baseline.
        speed: returns ``{"tokens_per_second": ...}``; runs alone on the machine.
        judge: lets a language model judge the evaluated captions; None if the settings name no endpoint.
        answers: puts questions to the captioner and scores its answers; None if there are no questions.
    """

    work: tuple[Step, ...]
    evaluation: Step
    baselines: Step | None
    speed: Step
    judge: Step | None = None
    answers: Step | None = None

    @property
    def scored(self) -> tuple[Step, ...]:
        """All that the trial's scores need, in order."""
        return (*self.work, self.evaluation, *(step for step in (self.judge, self.answers) if step is not None))


class Chain(Protocol):
    """Interface of the module ``idc.systems.<name>.sweep``."""

    Trial: type[ConfigModel]
    """Config of a trial: one section per job."""
    SEEDS: ClassVar[Sequence[str]]
    """Dotted settings that are set to a repetition's seed."""
    DERIVED: ClassVar[dict[str, tuple[str, ...]]]
    """Section -> settings that the chain sets itself (names, folders); dropped from base files, refused elsewhere."""
    WATCHED: str
    """Dotted section of the loop whose validation metric a search optimises."""

    def steps(self, trial: Any, store: str) -> TrialSteps:
        """The steps of a trial. Reads manifests and hashes small inputs.

        Args:
            trial: of the class ``Trial``.
            store: folder of all steps.
        """


def chain_of(system: str) -> Chain:
    """The chain of a system in ``idc.systems.SYSTEMS``."""
    return cast(Chain, importlib.import_module(f"idc.systems.{system}.sweep"))


def train_sections(trial: ConfigModel, path: str = "") -> dict[str, TrainConfig]:
    """Dotted name -> settings of each training loop in a trial's config."""
    sections: dict[str, TrainConfig] = {}
    for name in type(trial).model_fields:
        value = getattr(trial, name)
        if isinstance(value, TrainConfig):
            sections[f"{path}{name}"] = value
        elif isinstance(value, ConfigModel):
            sections |= train_sections(value, f"{path}{name}.")
    return sections
