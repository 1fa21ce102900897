"""The guide as a chain of jobs for sweeps: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator

from idc.sweep.chain import TrialSteps
from idc.sweep.one_training import TrainingTrial
from idc.systems.changevg.config import GuideJob


class _Train(GuideJob):
    """The training."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the guide's training, and of its evaluation."""

    section = "guide"

    guide: _Train = _Train()
    """The training."""


SEEDS, WATCHED, DERIVED = ("guide.train.seed",), "guide.train", Trial.derived()


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs cannot be read.
    """
    return trial.steps(
        store, "idc.systems.changevg.task:train", trial.guide.model.decoder.max_length, models=("start",)
    )
