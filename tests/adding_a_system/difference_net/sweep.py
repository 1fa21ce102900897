"""A trial of a sweep: one training of DifferenceNet, then the steps that all systems share."""

from __future__ import annotations

from idc.sweep.chain import TrialSection, TrialSteps
from idc.sweep.steps import TrainingTrial
from idc.systems.difference_net.config import DifferenceNetJob


class _Train(TrialSection, DifferenceNetJob):
    """The training."""


class Trial(TrainingTrial):
    TRAININGS, SEARCHED = ("difference_net",), "difference_net"

    difference_net: _Train = _Train()

    def steps(self, store: str) -> TrialSteps:
        return self.training_steps(store, max_tokens=20)
