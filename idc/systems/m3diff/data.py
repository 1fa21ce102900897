"""The samples of a run: dialogues about pairs, both images at one size, of one folder or of a mixture of data sets."""

from __future__ import annotations

from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.mixture import MixtureConfig, check_sets
from idc.training.context import Context
from idc.training.data import Loaders
from idc.util import logs
from idc.vlm.chat import Chat
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, loaders_of
from idc.vlm.samples import dialogue_loaders as dialogues


def make_loaders(job: M3DiffJob, family: Family, context: Context) -> Loaders:
    """Loaders of both splits. Of a mixture, rank 0 logs how many samples its sets have.

    Raises:
        ValueError: a set of the mixture cannot be trained on; or naming the first row that cannot be used, such as one
            that is not about two images.
    """
    if job.mixture is None:
        return dialogues(job, family, context, one_size=True)
    chat, seed = Chat(family, job.cutoff), job.train.seed
    parts = training_parts(job.mixture, chat, seed)
    validation = validation_samples(job.mixture, chat, seed)
    if context.rank == 0:
        text = ", ".join(f"{name} {len(part):,}" for name, part in parts.items())
        logs.event("mixture", f"samples of an epoch: {text}", sets={name: len(part) for name, part in parts.items()})
    return loaders_of(job, parts, validation, family, context)


def training_parts(mixture: MixtureConfig, chat: Chat, seed: int) -> dict[str, DialogueSamples]:
    """The dialogues of each set and split that is trained on, by name (``omnidiff``, ``omnidiff (val)``), without
    splits that have no captions. ValueError as of :func:`idc.systems.m3diff.mixture.check_sets`."""
    check_sets(mixture)
    parts: dict[str, DialogueSamples] = {}
    for name, data_set in mixture.used.items():
        for split in mixture.splits:
            captions, number = mixture.captions_of(name), seed + len(parts)
            prompt = mixture.prompt_of(name)
            part = DialogueSamples(data_set.pairs, split, chat, prompt, number, captions, one_size=True)
            if len(part):
                parts[name if split == "train" else f"{name} ({split})"] = part
    return parts


def validation_samples(mixture: MixtureConfig, chat: Chat, seed: int) -> DialogueSamples | None:
    """The dialogues of the validation split of the set that is validated, None if there is no validation. ValueError
    names a set whose validation split has no captions."""
    name = mixture.validated
    if name is None:
        return None
    folder = mixture.used[name].pairs
    samples = DialogueSamples(folder, "val", chat, mixture.prompt_of(name), seed, validation=True, one_size=True)
    if not len(samples):
        others = ", ".join(other for other in mixture.used if other != name)
        raise ValueError(
            f"mixture.validate_on: the validation split of {name!r} ({folder}) has no captions"
            + (f"; take another set: {others}" if others else "")
        )
    return samples
