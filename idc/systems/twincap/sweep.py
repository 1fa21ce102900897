"""A trial of TwinCap in a sweep: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from idc.sweep.chain import TrialSection, TrialSteps
from idc.sweep.steps import TrainingTrial
from idc.systems.twincap.config import TwinCapJob


class _Train(TrialSection, TwinCapJob):
    """The training."""

    pairs: str = ""


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the training, and of its evaluation."""

    TRAININGS, SEARCHED = ("twincap",), "twincap"

    twincap: _Train = _Train()
    """The training."""

    def steps(self, store: str) -> TrialSteps:
        longest = self.twincap.model.decoder.max_length
        return self.training_steps(store, longest, models=("start",))
