"""The entry of supervised tuning, and its artifact."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idc.systems.sft.config import SftJob
from idc.systems.sft.data import make_loaders
from idc.training.context import Context
from idc.training.loop import fit
from idc.vlm.artifact import write_tuned
from idc.vlm.base import find_base, load_model
from idc.vlm.sft import SftTask
from idc.vlm.tuning_data import trained_on


def train(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """Train on this rank; ``payload`` is a resolved :class:`SftJob`. Returns what ``fit`` returns."""
    job = SftJob.model_validate(payload)
    base = find_base(job.base)
    loaders = make_loaders(job, base.family, context)
    torch.manual_seed(job.train.seed)  # of the adapters
    task = SftTask(load_model(base.folder, job.base, context.device), base.family, job.tune, job.generation)

    def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
        write_tuned(
            context.run_dir / "artifact",
            system="sft",
            config={"job": job.model_dump(mode="json")},
            state=state,
            model=task.model,
            base=base,
            metrics=metrics,
            card=f"{base.name} after supervised tuning.",
            trained_on=trained_on(job),
        )

    return fit(task, loaders, context, job.train, export=export)
