"""DifferenceNet as a chain of jobs for sweeps: one training, then the steps that all systems share."""

from __future__ import annotations

from collections.abc import Iterator

from idc.config import ConfigModel
from idc.data.store import read_manifest
from idc.evaluation.config import EvaluateSection
from idc.sweep.chain import TrialSteps
from idc.sweep.steps import EVALUATE_DERIVED, derived_faults, train_step, with_evaluation
from idc.systems.difference_net.config import DifferenceNetJob

SEEDS, WATCHED = ("train.train.seed",), "train.train"
DERIVED = {"train": ("name", "runs", "pairs"), "evaluate": EVALUATE_DERIVED}


class Trial(ConfigModel):
    """One trial: the settings of the training, and of its evaluation."""

    pairs: str
    train: DifferenceNetJob = DifferenceNetJob()
    evaluate: EvaluateSection = EvaluateSection()

    def faults(self) -> Iterator[str]:
        yield from derived_faults(self, DERIVED)


def steps(trial: Trial, store: str) -> TrialSteps:
    data, entry = read_manifest(trial.pairs, kind="pairs").fingerprint, "idc.systems.difference_net.task:train"
    step = train_step("difference-net", entry, trial.train, {"pairs": trial.pairs}, store, (data,))
    gpus = trial.train.train.gpus_per_worker
    return with_evaluation([step], pairs=trial.pairs, evaluate=trial.evaluate, max_tokens=20, gpus=gpus, store=store)
