"""A tuned vision-language model in sweeps: one training, then the steps that all systems share. Loads no torch."""

from __future__ import annotations

from idc.sweep.chain import TrialSteps
from idc.sweep.one_training import TrainingTrial
from idc.vlm.tuning_config import TuningJob, base_content


class TuningTrial(TrainingTrial):
    """One trial of a sweep; its section is named as the system, and is its :class:`TuningJob`."""

    def tuning_steps(self, store: str) -> TrialSteps:
        """The chain of the trial.

        Raises:
            ValueError: pairs or the base model cannot be read.
        """
        job: TuningJob = getattr(self, self.section)
        return self.steps(
            store,
            f"idc.systems.{self.section}.task:train",
            job.generation.max_new_tokens,
            inputs={"base": job.base.model_dump(mode="json")},
            depends=base_content(job.base),
        )
