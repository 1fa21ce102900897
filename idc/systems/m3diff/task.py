"""M3Diff: supervised tuning with the module between tower and projector; its entry and its artifact."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from idc.data.domain import pairs_domain
from idc.data.manifest import complete_manifest
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.data import make_loaders
from idc.systems.m3diff.model import Mdp, encode_pairs, new_mdp
from idc.training.config import GroupConfig
from idc.training.context import Context
from idc.training.loop import fit
from idc.training.task import Batch
from idc.vlm.artifact import write_tuned
from idc.vlm.base import find_base, load_model
from idc.vlm.config import GenerateConfig, TuneConfig
from idc.vlm.family import Family
from idc.vlm.sft import SftTask
from idc.vlm.tuning import own_groups
from idc.vlm.tuning_data import trained_on as trained_on_pairs


class M3DiffTask(SftTask):
    """Cross-entropy of the answers' tokens (section 4.3), with the module's features for the projector.

    Args:
        model, family, tune, generation: as of :class:`idc.vlm.sft.SftTask`.
        mdp: the module, new or trained.
        optim: its learning rate and schedule.
    """

    def __init__(
        self, model: Any, family: Family, tune: TuneConfig, generation: GenerateConfig, mdp: Mdp, optim: GroupConfig
    ):
        super().__init__(model, family, tune, generation)
        self.mdp, self.optim = mdp, optim

    def encode(self, batch: Batch) -> Any:
        pixels = {key: batch[key] for key in self.family.pixel_keys}
        return encode_pairs(self.model, self.family, self.mdp, pixels)[0]

    def param_groups(self) -> list[dict[str, Any]]:
        return super().param_groups() + own_groups(self.mdp, self.optim)

    def checkpointed_parts(self) -> list[nn.Module]:
        return [*super().checkpointed_parts(), *self.mdp.blocks()]


def trained_on(job: M3DiffJob) -> str:
    """The training data of a model of this job, in words."""
    if job.mixture is None or job.trained_on is not None:
        return trained_on_pairs(job)
    folders = [data_set.pairs for data_set in job.mixture.used.values()]
    rows = [complete_manifest(folder).rows_by_split for folder in folders]
    return pairs_domain(folders, None, sum(by_split.get(split, 0) for by_split in rows for split in job.mixture.splits))


def train(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """Train on this rank; ``payload`` is a resolved :class:`M3DiffJob`. Returns what ``fit`` returns."""
    job = M3DiffJob.model_validate(payload)
    base = find_base(job.base)
    torch.manual_seed(job.train.seed)  # of the module; it refuses a base that lacks its levels, before weights are read
    mdp = None if job.mdp is None else new_mdp(job.mdp, base.family).to(context.device)
    loaders = make_loaders(job, base.family, context)
    torch.manual_seed(job.train.seed)  # of the adapters
    model = load_model(base.folder, job.base, context.device)
    parts = (model, base.family, job.tune, job.generation)
    task = SftTask(*parts) if mdp is None or job.mdp is None else M3DiffTask(*parts, mdp, job.mdp.optim)
    saved = job.model_copy(update={"prompt": job.question})

    def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
        write_tuned(
            context.run_dir / "artifact",
            system="m3diff",
            config={"job": saved.model_dump(mode="json"), "own_modules": [] if mdp is None else ["mdp"]},
            state=state,
            model=task.model,
            base=base,
            metrics=metrics,
            card=f"{base.name} after supervised tuning."
            if mdp is None
            else f"{base.name} with a module that perceives differences between vision tower and projector (M3Diff); "
            "only this program runs it: merged into a hub folder it would be another model.",
            trained_on=trained_on(job),
        )

    return fit(task, loaders, context, job.train, export=export)
