"""SFT as a chain of jobs for sweeps: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator

from idc.systems.sft.config import SftJob
from idc.vlm.tuning_trial import TuningTrial


class _Train(SftJob):
    """The training."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(TuningTrial):
    """One trial of a sweep: the settings of the training, and of its evaluation."""

    section = "sft"

    sft: _Train
    """The training, with its base."""


SEEDS, WATCHED, DERIVED = ("sft.train.seed",), "sft.train", Trial.derived()
steps = Trial.tuning_steps
