"""The caption bank, and samples with candidates of it for their negatives: all random choices belong to (seed, epoch,
index), also the noise by which the retriever draws, so that a run is the same however it is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.data.schema import NO_CHANGE
from idc.metrics.no_change import states_no_change
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
    """Different captions by number. Two captions are the same if they differ in white space alone.

    Args:
        captions: of the training pairs; in this order they get their numbers.

    Attributes:
        texts: of the captions.
        answers: their ids, with end tokens.
        unchanged: numbers of those that say that nothing changed.

    Raises:
        ValueError: a caption has control tokens of the model in it.
    """

    def __init__(self, captions: Iterable[str], chat: Chat) -> None:
        self.texts = list(dict.fromkeys(_plain(text) for text in captions))
        self._number = {text: number for number, text in enumerate(self.texts)}
        self.answers = [chat.answer_ids(text) for text in self.texts]
        self.unchanged = frozenset(number for number, text in enumerate(self.texts) if states_no_change(text))

    def __len__(self) -> int:
        return len(self.texts)

    def number(self, caption: str) -> int:
        return self._number[_plain(caption)]

    def positives(self, references: Sequence[str], unchanged: bool) -> frozenset[int]:
        """Captions that are right for a pair, as far as its references show: these, and if it is unchanged all that say
        so."""
        same = frozenset(self.number(text) for text in references)
        return same | self.unchanged if unchanged or same & self.unchanged else same

    def candidates(self, positives: Collection[int], count: int, rng: np.random.Generator) -> list[int]:
        """``count`` captions by number that are no positives.

        Raises:
            ValueError: there are not so many.
        """
        order = rng.permutation(len(self))[: count + len(positives)].tolist()
        taken = [number for number in order if number not in positives][:count]
        if len(taken) < count:
            raise ValueError(self.too_few(len(taken), count))
        return taken

    def too_few(self, left: int, count: int) -> str:
        return (
            f"of the bank's {len(self)} captions {left} are not right for it too, and {count} candidates are drawn; "
            + ("draw fewer, or leave the pair out" if left else "leave the pair out")
        )


def _plain(caption: str) -> str:
    return " ".join(caption.split())


@dataclass(frozen=True)
class PreferenceSample:
    """A caption of a pair and candidates for what it is preferred to.

    Attributes:
        row: of its folder (part, row).
        prompt: ids of the question.
        chosen: number of the caption in the bank; ``candidates``: of the candidates.
        noise: Gumbel noise, one for each candidate.
        pixels: of :meth:`idc.vlm.family.Family.pixels`; ``frames``: the images as the retriever sees them.
    """

    row: tuple[int, int]
    prompt: Sequence[int]
    chosen: int
    candidates: Sequence[int]
    noise: np.ndarray
    pixels: Mapping[str, Tensor]
    frames: Tensor | None


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
