"""Samples with candidates for their negatives: all random choices belong to (seed, epoch, index), also the noise by
which the retriever draws, so that a run is the same however it is cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.metrics.difference_lists import TrueDifferences, true_differences
from idc.schema import NO_CHANGE
from idc.systems.adpo.caption_bank import CaptionBank
from idc.systems.adpo.config import AdpoJob
from idc.systems.adpo.retriever import frames_of
from idc.training.context import Context
from idc.training.data import Loaders, Mixture
from idc.training.task import Batch
from idc.vlm.batch import join_pixels
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, TuningSample, collate_samples
from idc.vlm.tuning_data import loaders_of

_NEGATIVES = 3
"""Last word of the seeds of candidates and noise; others: :mod:`idc.training.data`."""


@dataclass(frozen=True)
class PreferenceSample:
    """A caption of a pair and candidates for what it is preferred to.

    Attributes:
        row: of its folder (part, row).
        prompt: ids of the question.
        chosen: number of the caption in the bank; ``candidates``: of the candidates.
        noise: Gumbel noise, one for each candidate.
        pixels: of :meth:`idc.vlm.family.Family.pixels`; ``frames``: the images as the retriever sees them.
        truth: of a rendered pair.
    """

    row: tuple[int, int]
    prompt: Sequence[int]
    chosen: int
    candidates: Sequence[int]
    noise: np.ndarray
    pixels: Mapping[str, Tensor]
    frames: Tensor | None
    truth: TrueDifferences | None


class PreferenceSamples(DialogueSamples):
    """The training split of a folder of pairs.

    Args:
        job, chat, bank: of the run.
        part: number of the folder among those of the run.
        frame_size: side of the images as the retriever sees them; None with objective=dpo, which has none, and whose
            one candidate is the negative.

    Raises:
        ValueError: the folder is not one of pairs.
    """

    def __init__(self, job: AdpoJob, folder: str, part: int, chat: Chat, frame_size: int | None) -> None:
        super().__init__(folder, "train", chat, job.prompt, job.train.seed + part, job.captions)
        if not self.of_pairs:
            raise ValueError(f"{folder} holds instructions; objective={job.objective} needs pairs")
        self.job, self.part, self.frame_size = job, part, frame_size
        self.bank: CaptionBank
        self.kinds = self.rows.column("change_type")
        self.captions = self.rows.column("captions")
        self.count = job.candidates if frame_size else 1

    def positives(self, row: int) -> frozenset[int]:
        return self.bank.positives(self.captions[row], self.kinds[row] == NO_CHANGE)

    def check(self, rank: int = 0, world_size: int = 1) -> int:
        """As of the base class; also refuses a pair without enough candidates, and a cutoff below the longest caption
        of the bank."""
        for row in dict.fromkeys(row for row, _ in self.order):
            left = len(self.bank) - len(self.positives(row))
            if left < self.count:
                name = self.rows[row]["pair_id"]
                raise ValueError(f"{self.folder}, pair {name!r}: {self.bank.too_few(left, self.count)}")
        longest = super().check(rank, world_size)
        ends = {key: length - len(self.bank.answers[self.bank.number(self.captions[key[0]][key[1]])])
                for key, length in self._lengths.items()}  # fmt: skip
        longest = max(longest, max(ends.values(), default=0) + max(map(len, self.bank.answers)))
        if self.chat.cutoff is not None and longest > self.chat.cutoff:
            raise ValueError(
                f"{self.folder}: with the longest caption of the bank a dialogue has {longest} tokens, above the "
                f"cutoff of {self.chat.cutoff}; raise cutoff"
            )
        return longest

    def get(self, index: int, epoch: int) -> Any:
        row, number = self._visit(index, epoch)
        columns = self.rows[row]
        dialogue = self.dialogue_of(columns, number)
        images = dialogue.decoded()
        truth = self._truth(columns)
        chosen, candidates, noise = self.captions_of(index, epoch, truth)
        return PreferenceSample(
            row=(self.part, row),
            prompt=self.chat.prompt(dialogue.turns[:-1], dialogue.sizes),
            chosen=chosen,
            candidates=candidates,
            noise=noise,
            pixels=self.chat.family.pixels(images),
            frames=frames_of(images, self.frame_size) if self.frame_size else None,
            truth=truth,
        )

    def has_truths(self) -> bool:
        """Whether the truth of every pair is known."""
        metas = self.rows.column("meta")
        kinds = zip(self.kinds, metas, strict=True)
        return all(true_differences(kind, json.loads(meta) if meta else {}) is not None for kind, meta in kinds)

    def captions_of(self, index: int, epoch: int, truth: TrueDifferences | None) -> tuple[int, list[int], np.ndarray]:
        """Numbers of the chosen caption and of the candidates, and the noise."""
        row, number = self._visit(index, epoch)
        of_candidates, of_noise = np.random.default_rng(
            (self.seed, epoch if self.job.redraw else 0, index, _NEGATIVES)
        ), np.random.default_rng((self.seed, epoch, index, _NEGATIVES + 1))  # fmt: skip
        dropped = truth if self.job.true_negatives == "drop" else None
        try:
            candidates = self.bank.candidates(self.positives(row), self.count, of_candidates, dropped)
        except ValueError as error:
            raise ValueError(f"{self.folder}, pair {self.rows[row]['pair_id']!r}: {error}") from None
        return self.bank.number(self.captions[row][number]), candidates, of_noise.gumbel(size=self.count)

    def _truth(self, columns: Mapping[str, Any]) -> TrueDifferences | None:
        return true_differences(columns["change_type"], json.loads(columns["meta"]) if columns["meta"] else {})


def make_loaders(job: AdpoJob, family: Family, context: Context, frame_size: int | None) -> Loaders:
    """Loaders of the training and the validation split; arguments as of :class:`PreferenceSamples`.

    Raises:
        ValueError: the bank is too small, or naming the first row that cannot be used.
    """
    chat = Chat(family, job.cutoff)
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, job.train.seed, validation=True)
    return loaders_of(job, samples_of(job, chat, frame_size), validation, family, context, collate_preferences)


def samples_of(job: AdpoJob, chat: Chat, frame_size: int | None) -> dict[str, PreferenceSamples]:
    """Folder -> its training split, with one bank of the captions of all; arguments as of :class:`PreferenceSamples`.

    Raises:
        ValueError: the bank is too small.
    """
    folders = (job.pairs, *job.more_pairs)
    parts = {path: PreferenceSamples(job, path, n, chat, frame_size) for n, path in enumerate(folders)}
    bank = CaptionBank((text for part in parts.values() for texts in part.captions for text in texts), chat)
    if len(bank) <= (wanted := job.candidates if frame_size else 1):
        setting = f"candidates={wanted}: " if frame_size else ""
        raise ValueError(
            f"{setting}the training pairs have {len(bank)} different captions, the pair's own among them; "
            f"take at most {max(1, len(bank) - 1)}, or more pairs"
        )
    for part in parts.values():
        part.bank = bank
    return parts


def preference_parts(loaders: Loaders) -> list[PreferenceSamples]:
    """The folders of a run's training."""
    dataset = loaders.train.dataset
    parts: list[Any] = list(dataset.parts) if isinstance(dataset, Mixture) else [dataset]
    return parts


def collate_preferences(samples: Sequence[PreferenceSample | TuningSample], family: Family) -> Batch:
    """A batch of B samples, of validation as :func:`idc.vlm.samples.collate_samples`; of training the family's pixels,
    before and after in turn, and

    - ``candidates`` (B, N) with ``noise``; ``chosen`` (B,);
    - ``frames`` uint8 (B, 2, 3, S, S), with a retriever;
    - ``prompt``, ``row``, ``truth``: lists of B.
    """
    if isinstance(samples[0], TuningSample):
        return collate_samples([sample for sample in samples if isinstance(sample, TuningSample)], family)
    rows = [sample for sample in samples if isinstance(sample, PreferenceSample)]
    batch: dict[str, Any] = {
        **join_pixels([sample.pixels for sample in rows], family),
        "candidates": torch.tensor([sample.candidates for sample in rows]),
        "noise": torch.from_numpy(np.stack([sample.noise for sample in rows])).float(),
        "chosen": torch.tensor([sample.chosen for sample in rows]),
        **{key: [getattr(sample, key) for sample in rows] for key in ("prompt", "row", "truth")},
    }
    if rows[0].frames is not None:
        batch["frames"] = torch.stack([sample.frames for sample in rows if sample.frames is not None])
    return batch
