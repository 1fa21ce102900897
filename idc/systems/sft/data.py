"""The samples of a run: the dialogues of its folders."""

from __future__ import annotations

from functools import partial

from idc import logs
from idc.systems.sft.config import SftJob
from idc.training.context import Context
from idc.training.data import Dataset, EvalLoader, Loader, Loaders, Mixture
from idc.vlm.chat import Chat
from idc.vlm.families import Family
from idc.vlm.samples import DialogueSamples, collate_samples


def make_loaders(job: SftJob, family: Family, context: Context) -> Loaders:
    """Loaders of the training and the validation split, all of whose dialogues were encoded once.

    Raises:
        ValueError: naming the first row that cannot be used.
    """
    chat, seed = Chat(family, job.cutoff), job.train.seed
    parts = {
        path: DialogueSamples(path, "train", chat, job.prompt, seed + number, job.captions)
        for number, path in enumerate((job.pairs, *job.more_pairs))
    }
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, seed, validation=True)
    longest = max(part.check(context.rank, context.world_size) for part in (*parts.values(), validation))
    longest = max(context.all_gather_object(longest))
    if context.rank == 0:
        number = sum(map(len, parts.values()))
        text = f"{number:,} training dialogues; the longest of all, with validation, has {longest:,} tokens"
        logs.event("dialogues", text, number=number, longest=longest)
    training: Dataset = parts[job.pairs] if len(parts) == 1 else Mixture(parts, seed)
    collate = partial(collate_samples, family=family)
    size = max(1, job.train.micro_batch_size // context.world_size)
    return Loaders(
        Loader.from_config(training, collate, job.train, context.rank, context.world_size),
        EvalLoader(validation, size, context.rank, context.world_size, collate, limit=job.validation_samples),
    )
