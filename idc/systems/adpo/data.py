"""The caption bank, and training samples with candidates for the negative caption. Every random choice, the noise by
which the retriever draws included, depends on (seed, epoch, index) alone, so that a run does not depend on how its
batches are cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.data.schema import NO_CHANGE
from idc.metrics.change_types import says_no_change
from idc.systems.adpo.config import AdpoJob
from idc.systems.adpo.retriever import frames_of
from idc.training.context import Context
from idc.training.data import Loaders, Mixture
from idc.training.task import Batch
from idc.vlm.batch import join_pixels
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, TuningSample, collate_samples, loaders_of

_NEGATIVES = 3
"""Last word of the seeds of candidates and noise; others: :mod:`idc.training.data`."""


class CaptionBank:
    """The distinct captions of the training pairs, numbered in order. Captions that differ in white space alone are the
    same. ValueError: a caption contains control tokens of the model.

    Attributes:
        texts: the captions.
        answers: their token ids, end token included.
        unchanged: numbers of the captions that state that nothing changed.
    """

    def __init__(self, captions: Iterable[str], chat: Chat) -> None:
        self.texts = list(dict.fromkeys(_normalized(text) for text in captions))
        self._number = {text: number for number, text in enumerate(self.texts)}
        self.answers = [chat.answer_ids(text) for text in self.texts]
        self.unchanged = frozenset(number for number, text in enumerate(self.texts) if says_no_change(text))

    def __len__(self) -> int:
        return len(self.texts)

    def number(self, caption: str) -> int:
        return self._number[_normalized(caption)]

    def positives(self, references: Sequence[str], unchanged: bool) -> frozenset[int]:
        """Captions that are right for a pair: its references, and for an unchanged pair all that state no change."""
        same = frozenset(self.number(text) for text in references)
        return same | self.unchanged if unchanged or same & self.unchanged else same

    def candidates(self, positives: Collection[int], count: int, rng: np.random.Generator) -> list[int]:
        """``count`` captions that are not positives; there must be as many (:meth:`PreferenceSamples.check`)."""
        order = rng.permutation(len(self))[: count + len(positives)].tolist()
        return [number for number in order if number not in positives][:count]


def _normalized(caption: str) -> str:
    return " ".join(caption.split())


@dataclass(frozen=True)
class PreferenceSample:
    """A caption of a pair and candidates for the caption that it is preferred to.

    Attributes:
        row: part and row of its folder.
        prompt: token ids of the question.
        chosen: number of the caption in the bank; ``candidates``: of the candidates.
        noise: Gumbel noise, one value per candidate.
        pixels: see :meth:`idc.vlm.family.Family.pixels`; ``frames``: the retriever's input.
    """

    row: tuple[int, int]
    prompt: Sequence[int]
    chosen: int
    candidates: Sequence[int]
    noise: np.ndarray
    pixels: Mapping[str, Tensor]
    frames: Tensor | None


class PreferenceSamples(DialogueSamples):
    """The training split of a folder of pairs. ValueError: the folder does not hold pairs.

    Args:
        part: number of the folder among those of the run.
        frame_size: side of the retriever's images; None with objective=dpo, whose only candidate is the negative.
    """

    bank: CaptionBank

    def __init__(self, job: AdpoJob, folder: str, part: int, chat: Chat, frame_size: int | None) -> None:
        super().__init__(folder, "train", chat, job.prompt, job.train.seed + part, job.captions)
        if not self.of_pairs:
            raise ValueError(f"{folder} holds instructions; objective={job.objective} needs pairs")
        self.part, self.frame_size = part, frame_size
        self.kinds = self.rows.column("change_type")
        self.captions = self.rows.column("captions")
        self.count = job.candidates if frame_size else 1

    def positives(self, row: int) -> frozenset[int]:
        return self.bank.positives(self.captions[row], self.kinds[row] == NO_CHANGE)

    def check(self, rank: int = 0, world_size: int = 1) -> int:
        """Also refuses a pair with too few candidates, and a cutoff below the longest caption of the bank."""
        for row in dict.fromkeys(row for row, _ in self.order):
            left = len(self.bank) - len(self.positives(row))
            if left < self.count:
                fix = "lower candidates" if left >= 2 and self.count > 1 else "leave the pair out"
                raise ValueError(
                    f"{self.folder}, pair {self.rows[row]['pair_id']!r}: {left} of the bank's {len(self.bank)} "
                    f"captions are wrong for it, and {self.count} candidates are drawn; {fix}"
                )
        longest = super().check(rank, world_size)
        prompts = [length - len(self.bank.answers[self.bank.number(self.captions[row][number])])
                   for (row, number), length in self._lengths.items()]  # fmt: skip
        longest = max(longest, max(prompts, default=0) + max(map(len, self.bank.answers)))
        if self.chat.cutoff is not None and longest > self.chat.cutoff:
            raise ValueError(
                f"{self.folder}: with the longest caption of the bank a dialogue has {longest} tokens, above the "
                f"cutoff of {self.chat.cutoff}; raise cutoff"
            )
        return longest

    def get(self, index: int, epoch: int) -> Any:
        row, number = self._visit(index, epoch)
        dialogue = self.dialogue(row, number)
        images = dialogue.decoded()
        of_candidates, of_noise = (np.random.default_rng((self.seed, epoch, index, _NEGATIVES + n)) for n in range(2))
        return PreferenceSample(
            row=(self.part, row),
            prompt=self.chat.prompt(dialogue.turns[:-1], dialogue.sizes),
            chosen=self.bank.number(self.captions[row][number]),
            candidates=self.bank.candidates(self.positives(row), self.count, of_candidates),
            noise=of_noise.gumbel(size=self.count),
            pixels=self.chat.family.pixels(images),
            frames=frames_of(images, self.frame_size) if self.frame_size else None,
        )


def make_loaders(job: AdpoJob, family: Family, context: Context, frame_size: int | None) -> Loaders:
    """Loaders of both splits. ValueError names the first row that cannot be used."""
    chat = Chat(family, job.cutoff)
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, job.train.seed, validation=True)
    return loaders_of(job, samples_of(job, chat, frame_size), validation, family, context, collate_preferences)


def samples_of(job: AdpoJob, chat: Chat, frame_size: int | None) -> dict[str, PreferenceSamples]:
    """Folder -> its training split; all share one bank of all their captions."""
    folders = (job.pairs, *job.more_pairs)
    parts = {path: PreferenceSamples(job, path, n, chat, frame_size) for n, path in enumerate(folders)}
    bank = CaptionBank((text for part in parts.values() for texts in part.captions for text in texts), chat)
    for part in parts.values():
        part.bank = bank
    return parts


def preference_parts(loaders: Loaders) -> list[PreferenceSamples]:
    """The folders of a run's training."""
    dataset = loaders.train.dataset
    parts: list[Any] = list(dataset.parts) if isinstance(dataset, Mixture) else [dataset]
    return parts


def collate_preferences(samples: Sequence[PreferenceSample | TuningSample], family: Family) -> Batch:
    """A batch of B samples: for validation see :func:`idc.vlm.samples.collate_samples`; for training the family's
    pixels, before and after alternating, and

    - ``candidates`` (B, N) with ``noise``; ``chosen`` (B,);
    - ``frames`` uint8 (B, 2, 3, S, S), with a retriever;
    - ``prompt``, ``row``: lists of B.
    """
    if isinstance(samples[0], TuningSample):
        return collate_samples([sample for sample in samples if isinstance(sample, TuningSample)], family)
    rows = [sample for sample in samples if isinstance(sample, PreferenceSample)]
    batch: dict[str, Any] = {
        **join_pixels([sample.pixels for sample in rows], family),
        "candidates": torch.tensor([sample.candidates for sample in rows]),
        "noise": torch.from_numpy(np.stack([sample.noise for sample in rows])).float(),
        "chosen": torch.tensor([sample.chosen for sample in rows]),
        **{key: [getattr(sample, key) for sample in rows] for key in ("prompt", "row")},
    }
    if rows[0].frames is not None:
        batch["frames"] = torch.stack([sample.frames for sample in rows if sample.frames is not None])
    return batch
