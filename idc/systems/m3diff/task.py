"""M3Diff: supervised tuning with the module between tower and projector: the samples of one folder or of a mixture of
data sets, both images at one size; its entry and its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from idc.data.domain import pairs_domain
from idc.data.manifest import complete_manifest
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.mixture import MixtureConfig, check_sets
from idc.systems.m3diff.model import Mdp, encode_pairs, new_mdp
from idc.training.config import GroupConfig
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.util import logs
from idc.vlm.chat import Chat
from idc.vlm.config import GenerateConfig, TuneConfig
from idc.vlm.family import Family
from idc.vlm.samples import DialogueSamples, loaders_of
from idc.vlm.samples import dialogue_loaders as dialogues
from idc.vlm.samples import trained_on as trained_on_pairs
from idc.vlm.system import SftTask, TunedSystem
from idc.vlm.tuning import optim_groups


def make_loaders(job: M3DiffJob, family: Family, context: Context) -> Loaders:
    """Loaders of both splits. Of a mixture, rank 0 logs how many samples its sets have. ValueError: a set of the
    mixture cannot be trained on; or naming the first row that cannot be used, such as one that is not about two images.
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


class M3DiffTask(SftTask):
    """Cross-entropy of the answers' tokens (section 4.3), with the module's features for the projector; ``optim`` is
    the module's."""

    def __init__(
        self, model: Any, family: Family, tune: TuneConfig, generation: GenerateConfig, mdp: Mdp, optim: GroupConfig
    ):
        super().__init__(model, family, tune, generation)
        self.mdp, self.optim = mdp, optim

    def encode(self, batch: Batch) -> Any:
        pixels = {key: batch[key] for key in self.family.pixel_keys}
        return encode_pairs(self.model, self.family, self.mdp, pixels)[0]

    def param_groups(self) -> list[dict[str, Any]]:
        return super().param_groups() + optim_groups("own", self.mdp.named_parameters(), self.optim)

    def checkpointed_parts(self) -> list[nn.Module]:
        return [*super().checkpointed_parts(), *self.mdp.blocks()]


class M3Diff(TunedSystem[M3DiffJob]):
    """Tuning with the module ``mdp``; with ``mdp=null`` without it, on the same samples."""

    def own_modules(self, job: M3DiffJob, family: Family) -> dict[str, nn.Module]:
        return {} if job.mdp is None else {"mdp": new_mdp(job.mdp, family)}

    def task(self, job: M3DiffJob, model: Any, family: Family, modules: Mapping[str, nn.Module]) -> SftTask:
        if job.mdp is None:
            return super().task(job, model, family, modules)
        mdp = modules["mdp"]
        assert isinstance(mdp, Mdp)
        return M3DiffTask(model, family, job.tune, job.generation, mdp, job.mdp.optim)

    def loaders(self, job: M3DiffJob, family: Family, context: Context) -> Loaders:
        return make_loaders(job, family, context)

    def trained_on(self, job: M3DiffJob) -> str:
        if job.mixture is None or job.trained_on is not None:
            return trained_on_pairs(job)
        folders = [entry.pairs for entry in job.mixture.used.values()]
        counts = [complete_manifest(folder).rows_by_split for folder in folders]
        return pairs_domain(folders, None, sum(rows.get(split, 0) for rows in counts for split in job.mixture.splits))

    def saved(self, job: M3DiffJob) -> M3DiffJob:
        return job.model_copy(update={"prompt": job.question})

    def card(self, job: M3DiffJob) -> str:
        if job.mdp is None:
            return super().card(job)
        return (
            "with a module that perceives differences between vision tower and projector (M3Diff); "
            "only this program runs it: merged into a hub folder it would be another model."
        )


SYSTEM = M3Diff("m3diff", M3DiffJob)
train = SYSTEM.train
