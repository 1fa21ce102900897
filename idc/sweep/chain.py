"""The contract between sweeps and systems: a trial's steps, each a folder named by everything it depends on.

The module ``idc.systems.<name>.sweep`` of a system has a :class:`TrialConfig` named ``Trial``; ``steps.py`` makes the
steps that all systems share. Two trials, or two sweeps, that need the same step find it under the same name, so it is
done once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.evaluation.config import EvaluateSection
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


class TrialConfig(ConfigModel):
    """One trial of a sweep: the settings of a system's jobs, one section per job."""

    TRAININGS: ClassVar[tuple[str, ...]]
    """The sections of the trainings; a repetition's seed is that of all of them."""
    SEARCHED: ClassVar[str]
    """The training whose validation metric a search optimises."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: its training split is learned, its test split is scored."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are scored once for all trials, by a step of their own."""

    @property
    def loops(self) -> dict[str, TrainConfig]:
        """Section of each training -> settings of its loop."""
        return {section: getattr(self, section).train for section in self.TRAININGS}

    def errors(self) -> Iterator[str]:
        for section in type(self).model_fields:
            settings = getattr(self, section)
            for name in getattr(settings, "SET_OUTSIDE", ()):
                if name in settings.model_fields_set:
                    yield f"{section}.{name}: the sweep sets it; remove it"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")

    def steps(self, store: str) -> TrialSteps:
        """The steps of the trial. Reads manifests and hashes small inputs.

        Args:
            store: folder of all steps.

        Raises:
            ValueError: an input (pairs, a base model, an artifact) cannot be read.
        """
        raise NotImplementedError


class TrialSection(ConfigModel):
    """First base of a job's config as a section of a trial, which sets its folders: none is looked for before."""

    SET_OUTSIDE: ClassVar[tuple[str, ...]] = ("name", "runs", "pairs", "more_pairs")
    """Settings that the trial sets. They are dropped from base files and refused elsewhere, and their errors do not
    count before they are set."""

    def errors(self) -> Iterator[str]:
        return (line for line in super().errors() if re.split(r"\W", line)[0] not in self.SET_OUTSIDE)

    def preflight(self) -> Iterator[str]:
        return iter(())
