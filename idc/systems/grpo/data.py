"""Dialogues about pairs whose answers are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from idc.rewards import policy
from idc.rewards.rewards import with_meta
from idc.systems.grpo.config import GrpoJob
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.batch import collate_encoded, join_pixels, prompt_sample
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, TuningSample, collate_samples, loaders_of


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

    def get(self, index: int, epoch: int) -> Any:
        row, number = self._visit(index, epoch)
        dialogue = self.dialogue(row, number)
        return {
            "visit": (self.part, index, epoch),
            "row": with_meta(self.rows[row]),
            "prompt": self.chat.prompt(dialogue.turns[:-1], dialogue.sizes),
            "pixels": self.chat.family.pixels(dialogue.decoded()),
            "draws": policy.draws_of(self.seed, epoch, index, self.group, self.longest),
        }


def make_loaders(job: GrpoJob, family: Family, context: Context) -> Loaders:
    """Loaders of both splits. ValueError names the first row that cannot be used."""
    chat = Chat(family, job.cutoff)
    folders = (job.pairs, *job.more_pairs)
    parts = {path: DrawnDialogues(job, path, number, chat) for number, path in enumerate(folders)}
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, job.train.seed, validation=True)
    return loaders_of(job, parts, validation, family, context, collate_drawn, job.updates)


def collate_drawn(samples: Sequence[Mapping[str, Any] | TuningSample], family: Family) -> Batch:
    """A batch of B samples: for validation see :func:`idc.vlm.samples.collate_samples`; for training
    :func:`idc.rewards.policy.collate_draws`, the family's pixels, before and after alternating, and the prompts:
    ``prompt``, a list, and ``padded``, on the left, without pixels."""
    if validated := [sample for sample in samples if isinstance(sample, TuningSample)]:
        return collate_samples(validated, family)
    drawn = [sample for sample in samples if isinstance(sample, Mapping)]
    prompts = [sample["prompt"] for sample in drawn]
    return {
        **policy.collate_draws(drawn),
        **join_pixels([sample["pixels"] for sample in drawn], family),
        "prompt": prompts,
        "padded": collate_encoded([prompt_sample(ids) for ids in prompts], family, "left"),
    }
