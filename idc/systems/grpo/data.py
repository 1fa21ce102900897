"""Pairs with the numbers that their captions are drawn by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.rewards.policy import draws_of
from idc.rewards.rewards import Row, with_meta
from idc.systems.grpo.config import GrpoJob
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.batch import collate_encoded, join_pixels, prompt_sample
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, TuningSample, collate_samples, loaders_of


@dataclass(frozen=True)
class DrawnSample:
    """A pair whose captions are drawn.

    Attributes:
        visit: part, sample and epoch, which name the draws.
        row: the pair, for its rewards.
        prompt: token ids of the question.
        pixels: see :meth:`idc.vlm.family.Family.pixels`.
        draws: uniform numbers (G, T).
    """

    visit: tuple[int, int, int]
    row: Row
    prompt: Sequence[int]
    pixels: Mapping[str, Tensor]
    draws: np.ndarray


class DrawnDialogues(DialogueSamples):
    """The captioned pairs of a training split, each a sample. ValueError: the folder does not hold pairs."""

    def __init__(self, job: GrpoJob, folder: str, part: int, chat: Chat) -> None:
        super().__init__(folder, "train", chat, job.prompt, job.train.seed + part, "one")
        if not self.of_pairs:
            raise ValueError(f"{folder} holds instructions; rewards are of captions: give a folder of pairs")
        self.part, self.group, self.longest = part, job.group, job.generation.max_new_tokens

    def check(self, rank: int = 0, world_size: int = 1) -> int:
        """Also refuses a cutoff below a prompt with the longest answer."""
        longest = super().check(rank, world_size) + self.longest
        if self.chat.cutoff is not None and longest > self.chat.cutoff:
            raise ValueError(
                f"{self.folder}: with generation.max_new_tokens={self.longest} a dialogue has up to {longest} tokens, "
                f"above the cutoff of {self.chat.cutoff}; raise cutoff"
            )
        return longest

    def get(self, index: int, epoch: int) -> DrawnSample:  # type: ignore[override]
        row, number = self._visit(index, epoch)
        dialogue = self.dialogue(row, number)
        return DrawnSample(
            visit=(self.part, index, epoch),
            row=with_meta(self.rows[row]),
            prompt=self.chat.prompt(dialogue.turns[:-1], dialogue.sizes),
            pixels=self.chat.family.pixels(dialogue.decoded()),
            draws=draws_of(self.seed, epoch, index, self.group, self.longest),
        )


def make_loaders(job: GrpoJob, family: Family, context: Context) -> Loaders:
    """Loaders of both splits. ValueError names the first row that cannot be used."""
    chat = Chat(family, job.cutoff)
    folders = (job.pairs, *job.more_pairs)
    parts = {path: DrawnDialogues(job, path, number, chat) for number, path in enumerate(folders)}
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, job.train.seed, validation=True)
    return loaders_of(job, parts, validation, family, context, collate_drawn, job.updates)


def collate_drawn(samples: Sequence[DrawnSample | TuningSample], family: Family) -> Batch:
    """A batch of B samples: for validation see :func:`idc.vlm.samples.collate_samples`; for training the family's
    pixels, before and after alternating, and

    - ``padded``: the prompts, padded on the left, without pixels; ``prompt``, ``row``, ``visit``: lists of B;
    - ``draws`` (B, G, T).
    """
    if isinstance(samples[0], TuningSample):
        return collate_samples([sample for sample in samples if isinstance(sample, TuningSample)], family)
    drawn = [sample for sample in samples if isinstance(sample, DrawnSample)]
    lists: dict[str, Any] = {key: [getattr(sample, key) for sample in drawn] for key in ("prompt", "row", "visit")}
    return {
        **join_pixels([sample.pixels for sample in drawn], family),
        **lists,
        "padded": collate_encoded([prompt_sample(sample.prompt) for sample in drawn], family, "left"),
        "draws": torch.from_numpy(np.stack([sample.draws for sample in drawn])),
    }
