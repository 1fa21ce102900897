"""SFT as a chain of jobs for sweeps: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator

from idc.sweep.chain import TrialSteps
from idc.sweep.one_training import TrainingTrial
from idc.systems.sft.config import SftJob
from idc.vlm.config import base_content


class _Train(SftJob):
    """The training."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the training, and of its evaluation."""

    section = "sft"

    sft: _Train
    """The training, with its base."""


SEEDS, WATCHED, DERIVED = ("sft.train.seed",), "sft.train", Trial.derived()


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs or the base model cannot be read.
    """
    base = trial.sft.base
    return trial.steps(
        store,
        "idc.systems.sft.task:train",
        trial.sft.generation.max_new_tokens,
        inputs={"base": base.model_dump(mode="json")},
        depends=base_content(base),
    )
