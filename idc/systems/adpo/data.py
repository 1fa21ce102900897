"""Samples with candidates for their negatives: all random choices belong to (seed, epoch, index), also the noise by
which the retriever draws, so that a run is the same however it is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.data.manifest import complete_manifest, read_manifest
from idc.data.mapped_rows import MappedRows
from idc.metrics.difference_lists import TrueDifferences, true_differences
from idc.schema import NO_CHANGE, Turn
from idc.systems.adpo.caption_bank import CaptionBank
from idc.systems.adpo.config import ORDERS, AdpoJob
from idc.systems.adpo.retriever import frames_of
from idc.systems.adpo.stored_reference import StoredReference
from idc.training.context import Context
from idc.training.data import Loader, Loaders, Mixture
from idc.training.task import Batch
from idc.vlm.batch import join_pixels
from idc.vlm.chat import Chat
from idc.vlm.dialogue import completed
from idc.vlm.family import Family
from idc.vlm.samples import Dialogue, DialogueSamples, TuningSample, collate_samples
from idc.vlm.tuning_data import loaders_of

_NEGATIVES = 3
"""Last word of the seeds of candidates and noise; others: :mod:`idc.training.data`."""


@dataclass(frozen=True)
class PreferenceSample:
    """A caption of a pair and candidates for what it is preferred to.

    Attributes:
        name: pair_id; ``row``: of its folder (part, row).
        prompts: ids of the question, for each of :data:`idc.systems.adpo.config.ORDERS` that is used.
        chosen: number of the caption in the bank; ``candidates``: of the candidates.
        noise: Gumbel noise, one for each candidate.
        changed: whether an image negative says something of this pair.
        pixels: of :meth:`idc.vlm.family.Family.pixels`; ``frames``: the images as the retriever sees them.
        truth: of a rendered pair.
        stored: log-probabilities of the reference: of the chosen caption, the candidates, the image negatives.
    """

    name: str
    row: tuple[int, int]
    prompts: Mapping[str, Sequence[int]]
    chosen: int
    candidates: Sequence[int]
    noise: np.ndarray
    changed: bool
    pixels: Mapping[str, Tensor]
    frames: Tensor | None
    truth: TrueDifferences | None
    stored: Sequence[float] | None


class PreferenceSamples(DialogueSamples):
    """The training split of a folder of pairs.

    Args:
        job, chat, bank: of the run.
        part: number of the folder among those of the run.
        frame_size: side of the images as the retriever sees them; None with objective=dpo, which has none, and whose
            candidates are the negatives.
        stored: log-probabilities of the reference, if they are stored; read before the first sample is taken.

    Raises:
        ValueError: the folder is not one of pairs.
    """

    def __init__(
        self, job: AdpoJob, folder: str, part: int, chat: Chat, frame_size: int | None,
        stored: StoredReference | None,
    ) -> None:  # fmt: skip
        super().__init__(folder, "train", chat, job.prompt, job.train.seed + part, job.captions)
        if not self.of_pairs:
            raise ValueError(f"{folder} holds instructions; objective={job.objective} needs pairs")
        self.job, self.part, self.frame_size, self.stored = job, part, frame_size, stored
        self.bank: CaptionBank
        self.kinds = self.rows.column("change_type")
        self.captions = self.rows.column("captions")
        self.count = job.candidates if frame_size else job.negatives

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
        changed = columns["change_type"] != NO_CHANGE and chosen not in self.bank.unchanged
        return PreferenceSample(
            name=dialogue.name,
            row=(self.part, row),
            prompts=self.prompts(dialogue.turns[:-1], dialogue.sizes),
            chosen=chosen,
            candidates=candidates,
            noise=noise,
            changed=changed,
            pixels=self.chat.family.pixels(images),
            frames=frames_of(images, self.frame_size) if self.frame_size else None,
            truth=truth,
            stored=self._stored(row, chosen, candidates),
        )

    def prompts(self, turns: Sequence[Any], sizes: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
        """As of :func:`prompts_of`."""
        return prompts_of(self.job, self.chat, turns, sizes)

    def has_truths(self) -> bool:
        """Whether the truth of every pair is known."""
        metas = self.rows.column("meta")
        kinds = zip(self.kinds, metas, strict=True)
        return all(true_differences(kind, json.loads(meta) if meta else {}) is not None for kind, meta in kinds)

    def _stored(self, row: int, chosen: int, candidates: Sequence[int]) -> list[float] | None:
        return None if self.stored is None else self.stored.of(self.part, row, self.answers_of(chosen, candidates))

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

    def answers_of(self, chosen: int, candidates: Sequence[int]) -> list[tuple[int, str]]:
        """(caption, images) of everything that the reference may be asked for a sample, chosen first."""
        return [
            *((caption, "right") for caption in (chosen, *candidates)),
            *((chosen, order) for order in self.job.image_negatives),
        ]

    def needed(self, index: int, epoch: int) -> tuple[int, list[tuple[int, str]]]:
        """The row of a sample and its :meth:`answers_of`; no image is opened."""
        row, _ = self._visit(index, epoch)
        truth = self._truth(self.rows[row]) if self.job.true_negatives == "drop" else None
        chosen, candidates, _ = self.captions_of(index, epoch, truth)
        return row, self.answers_of(chosen, candidates)

    def images(self, row: int) -> tuple[bytes, bytes]:
        """Before and after."""
        columns = self.rows[row]
        return columns["before"], columns["after"]

    def _truth(self, columns: Mapping[str, Any]) -> TrueDifferences | None:
        return true_differences(columns["change_type"], json.loads(columns["meta"]) if columns["meta"] else {})


class RankedSamples:
    """Ranked captions, the training split of a folder of kind preferences. The bank has the captions of all rows.

    Args:
        job, chat: of the run.

    Raises:
        ValueError: the folder is of another kind, or a caption has control tokens of the model in it.
    """

    part, stored = 0, None

    def __init__(self, job: AdpoJob, folder: str, chat: Chat) -> None:
        complete_manifest(folder)
        read_manifest(folder, kind="preferences")
        self.folder, self.job, self.chat = folder, job, chat
        self.rows = MappedRows(folder, ("row_id", "images", "prompt", "chosen", "rejected"), "train")
        self.bank = CaptionBank([*self.rows.column("chosen"), *self.rows.column("rejected")], chat)
        self._lengths: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def images(self, row: int) -> tuple[bytes, bytes]:
        """Before and after."""
        before, after = self.rows[row]["images"]
        return before, after

    def has_truths(self) -> bool:
        return False

    def get(self, index: int, epoch: int) -> PreferenceSample:
        columns = self.rows[index]
        dialogue = self._dialogue(columns)
        return PreferenceSample(
            name=dialogue.name,
            row=(self.part, index),
            prompts=prompts_of(self.job, self.chat, dialogue.turns, dialogue.sizes),
            chosen=self.bank.number(columns["chosen"]),
            candidates=[self.bank.number(columns["rejected"])],
            noise=np.zeros(1),
            changed=True,
            pixels=self.chat.family.pixels(dialogue.decoded()),
            frames=None,
            truth=None,
            stored=None,
        )

    def length(self, index: int, epoch: int) -> int:
        """Number of tokens with the longer caption."""
        if index not in self._lengths:
            columns = self.rows[index]
            dialogue = self._dialogue(columns)
            answers = [self.bank.answers[self.bank.number(columns[name])] for name in ("chosen", "rejected")]
            self._lengths[index] = len(self.chat.prompt(dialogue.turns, dialogue.sizes)) + max(map(len, answers))
        return self._lengths[index]

    def check(self, rank: int = 0, world_size: int = 1) -> int:
        """The tokens of the longest dialogue of this rank's share.

        Raises:
            ValueError: naming the row: it is not about two images, or its tokens are above the cutoff.
        """
        for index in range(rank, len(self), world_size):
            try:
                length = self.length(index, 0)
                if self.chat.cutoff is not None and length > self.chat.cutoff:
                    raise ValueError(f"{length} tokens are above the cutoff of {self.chat.cutoff}; raise cutoff")
            except ValueError as error:
                raise ValueError(f"{self.folder}, row {self.rows[index]['row_id']!r}: {error}") from None
        return max(self._lengths.values(), default=0)

    def _dialogue(self, columns: Mapping[str, Any]) -> Dialogue:
        if (number := len(columns["images"])) != 2:
            raise ValueError(f"it has {number} images, and a pair has two; leave the row out")
        turns = completed([Turn("user", columns["prompt"])], self.job.prompt)
        return Dialogue(columns["row_id"], columns["images"], turns)


def prompts_of(
    job: AdpoJob, chat: Chat, turns: Sequence[Any], sizes: Sequence[tuple[int, int]]
) -> dict[str, list[int]]:
    """Ids of a question about a pair, for each order of its images that a run uses."""
    return {
        name: chat.prompt(turns, [sizes[image] for image in ORDERS[name]]) for name in ("right", *job.image_negatives)
    }


def make_loaders(
    job: AdpoJob, family: Family, context: Context, frame_size: int | None, stored: StoredReference | None
) -> Loaders:
    """Loaders of the training and the validation split; arguments as of :class:`PreferenceSamples`.

    Raises:
        ValueError: the bank is too small, or naming the first row that cannot be used.
    """
    chat = Chat(family, job.cutoff)
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, job.train.seed, validation=True)
    if job.preferences is not None:
        ranked: Mapping[str, Any] = {job.preferences: RankedSamples(job, job.preferences, chat)}
        return loaders_of(job, ranked, validation, family, context, collate_preferences)
    parts = samples_of(job, chat, frame_size, stored)
    return loaders_of(job, parts, validation, family, context, collate_preferences)


def samples_of(
    job: AdpoJob, chat: Chat, frame_size: int | None, stored: StoredReference | None = None
) -> dict[str, PreferenceSamples]:
    """Folder -> its training split, with one bank of the captions of all; arguments as of :class:`PreferenceSamples`.

    Raises:
        ValueError: the bank is too small.
    """
    folders = (job.pairs, *job.more_pairs)
    parts = {path: PreferenceSamples(job, path, n, chat, frame_size, stored) for n, path in enumerate(folders)}
    bank = CaptionBank((text for part in parts.values() for texts in part.captions for text in texts), chat)
    setting, wanted = ("candidates", job.candidates) if frame_size else ("negatives", job.negatives)
    if len(bank) <= wanted:
        raise ValueError(
            f"{setting}={wanted}: the training pairs have {len(bank)} different captions, the pair's own among them; "
            f"take at most {max(1, len(bank) - 1)}, or more pairs"
        )
    for part in parts.values():
        part.bank = bank
    return parts


def visits(job: AdpoJob, loaders: Loaders) -> Iterator[tuple[int, int, int]]:
    """(part, index, epoch) of every sample that a run takes, of all ranks."""
    whole = Loader.from_config(loaders.train.dataset, loaders.train.collate, job.train, 0, 1)
    for micro_step in range(job.train.total_steps(len(whole.dataset)) * job.train.grad_accumulation):
        for index, epoch in whole.samples(micro_step):
            located = whole.dataset.locate(index, epoch) if isinstance(whole.dataset, Mixture) else (0, index)
            yield (*located, epoch)


def preference_parts(loaders: Loaders) -> list[PreferenceSamples | RankedSamples]:
    """The folders of a run's training."""
    dataset = loaders.train.dataset
    parts: list[Any] = list(dataset.parts) if isinstance(dataset, Mixture) else [dataset]
    return parts


def collate_preferences(samples: Sequence[PreferenceSample | TuningSample], family: Family) -> Batch:
    """A batch of B samples, of validation as :func:`idc.vlm.samples.collate_samples`; of training the family's pixels,
    before and after in turn, and

    - ``candidates`` (B, N) with ``noise``; ``chosen`` (B,); ``changed`` bool (B,);
    - ``frames`` uint8 (B, 2, 3, S, S) and ``stored`` (B, answers), if they are used;
    - ``prompts``, ``name``, ``row``, ``truth``: lists of B.
    """
    if isinstance(samples[0], TuningSample):
        return collate_samples([sample for sample in samples if isinstance(sample, TuningSample)], family)
    rows = [sample for sample in samples if isinstance(sample, PreferenceSample)]
    batch: dict[str, Any] = {
        **join_pixels([sample.pixels for sample in rows], family),
        "candidates": torch.tensor([sample.candidates for sample in rows]),
        "noise": torch.from_numpy(np.stack([sample.noise for sample in rows])).float(),
        "chosen": torch.tensor([sample.chosen for sample in rows]),
        "changed": torch.tensor([sample.changed for sample in rows]),
        "prompts": [dict(sample.prompts) for sample in rows],
        **{key: [getattr(sample, key) for sample in rows] for key in ("name", "row", "truth")},
    }
    if rows[0].frames is not None:
        batch["frames"] = torch.stack([sample.frames for sample in rows if sample.frames is not None])
    if rows[0].stored is not None:
        batch["stored"] = torch.tensor([sample.stored for sample in rows])
    return batch
