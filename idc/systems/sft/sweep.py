"""A trial of SFT in a sweep: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from idc.sweep.chain import TrialSection, TrialSteps
from idc.sweep.steps import TrainingTrial
from idc.systems.sft.config import SftJob
from idc.vlm.config import base_content


class _Train(TrialSection, SftJob):
    """The training."""

    pairs: str = ""


class Trial(TrainingTrial):
    """One trial of a sweep: the settings of the training, and of its evaluation."""

    TRAININGS, SEARCHED = ("sft",), "sft"

    sft: _Train
    """The training, with its base."""

    def steps(self, store: str) -> TrialSteps:
        base = self.sft.base
        return self.training_steps(
            store,
            self.sft.generation.max_new_tokens,
            inputs={"base": base.model_dump(mode="json")},
            depends=base_content(base),
        )
