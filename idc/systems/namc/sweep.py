"""NAMC as a chain of jobs for sweeps: pre-training on described pairs, fine-tuning, then the steps that all systems
share. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.store import fingerprint, read_manifest
from idc.evaluation.config import EvaluateSection
from idc.sweep.chain import Step, TrialSteps
from idc.sweep.steps import EVALUATE_DERIVED, derived_errors, train_step, with_evaluation
from idc.systems.namc.config import FinetuneJob, PretrainJob
from idc.training.hashing import content_or_id

SEEDS, WATCHED = ("pretrain.train.seed", "finetune.train.seed"), "finetune.train"
DERIVED = {
    "pretrain": ("name", "runs", "pairs", "more_pairs", "tokenizer"),
    "finetune": ("name", "runs", "pairs", "pretrained", "model"),
    "evaluate": EVALUATE_DERIVED,
}


class _Filled(ConfigModel):
    """Settings of which the trial fills in folders: nothing is to be checked before."""

    def preflight(self) -> Iterator[str]:
        return iter(())


class _Pretrain(_Filled, PretrainJob):
    """Pre-training."""

    pairs: str = ""
    tokenizer: str | None = ""

    def errors(self) -> Iterator[str]:
        for fault in super().errors():
            if not fault.startswith("tokenizer"):  # the trial's
                yield fault


class _Finetune(_Filled, FinetuneJob):
    """Fine-tuning."""

    pairs: str = ""
    pretrained: str | None = ""


class Trial(ConfigModel):
    """One trial of a sweep: the settings of NAMC's jobs, one section per job."""

    pairs: str = Field(min_length=1)
    """Folder of pairs with captions: fine-tuning learns its training split, its test split is scored."""
    described: str | None = None
    """Folder of described pairs for the pre-training. Empty: fine-tuning trains the same model from scratch."""
    more_described: tuple[str, ...] = ()
    """Further folders of described pairs."""
    tokenizer: str | None = None
    """Artifact of the image tokenizer whose tokens MIR reconstructs."""
    pretrain: _Pretrain = _Pretrain()
    """Pre-training; also the shape of the model if there is none. It depends on `described` and `caption_pairs`, not on
    `pairs`: rows that fine-tune on other data share it."""
    finetune: _Finetune = _Finetune()
    """Fine-tuning."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are scored once for all trials, by a step of their own."""

    def errors(self) -> Iterator[str]:
        yield from derived_errors(self, DERIVED)
        reconstructs = self.pretrain.nim.enabled and self.pretrain.mir.enabled
        if self.described and reconstructs and self.pretrain.mir.target == "discrete" and self.tokenizer is None:
            yield "tokenizer: required; MIR reconstructs the tokens of an image tokenizer"
        if self.described is None and self.more_described:
            yield "more_described: given without described"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        yield from missing(self.described, "described")
        for path in self.more_described:
            yield from missing(path, "more_described")
        yield from missing(self.tokenizer, "tokenizer")
        if self.described is not None:
            yield from missing(self.pretrain.caption_pairs, "pretrain.caption_pairs")


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs or the tokenizer cannot be read.
    """
    work: list[Step] = []
    source = read_manifest(trial.pairs, kind="pairs").fingerprint
    model: dict[str, Any] | None = trial.pretrain.model.model_dump(mode="json")
    pretrained, before = None, fingerprint(model)
    if trial.described is not None:
        folders = (trial.described, *trial.more_described)
        read = [read_manifest(path, kind="pairs").fingerprint for path in folders]
        job = trial.pretrain
        used = trial.tokenizer if job.nim.enabled and job.mir.enabled and job.mir.target == "discrete" else None
        words = job.caption_pairs
        described: dict[str, Any] = {
            "pairs": trial.described, "more_pairs": list(trial.more_described), "tokenizer": used,
            "caption_pairs": words,
        }  # fmt: skip
        depends = [
            *read,
            *([] if used is None else [f"tokenizer {content_or_id(used)}"]),
            *([] if words is None else [f"words of {read_manifest(words, kind='pairs').fingerprint}"]),
        ]
        step = train_step("namc-pretrain", "idc.systems.namc.task:pretrain", job, described, store, depends)
        work.append(step)
        pretrained, before, model = f"{store}/{step.name}/artifact", step.name, None
    inputs: dict[str, Any] = {"pairs": trial.pairs, "pretrained": pretrained, "model": model}
    task = "idc.systems.namc.task:finetune"
    work.append(train_step("namc-finetune", task, trial.finetune, inputs, store, (source, before)))
    longest, gpus = trial.finetune.max_length, trial.finetune.train.gpus_per_worker
    return with_evaluation(work, pairs=trial.pairs, evaluate=trial.evaluate, max_tokens=longest, gpus=gpus, store=store)
