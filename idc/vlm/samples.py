"""Dialogues about images as training samples, from folders of pairs or of instructions, and their loaders.

A sample depends on (seed, epoch, index) alone. Its length follows from the headers of its images, so that samples can
be grouped by length, and a dialogue that is too long is refused before the training starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from idc.data.domain import pairs_domain
from idc.data.images import decode_image, image_size, resize_image
from idc.data.manifest import complete_manifest, uncaptioned
from idc.data.mapped_rows import MappedRows
from idc.data.schema import Instruction, Turn
from idc.metrics.scene_scores import TrueDifferences, Truth, scene_truth
from idc.training.caption_validation import row_truths
from idc.training.context import Context
from idc.training.data import EvalLoader, Loader, Loaders, mixture_of, sample_rng
from idc.training.task import Batch
from idc.util import logs
from idc.vlm.batch import Sample, collate_encoded, prompt_sample
from idc.vlm.chat import Chat, Size, caption_turns
from idc.vlm.config import Captions, PromptConfig, TuningJob
from idc.vlm.family import Family


@dataclass(frozen=True)
class Dialogue:
    """A row as a dialogue.

    Attributes:
        name: for messages.
        images: encoded bytes, in the order of their marks in the turns.
        references: right answers to the last question.
        scene: the truth (:func:`idc.metrics.scene_scores.scene_truth`), if it is known.
        one_size: the images are a pair, both seen at the size of the first (:func:`at_one_size`).
    """

    name: str
    images: Sequence[bytes]
    turns: Sequence[Turn]
    references: Sequence[str] = ()
    scene: Any = None
    one_size: bool = False

    @property
    def sizes(self) -> list[Size]:
        """Sizes at which the model is given the images, from their headers. ValueError: an image cannot be read, or
        there are not the two images of a pair."""
        if self.one_size and len(self.images) != 2:
            raise ValueError(
                f"number of images: {len(self.images)}; the model compares exactly two, before and after; leave the "
                "row out"
            )
        sizes = [image_size(image) for image in self.images]
        return sizes[:1] * 2 if self.one_size else sizes

    def decoded(self) -> list[np.ndarray]:
        """The images as the model is given them, uint8 (H, W, 3)."""
        images = [decode_image(image) for image in self.images]
        return at_one_size(*images) if self.one_size else images


def at_one_size(before: np.ndarray, after: np.ndarray) -> list[np.ndarray]:
    """A pair for a model that compares its images position by position: the image after is resized to the size of the
    image before."""
    return [before, resize_image(after, before.shape[:2])]


@dataclass(frozen=True)
class TuningSample:
    """A sample; for validation with what is scored besides its tokens and pixels, and the ids of the dialogue up to its
    last answer."""

    sample: Sample
    dialogue: Dialogue | None = None
    prompt: Sequence[int] = ()


class DialogueSamples:
    """The dialogues of a split, as an :class:`idc.training.data.Dataset`. Pairs without captions are left out.
    ValueError: the folder is of another kind, incomplete, or has no images.

    Args:
        folder: of kind ``pairs`` or ``instructions``.
        prompt: the question about a pair; instructions have their own.
        captions: each caption of a pair is a sample, or one is drawn at every visit.
        validation: samples also have what is scored; pairs have their first caption.
        one_size: see :class:`Dialogue`, for all of them.
    """

    def __init__(
        self,
        folder: str,
        split: str,
        chat: Chat,
        prompt: PromptConfig,
        seed: int,
        captions: Captions = "each",
        validation: bool = False,
        one_size: bool = False,
    ):
        self.folder, self.chat, self.prompt, self.seed, self.one_size = folder, chat, prompt, seed, one_size
        self.draws = captions == "one" and not validation
        kind = complete_manifest(folder).kind
        if kind not in ("pairs", "instructions"):
            raise ValueError(f"{folder} holds {kind}; give a folder of pairs or of instructions")
        self.of_pairs = kind == "pairs"
        if self.of_pairs:
            self.rows = MappedRows(folder, ("pair_id", "before", "after", "captions", "change_type", "meta"), split)
            self.counts: Sequence[int] = self.rows.list_lengths("captions").tolist()
        else:
            self.rows = MappedRows(folder, ("row_id", "images", "turns", "of_pair"), split)
            self.counts = [1] * len(self.rows)
        once = self.draws or validation
        self.order = [
            (row, n) for row, count in enumerate(self.counts) for n in range(min(1, count) if once else count)
        ]
        self.validation = validation
        self._lengths: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.order)

    def get(self, index: int, epoch: int) -> TuningSample:
        row, number = self._visit(index, epoch)
        dialogue = self.dialogue(row, number)
        sample = encode_dialogue(self.chat, dialogue)
        if not self.validation:
            return TuningSample(sample)
        return TuningSample(sample, dialogue, self.chat.prompt(dialogue.turns[:-1], dialogue.sizes))

    def truths(self) -> Iterator[Truth | TrueDifferences | None]:
        """The known truths of the samples' pairs; empty for instructions."""
        return row_truths(self.rows, [row for row, _ in self.order]) if self.of_pairs else iter(())

    def strata(self) -> list[str | None]:
        """The change type of each sample's pair; None for instructions."""
        kinds = self.rows.column("change_type") if self.of_pairs else [None] * len(self.rows)
        return [kinds[row] for row, _ in self.order]

    def length(self, index: int, epoch: int) -> int:
        row, number = self._visit(index, epoch)
        if (row, number) not in self._lengths:
            self._measure(row)
        return self._lengths[row, number]

    def check(self, rank: int = 0, world_size: int = 1) -> int:
        """Encode every dialogue of this rank's share without its pixels, half a millisecond of a core each. Returns the
        number of tokens of the longest one. ValueError: naming the row: as :meth:`idc.vlm.chat.Chat.encode`, an image
        cannot be read, or with ``one_size`` there are not two of them."""
        for row in list(dict.fromkeys(row for row, _ in self.order))[rank::world_size]:
            self._measure(row)
        return max(self._lengths.values(), default=0)

    def _measure(self, row: int) -> None:
        """The lengths of a row's dialogues; validation uses only the first."""
        columns = self.rows[row]
        sizes: list[Size] | None = None
        for number in range(1 if self.validation else self.counts[row]):
            dialogue = self.dialogue_of(columns, number)
            try:
                sizes = sizes or dialogue.sizes
                self._lengths[row, number] = len(self.chat.encode(dialogue.turns, sizes).ids)
            except ValueError as error:
                raise ValueError(f"{self.folder}, row {dialogue.name!r}: {error}") from None

    def dialogue(self, row: int, number: int) -> Dialogue:
        """Of a row; of a pair, with its caption of this number. All dialogues of a row are about the same images."""
        return self.dialogue_of(self.rows[row], number)

    def dialogue_of(self, row: Mapping[str, Any], number: int) -> Dialogue:
        if not self.of_pairs:
            instruction = Instruction.from_row(row)
            images: Any = instruction.images  # in a folder they are bytes
            last = instruction.turns[-1].text
            return Dialogue(instruction.row_id, images, instruction.turns, (last,), one_size=self.one_size)
        meta = json.loads(row["meta"]) if row["meta"] else {}
        return Dialogue(
            row["pair_id"],
            (row["before"], row["after"]),
            [*caption_turns(self.prompt), Turn("assistant", row["captions"][number], "caption")],
            row["captions"],
            scene_truth(row["change_type"], meta),
            self.one_size,
        )

    def _visit(self, index: int, epoch: int) -> tuple[int, int]:
        row, number = self.order[index]
        if self.draws:
            number = int(sample_rng(self.seed, epoch, index).integers(self.counts[row]))
        return row, number


def encode_dialogue(chat: Chat, dialogue: Dialogue) -> Sample:
    images = dialogue.decoded()
    encoded = chat.encode(dialogue.turns, [(image.shape[0], image.shape[1]) for image in images])
    return Sample(encoded.ids, encoded.learned, chat.family.pixels(images) if images else {})


def collate_samples(samples: Sequence[TuningSample], family: Family) -> Batch:
    """A batch of B samples (:func:`idc.vlm.batch.collate_encoded`), for validation also with

    - ``prompt``: the prompts, padded on the left, without pixels;
    - ``name``, ``references``, ``scene``: lists of B.
    """
    batch = collate_encoded([sample.sample for sample in samples], family)
    dialogues = [sample.dialogue for sample in samples if sample.dialogue is not None]
    if not dialogues:
        return batch
    assert len(dialogues) == len(samples), "samples of training and of validation in one batch"
    return {
        **batch,
        "prompt": collate_encoded([prompt_sample(sample.prompt) for sample in samples], family, "left"),
        "name": [dialogue.name for dialogue in dialogues],
        "references": [list(dialogue.references) for dialogue in dialogues],
        "scene": [dialogue.scene for dialogue in dialogues],
    }


def dialogue_loaders(job: TuningJob, family: Family, context: Context, one_size: bool = False) -> Loaders:
    """Loaders of the training and the validation split of a job's folders; a ValueError names the first row that cannot
    be used."""
    chat, seed = Chat(family, job.cutoff), job.train.seed
    parts = {
        path: DialogueSamples(path, "train", chat, job.prompt, seed + number, job.captions, one_size=one_size)
        for number, path in enumerate((job.pairs, *job.more_pairs))
    }
    if empty := [path for path, part in parts.items() if not len(part)]:
        raise ValueError(uncaptioned(empty[0], "train"))
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, seed, validation=True, one_size=one_size)
    return loaders_of(job, parts, validation, family, context)


def loaders_of(
    job: TuningJob,
    parts: Mapping[str, DialogueSamples],
    validation: DialogueSamples | None,
    family: Family,
    context: Context,
    collate: Callable[..., Batch] = collate_samples,
    updates: int = 1,
) -> Loaders:
    """Loaders of these samples, all of which are encoded once here; an epoch is one pass over all ``parts``, whose
    order is part of the seed; ``updates``: see :class:`idc.training.data.Loader`. A ValueError names the first row that
    cannot be used."""
    every = [*parts.values(), *([] if validation is None else [validation])]
    longest = max(part.check(context.rank, context.world_size) for part in every)
    longest = max(context.all_gather_object(longest))
    if context.rank == 0:
        number = sum(map(len, parts.values()))
        text = f"{number:,} training dialogues; the longest of all, with validation, has {longest:,} tokens"
        logs.event("dialogues", text, number=number, longest=longest)
    training = mixture_of(parts, job.train.seed)
    of_family = partial(collate, family=family)
    size = max(1, job.train.micro_batch_size // context.world_size)
    train = Loader(training, of_family, job.train, context.rank, context.world_size, updates)
    if validation is None:
        return Loaders(train)
    limit = job.validation_samples
    return Loaders(train, EvalLoader(validation, size, context.rank, context.world_size, of_family, limit=limit))


def trained_on(job: TuningJob) -> str:
    """Description of the images that a model of this job was trained on."""
    folders = (job.pairs, *job.more_pairs)
    rows = sum(complete_manifest(path).rows_by_split.get("train", 0) for path in folders)
    return job.trained_on or pairs_domain(folders, None, rows)
