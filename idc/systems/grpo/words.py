"""Tuning by rewards of a captioner with a text decoder of its own, from its trained artifact: the same system with
other weights. The decoder draws and learns from one encoding of the pairs.

B pairs, G captions of each, T tokens, K tokens of all captions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from idc.nn.captioned_rows import CaptionedRows, ImageStore, of_validation
from idc.nn.word_captioner import WordCaptioner
from idc.rewards.policy import Answers, GroupPolicy, collate_draws, draws_of
from idc.rewards.rewards import DrawnCaption, Rewards, training_rows, with_meta
from idc.systems import load_captioner
from idc.systems.grpo.config import WordsJob
from idc.training import artifact as stored
from idc.training.artifact import Artifact, read_artifact
from idc.training.caption_validation import CaptioningTask
from idc.training.context import Context
from idc.training.data import mixture_of
from idc.training.system import Parts, System
from idc.training.task import Batch

_WRITTEN_ANEW = {
    stored.CONFIG, stored.WEIGHTS, stored.VOCABULARY, stored.PREPROCESS, stored.METRICS, stored.CARD,
    stored.CALIBRATION, stored.FAMILIARITY,
}  # fmt: skip
"""Files of an artifact that the new one does not copy; those of jobs/calibrate.py belong to the old weights."""


class DrawnPairs(CaptionedRows):
    """The captioned pairs of a split, with the numbers that their captions are drawn by."""

    def __init__(self, job: WordsJob, pairs: str, split: str, part: int, captioner: WordCaptioner[Any]) -> None:
        longest = captioner.max_length
        super().__init__(pairs, split, captioner.vocabulary, longest, job.train.seed + part)
        self.part, self.group, self.draws = part, job.group, split == "train"
        self.images = ImageStore(captioner.image_size, job.cache_mb if self.draws else 0)

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        row = self.rows[self.order[index]]
        sample = {side: self.images(row[side])[0] for side in ("before", "after")}
        if not self.draws:
            return {**sample, **self.scored(row)}
        draws = draws_of(self.seed, epoch, index, self.group, self.length)
        return {**sample, "row": with_meta(row), "draws": draws, "visit": (self.part, index, epoch)}


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """``before`` and ``after``, lists of images uint8 (H, W, 3), and :func:`idc.rewards.policy.collate_draws` or what
    validation compares captions with."""
    images = {side: [sample[side] for sample in samples] for side in ("before", "after")}
    return images | (collate_draws(samples) if "draws" in samples[0] else of_validation(samples))


class RewardedWords(CaptioningTask):
    """The captioner, in evaluation mode: dropout would make the policy another one than its draws are of. Norms over a
    batch (`memory_norm: batch` of ProCap and NAMC) go on learning their statistics, of the micro-batch, as in the
    training by captions: with fixed ones, which divide some channels by 1e-5, a step of the weights before them ruins
    the captions."""

    def __init__(self, job: WordsJob, captioner: WordCaptioner[Any], rewards: Rewards) -> None:
        super().__init__()
        self.job, self.captioner = job, captioner
        self.reference = copy.deepcopy(captioner) if job.kl else captioner
        self.net = captioner.net.requires_grad_(True)
        self.policy = GroupPolicy(job, rewards, captioner.max_length, job.train.grad_accumulation)

    def set_training(self, mode: bool) -> None:
        super().set_training(False)
        for module in self.net.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.training = mode

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        images, temperature = (batch["before"], batch["after"]), self.job.temperature
        memory_BSD = self.captioner.memory(*images)
        return self.policy.step(
            batch,
            sample=partial(self._sample, memory_BSD, batch["draws"]),
            log_p=lambda ids: self.captioner.token_log_probabilities(memory_BSD, ids, temperature),
            reference=lambda ids: self.reference.token_log_probabilities(
                self.reference.memory(*images), ids, temperature
            ),
        )

    def _sample(self, memory_BSD: Tensor, draws_BGT: Tensor, greedy: bool) -> Answers:
        decoded = (
            self.captioner.greedy(memory_BSD)
            if greedy
            else self.captioner.draw(memory_BSD, draws_BGT, self.job.temperature)
        )
        ids_AT, lengths_A = decoded.ids.flatten(0, -2).tolist(), decoded.lengths.flatten().tolist()
        end = self.captioner.vocabulary.special.eos
        flat = [
            DrawnCaption(ids[:length], self.captioner.text(ids[:length]), ids[length - 1] == end)
            for ids, length in zip(ids_AT, lengths_A, strict=True)
        ]
        count = len(flat) // len(memory_BSD)
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def caption(self, batch: Batch) -> list[str]:
        return self.captioner(batch["before"], batch["after"])

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"name": "captioner", "params": list(self.net.parameters()), **self.job.optim.model_dump()}]


def _build(start: Artifact, job: WordsJob, context: Context) -> Parts:
    folders = (job.pairs, *job.more_pairs)
    captioner = load_captioner(str(start.path), device=str(context.device), speed="exact")
    if not isinstance(captioner, WordCaptioner):
        raise ValueError(
            f"artifact: {job.artifact} is of {start.system}, which has no text decoder of its own; a vision-language "
            "model is tuned by jobs/train_grpo.py"
        )
    task = RewardedWords(job, captioner, Rewards(job.rewards, training_rows(folders)))
    if job.train.engine == "deepspeed":  # which sends weights as flat bytes, and needs the usual layout
        task.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
    parts = {path: DrawnPairs(job, path, "train", number, captioner) for number, path in enumerate(folders)}
    validation = DrawnPairs(job, job.pairs, "val", 0, captioner)

    def described() -> dict[str, Any]:
        others = dict.fromkeys(name.partition("/")[0] for name in start.files if name not in _WRITTEN_ANEW)
        return {
            "config": {**start.config, "rewards": job.model_dump(mode="json")},
            "vocabulary": start.vocabulary,
            "preprocess": start.preprocess,
            "extras": {name: start.path / name for name in others},
            "card": f"{start.system}, tuned by rewards ({', '.join(job.rewards)}) after its training by captions.",
            "trained_on": start.trained_on,
        }

    training = mixture_of(parts, job.train.seed)
    return Parts(task, training, validation, collate, described, "net.", job.validation_pairs, job.updates)


def train(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """The training's entry; see :meth:`idc.training.system.System.train`."""
    start = read_artifact(WordsJob.model_validate(payload).artifact)
    system = System(start.system, WordsJob, lambda job, context: _build(start, cast(WordsJob, job), context))
    return system.train(payload, context)
