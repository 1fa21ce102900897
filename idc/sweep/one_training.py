"""The chain of a system that is one training on pairs: the training, then the steps that all systems share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.store import read_manifest
from idc.evaluation.config import EvaluateSection
from idc.sweep.chain import TrialSteps
from idc.sweep.steps import EVALUATE_DERIVED, derived_errors, train_step, with_evaluation


class TrainingTrial(ConfigModel):
    """One trial of a sweep: the settings of the training, and of its evaluation.

    A subclass names the section of the training in ``section`` and has it as a field: the training's config without
    its folders of pairs, which are the trial's.
    """

    section: ClassVar[str]

    pairs: str = Field(min_length=1)
    """Folder of pairs: its training split is learned, its test split is scored."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of which the training split is learned too."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are scored once for all trials, by a step of their own."""

    @classmethod
    def derived(cls) -> dict[str, tuple[str, ...]]:
        """The settings that :meth:`steps` sets itself (``DERIVED`` of :class:`idc.sweep.chain.Chain`)."""
        return {cls.section: ("name", "runs", "pairs", "more_pairs"), "evaluate": EVALUATE_DERIVED}

    def errors(self) -> Iterator[str]:
        yield from derived_errors(self, self.derived())

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        for path in self.more_pairs:
            yield from missing(path, "more_pairs")

    def steps(
        self,
        store: str,
        entry: str,
        max_tokens: int,
        *,
        inputs: Mapping[str, Any] | None = None,
        depends: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> TrialSteps:
        """The chain of the trial.

        Args:
            entry, models: as of :func:`idc.sweep.steps.train_step`.
            max_tokens: tokens of the longest caption.
            inputs, depends: of the training, besides the folders of pairs.

        Raises:
            ValueError: pairs cannot be read.
        """
        job = getattr(self, self.section)
        folders = {"pairs": self.pairs, "more_pairs": list(self.more_pairs)}
        content = [read_manifest(path, kind="pairs").fingerprint for path in (self.pairs, *self.more_pairs)]
        training = train_step(
            self.section, entry, job, {**folders, **(inputs or {})}, store, [*content, *depends], models
        )
        return with_evaluation(
            [training],
            pairs=self.pairs,
            evaluate=self.evaluate,
            max_tokens=max_tokens,
            gpus=job.train.gpus_per_worker,
            store=store,
        )
