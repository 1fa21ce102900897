"""TwinCap as a chain of jobs for sweeps: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator

from idc.sweep.chain import TrialSteps
from idc.sweep.one_training import TrainingTrial
from idc.systems.twincap.config import TwinCapJob


class _Train(TwinCapJob):
    """The training."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the training, and of its evaluation."""

    section = "twincap"

    twincap: _Train = _Train()
    """The training."""


SEEDS, WATCHED, DERIVED = ("twincap.train.seed",), "twincap.train", Trial.derived()


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs cannot be read.
    """
    longest = trial.twincap.model.decoder.max_length
    return trial.steps(store, "idc.systems.twincap.task:train", longest, models=("start",))
