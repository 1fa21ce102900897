"""The trial of a system that is one training on pairs: the training, then the steps that all systems share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from idc.config import missing
from idc.data.store import read_manifest
from idc.sweep.chain import TrialConfig, TrialSteps
from idc.sweep.steps import train_step, with_evaluation


class TrainingTrial(TrialConfig):
    """One trial of a sweep: the settings of the training, and of its evaluation.

    A subclass names the section of the training in ``TRAININGS`` and has it as a field: the training's config without
    its folders of pairs, which are the trial's.
    """

    more_pairs: tuple[str, ...] = ()
    """Further folders of which the training split is learned too."""

    @classmethod
    def derived(cls, section: str) -> tuple[str, ...]:
        return ("name", "runs", "pairs", "more_pairs") if section == cls.TRAININGS[0] else super().derived(section)

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for path in self.more_pairs:
            yield from missing(path, "more_pairs")

    def training_steps(
        self,
        store: str,
        entry: str,
        max_tokens: int,
        *,
        inputs: Mapping[str, Any] | None = None,
        depends: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> TrialSteps:
        """The steps of the trial.

        Args:
            entry, models: as of :func:`idc.sweep.steps.train_step`.
            max_tokens: tokens of the longest caption.
            inputs, depends: of the training, besides the folders of pairs.
        """
        section = self.TRAININGS[0]
        job = getattr(self, section)
        folders = {"pairs": self.pairs, "more_pairs": list(self.more_pairs)}
        content = [read_manifest(path, kind="pairs").fingerprint for path in (self.pairs, *self.more_pairs)]
        training = train_step(section, entry, job, {**folders, **(inputs or {})}, store, [*content, *depends], models)
        return with_evaluation(self, [training], store, max_tokens=max_tokens, gpus=job.train.gpus_per_worker)
