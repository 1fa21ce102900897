"""DifferenceNet as a chain of jobs for sweeps: one training, then the steps that all systems share."""

from __future__ import annotations

from idc.sweep.chain import TrialSteps
from idc.sweep.one_training import TrainingTrial
from idc.systems.difference_net.config import DifferenceNetJob


class Trial(TrainingTrial):
    section = "difference_net"

    difference_net: DifferenceNetJob = DifferenceNetJob()


SEEDS, WATCHED, DERIVED = ("difference_net.train.seed",), "difference_net.train", Trial.derived()


def steps(trial: Trial, store: str) -> TrialSteps:
    return trial.steps(store, "idc.systems.difference_net.task:train", max_tokens=20)
