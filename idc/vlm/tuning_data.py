"""The loaders of a tuning: dialogues of its folders, all of them encoded once before the training starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from idc.data.domain import pairs_domain
from idc.data.manifest import complete_manifest
from idc.training.context import Context
from idc.training.data import Dataset, EvalLoader, Loader, Loaders, Mixture
from idc.training.task import Batch
from idc.util import logs
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, collate_samples
from idc.vlm.tuning_config import TuningJob


def dialogue_loaders(job: TuningJob, family: Family, context: Context, one_size: bool = False) -> Loaders:
    """Loaders of the training and the validation split of a job's folders.

    Raises:
        ValueError: naming the first row that cannot be used.
    """
    chat, seed = Chat(family, job.cutoff), job.train.seed
    parts = {
        path: DialogueSamples(path, "train", chat, job.prompt, seed + number, job.captions, one_size=one_size)
        for number, path in enumerate((job.pairs, *job.more_pairs))
    }
    validation = DialogueSamples(job.pairs, "val", chat, job.prompt, seed, validation=True, one_size=one_size)
    return loaders_of(job, parts, validation, family, context)


def loaders_of(
    job: TuningJob,
    parts: Mapping[str, DialogueSamples],
    validation: DialogueSamples | None,
    family: Family,
    context: Context,
    collate: Callable[..., Batch] = collate_samples,
) -> Loaders:
    """Loaders of these samples, all of which are encoded once; an epoch is one pass over all parts.

    Args:
        parts: of the training, by name; their order is part of the seed.
        validation: None for no validation.
        collate: makes a batch of samples and the keyword ``family``.

    Raises:
        ValueError: naming the first row that cannot be used.
    """
    every = [*parts.values(), *([] if validation is None else [validation])]
    longest = max(part.check(context.rank, context.world_size) for part in every)
    longest = max(context.all_gather_object(longest))
    if context.rank == 0:
        number = sum(map(len, parts.values()))
        text = f"{number:,} training dialogues; the longest of all, with validation, has {longest:,} tokens"
        logs.event("dialogues", text, number=number, longest=longest)
    training: Dataset = next(iter(parts.values())) if len(parts) == 1 else Mixture(parts, job.train.seed)
    of_family = partial(collate, family=family)
    size = max(1, job.train.micro_batch_size // context.world_size)
    train = Loader(training, of_family, job.train, context.rank, context.world_size)
    if validation is None:
        return Loaders(train)
    limit = job.validation_samples
    return Loaders(train, EvalLoader(validation, size, context.rank, context.world_size, of_family, limit=limit))


def trained_on(job: TuningJob) -> str:
    """Description of the images that a model of this job was trained on."""
    folders = (job.pairs, *job.more_pairs)
    rows = sum(complete_manifest(path).rows_by_split.get("train", 0) for path in folders)
    return job.trained_on or pairs_domain(folders, None, rows)
