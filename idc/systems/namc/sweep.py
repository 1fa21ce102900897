"""A trial of NAMC in a sweep: pre-training on described pairs, fine-tuning, then the steps that all systems
share. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idc.config import missing
from idc.data.store import fingerprint, read_manifest
from idc.sweep.chain import Step, TrialConfig, TrialSection, TrialSteps
from idc.sweep.steps import train_step, with_evaluation
from idc.systems.namc.config import FinetuneJob, PretrainJob
from idc.training.hashing import content_or_id


class _Pretrain(TrialSection, PretrainJob):
    """Pre-training."""

    SET_OUTSIDE = (*TrialSection.SET_OUTSIDE, "tokenizer")

    pairs: str = ""
    tokenizer: str | None = ""


class _Finetune(TrialSection, FinetuneJob):
    """Fine-tuning."""

    SET_OUTSIDE = ("name", "runs", "pairs", "pretrained", "model")

    pairs: str = ""
    pretrained: str | None = ""


class Trial(TrialConfig):
    """One trial of a sweep: the settings of NAMC's jobs, one section per job."""

    TRAININGS, SEARCHED = ("pretrain", "finetune"), "finetune"

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

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        reconstructs = self.pretrain.nim.enabled and self.pretrain.mir.enabled
        if self.described and reconstructs and self.pretrain.mir.target == "discrete" and self.tokenizer is None:
            yield "tokenizer: required; MIR reconstructs the tokens of an image tokenizer"
        if self.described is None and self.more_described:
            yield "more_described: given without described"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        yield from missing(self.described, "described")
        for path in self.more_described:
            yield from missing(path, "more_described")
        yield from missing(self.tokenizer, "tokenizer")
        if self.described is not None:
            yield from missing(self.pretrain.caption_pairs, "pretrain.caption_pairs")

    def steps(self, store: str) -> TrialSteps:
        work: list[Step] = []
        source = read_manifest(self.pairs, kind="pairs").fingerprint
        model: dict[str, Any] | None = self.pretrain.model.model_dump(mode="json")
        pretrained, before = None, fingerprint(model)
        if self.described is not None:
            folders = (self.described, *self.more_described)
            read = [read_manifest(path, kind="pairs").fingerprint for path in folders]
            job = self.pretrain
            used = self.tokenizer if job.nim.enabled and job.mir.enabled and job.mir.target == "discrete" else None
            words = job.caption_pairs
            described: dict[str, Any] = {
                "pairs": self.described, "more_pairs": list(self.more_described), "tokenizer": used,
                "caption_pairs": words,
            }  # fmt: skip
            depends = [
                *read,
                *([] if used is None else [f"tokenizer {content_or_id(used)}"]),
                *([] if words is None else [f"words of {read_manifest(words, kind='pairs').fingerprint}"]),
            ]
            step = train_step("namc-pretrain", job, described, store, depends)
            work.append(step)
            pretrained, before, model = f"{store}/{step.name}/artifact", step.name, None
        inputs: dict[str, Any] = {"pairs": self.pairs, "pretrained": pretrained, "model": model}
        work.append(train_step("namc-finetune", self.finetune, inputs, store, (source, before)))
        longest, gpus = self.finetune.max_length, self.finetune.train.gpus_per_worker
        return with_evaluation(self, work, store, max_tokens=longest, gpus=gpus)
