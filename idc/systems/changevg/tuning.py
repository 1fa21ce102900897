"""ChangeVG: supervised tuning on ChangeIMTI's dialogues, each with a guide's notes before its first question; training
entry and artifact, which contains the guide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from idc.changeimti.config import RegionConfig
from idc.data.images import decode_image
from idc.data.manifest import complete_manifest
from idc.systems.changevg.config import GUIDE, ChangeVgJob, GuidedPromptConfig
from idc.systems.changevg.guide_captioner import GuideCaptioner, GuideNotes, guided_turns, read_guide
from idc.training.context import Context
from idc.training.data import Loaders
from idc.util import logs
from idc.vlm.chat import Chat
from idc.vlm.config import PromptConfig
from idc.vlm.family import Family
from idc.vlm.samples import Dialogue, DialogueSamples, loaders_of
from idc.vlm.system import TunedSystem

_BATCH = 16
"""Pairs in a batch of the guide."""


class ImtiDialogues(DialogueSamples):
    """The dialogues of a split of ChangeIMTI, without rows of other tasks.

    Args:
        folder, split, chat, prompt, seed: see :class:`idc.vlm.samples.DialogueSamples`.
        validation: samples also have what is scored. If `tasks` has captions, they are each pair's first row that asks
            for its caption alone, with all captions of the pair as references; else every row.
    """

    def __init__(
        self, folder: str, split: str, chat: Chat, prompt: PromptConfig, seed: int, tasks: Sequence[str],
        validation: bool = False,
    ):  # fmt: skip
        super().__init__(folder, split, chat, prompt, seed, validation=validation)
        self.notes: Mapping[str, GuideNotes] | None = None
        self.quote = GuidedPromptConfig()
        self.pair_ids: list[str | None] = self.rows.column("of_pair")
        self.captions_of: dict[str, list[str]] = {}
        answers = [[turn for turn in turns if turn["role"] == "assistant"] for turns in self.rows.column("turns")]
        tasks_of_rows = ["dialogue" if len(of_row) > 1 else of_row[0]["task"] for of_row in answers]
        rows = [row for row, task in enumerate(tasks_of_rows) if task in tasks]
        if validation and "caption" in tasks:
            first: dict[str, int] = {}
            for row in rows:
                name = self.pair_ids[row]
                if tasks_of_rows[row] == "caption" and name is not None:
                    first.setdefault(name, row)
                    self.captions_of.setdefault(name, []).append(answers[row][0]["text"])
            rows = list(first.values())
        self.order = [(row, 0) for row in rows]

    def pairs(self) -> dict[str, int]:
        """The pairs of the samples, each with one row. ValueError: a row names no pair, or has not two images."""
        images = self.rows.list_lengths("images")
        row_of: dict[str, int] = {}
        for row, _ in self.order:
            name = self.pair_ids[row]
            if name is None or images[row] != 2:
                raise ValueError(
                    f"{self.folder}, row {self.rows[row]['row_id']!r}: belongs to no pair of two images, which a guide "
                    "needs; leave the row out, or tune without a guide"
                )
            row_of.setdefault(name, row)
        return row_of

    def dialogue_of(self, row: Mapping[str, Any], number: int) -> Dialogue:
        dialogue, name = super().dialogue_of(row, number), row["of_pair"]
        dialogue = replace(dialogue, references=self.captions_of.get(name, dialogue.references))
        if self.notes is None:
            return dialogue
        return replace(dialogue, turns=guided_turns(self.notes[name], dialogue.turns, self.quote))


def resolved_regions(job: ChangeVgJob) -> RegionConfig:
    """The regions that are counted: as the job says, else as the answers that it learns were built."""
    built = complete_manifest(job.pairs, kind="instructions").config
    try:
        return job.regions or RegionConfig.model_validate(built.get("regions", {}))
    except ValidationError:
        raise ValueError(
            f"pairs: {job.pairs} was built by an earlier version; build it again, or set regions"
        ) from None


def make_loaders(job: ChangeVgJob, family: Family, context: Context) -> Loaders:
    """Loaders of both splits; the guide runs once on each pair. ValueError names the first row that cannot be used."""
    chat, seed = Chat(family, job.cutoff), job.train.seed
    folders = dict.fromkeys((job.pairs, *job.more_pairs))
    parts = {
        path: ImtiDialogues(path, "train", chat, job.prompt, seed + number, job.tasks)
        for number, path in enumerate(folders)
    }
    validation = ImtiDialogues(job.pairs, "val", chat, job.prompt, seed, job.tasks, validation=True)
    for path, part in parts.items():
        if not len(part):
            raise ValueError(f"{path}: its training split has no rows of the tasks {', '.join(job.tasks)}")
    if not len(validation) and job.train.keep_best is not None:
        raise ValueError(
            f"pairs: {job.pairs} has no validation rows by which train.keep_best could choose, as it was built with "
            "val_as_train or without val; set train.keep_best=null"
        )
    if job.guide is not None:
        every = [*parts.values(), validation]
        notes = take_notes(job.guide, every, resolved_regions(job), context)
        for samples in every:
            samples.notes, samples.quote = notes, job.quote
    return loaders_of(job, parts, validation if len(validation) else None, family, context)


def take_notes(
    guide: str, every: Iterable[ImtiDialogues], regions: RegionConfig, context: Context
) -> dict[str, GuideNotes]:
    """The notes of a guide that runs on the pairs of the samples, each rank on its share."""
    captioner = GuideCaptioner(guide, str(context.device))
    samples_of = {name: (samples, row) for samples in every for name, row in samples.pairs().items()}
    mine: dict[str, GuideNotes] = {}
    share = list(samples_of)[context.rank :: context.world_size]
    for start in range(0, len(share), _BATCH):
        names = share[start : start + _BATCH]
        rows = [samples.rows[row] for samples, row in map(samples_of.__getitem__, names)]
        befores, afters = ([decode_image(row["images"][side]) for row in rows] for side in (0, 1))
        mine |= zip(names, captioner.notes(befores, afters, regions), strict=True)
    if context.rank == 0:
        logs.event("notes", f"the guide ran on {len(samples_of):,} pairs", pairs=len(samples_of))
    return {name: notes for part in context.all_gather_object(mine) for name, notes in part.items()}


class ChangeVg(TunedSystem[ChangeVgJob]):
    """Tuning on dialogues with notes; without a guide on the dialogues alone."""

    def loaders(self, job: ChangeVgJob, family: Family, context: Context) -> Loaders:
        return make_loaders(job, family, context)

    def extras(self, job: ChangeVgJob) -> Mapping[str, str]:
        return {} if job.guide is None else {GUIDE: str(read_guide(job.guide).path)}

    def saved(self, job: ChangeVgJob) -> ChangeVgJob:
        return job if job.guide is None else job.model_copy(update={"regions": resolved_regions(job)})

    def card(self, job: ChangeVgJob) -> str:
        if job.guide is None:
            return "tuned on questions about changed roads and buildings (ChangeIMTI), without a guide."
        return (
            "tuned on questions about changed roads and buildings (ChangeIMTI) with the notes of a guide, which is in "
            "this folder and runs first (ChangeVG)."
        )


SYSTEM = ChangeVg("changevg", ChangeVgJob)
train = SYSTEM.train
