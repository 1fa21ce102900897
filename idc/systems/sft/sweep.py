"""Supervised tuning as a chain of jobs for sweeps: one training, then the steps that all systems share. Loads no
torch."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.store import read_manifest
from idc.evaluation.config import EvaluateSection
from idc.sweep.chain import TrialSteps
from idc.sweep.steps import EVALUATE_DERIVED, derived_faults, train_step, with_evaluation
from idc.systems.sft.config import SftJob
from idc.vlm.tuning_config import base_content

SEEDS, WATCHED = ("sft.train.seed",), "sft.train"
DERIVED = {"sft": ("name", "runs", "pairs", "more_pairs"), "evaluate": EVALUATE_DERIVED}


class _Train(SftJob):
    """The training."""

    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(ConfigModel):
    """One trial of a sweep: the settings of the training, and of its evaluation."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: its training split is learned, its test split is scored."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of which the training split is learned too."""
    sft: _Train
    """The training, with its base."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are scored once for all trials, by a step of their own."""

    def faults(self) -> Iterator[str]:
        yield from derived_faults(self, DERIVED)

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        for path in self.more_pairs:
            yield from missing(path, "more_pairs")


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs or the base model cannot be read.
    """
    base = trial.sft.base
    folders = (trial.pairs, *trial.more_pairs)
    content = [*(read_manifest(path, kind="pairs").fingerprint for path in folders), *base_content(base)]
    inputs = {"pairs": trial.pairs, "more_pairs": list(trial.more_pairs), "base": base.model_dump(mode="json")}
    step = train_step("sft", "idc.systems.sft.task:train", trial.sft, inputs, store, content)
    return with_evaluation(
        [step],
        pairs=trial.pairs,
        evaluate=trial.evaluate,
        max_tokens=trial.sft.generation.max_new_tokens,
        gpus=trial.sft.train.gpus_per_worker,
        store=store,
    )
