"""The samples of a mixture: the dialogues of its sets, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Mapping

from idc.systems.m3diff.mixture import MixtureConfig, SetCount, check_sets
from idc.vlm.chat import Chat
from idc.vlm.samples import DialogueSamples


def training_parts(mixture: MixtureConfig, chat: Chat, seed: int) -> dict[str, DialogueSamples]:
    """The dialogues of each set and split that is trained on, by name (``omnidiff``, ``omnidiff (val)``). A split
    without captions is left out.

    Raises:
        ValueError: a set cannot be trained on (:func:`idc.systems.m3diff.mixture.check_sets`).
    """
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


def counts(mixture: MixtureConfig, parts: Mapping[str, DialogueSamples]) -> list[SetCount]:
    """Contribution of each set to an epoch, with all of its parts."""
    set_counts = []
    for name in mixture.used:
        set_parts = [
            part for key, part in parts.items() if key in (name, *(f"{name} ({split})" for split in mixture.splits))
        ]
        pairs = sum(count > 0 for part in set_parts for count in part.counts)
        set_counts.append(SetCount(name, pairs, sum(sum(part.counts) for part in set_parts), sum(map(len, set_parts))))
    return set_counts


def validation_samples(mixture: MixtureConfig, chat: Chat, seed: int) -> DialogueSamples | None:
    """The dialogues of the validation split of the set that is validated, None if there is no validation.

    Raises:
        ValueError: naming the set, if its validation split has no captions.
    """
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
