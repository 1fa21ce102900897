"""Hinted as a chain of jobs for sweeps: one training, then the steps that all systems share."""

from __future__ import annotations

from collections.abc import Iterator

from idc.systems.hinted.config import HintedJob
from idc.vlm.tuning_trial import TuningTrial


class _Train(HintedJob):
    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(TuningTrial):
    """One trial: the settings of the training, and of its evaluation."""

    section = "hinted"

    hinted: _Train


SEEDS, WATCHED, DERIVED = ("hinted.train.seed",), "hinted.train", Trial.derived()
steps = Trial.tuning_steps
