"""M3Diff: supervised tuning with the module between tower and projector; its entry and its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from idc.data.domain import pairs_domain
from idc.data.manifest import complete_manifest
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.data import make_loaders
from idc.systems.m3diff.model import Mdp, encode_pairs, new_mdp
from idc.training.config import GroupConfig
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import Batch
from idc.vlm.config import GenerateConfig, TuneConfig
from idc.vlm.family import Family
from idc.vlm.samples import trained_on as trained_on_pairs
from idc.vlm.sft import SftTask
from idc.vlm.system import TunedSystem
from idc.vlm.tuning import optim_groups


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
