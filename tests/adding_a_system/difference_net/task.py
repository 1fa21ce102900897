"""DifferenceNet as a task of the training loop, and the entry of its training."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import default_collate

from idc.data.store import iter_rows
from idc.systems.difference_net.config import DifferenceNetJob
from idc.systems.difference_net.data import Differences
from idc.systems.difference_net.model import DifferenceNet
from idc.training.artifact import write_artifact
from idc.training.context import Context
from idc.training.data import EvalLoader, Loader, Loaders
from idc.training.loop import fit
from idc.training.task import Batch, Task


class DifferenceNetTask(Task):
    def __init__(self, job: DifferenceNetJob, captions: int):
        super().__init__()
        self.net = DifferenceNet(job.side, captions)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        return F.cross_entropy(self.net(batch["difference"]), batch["caption"]), {}

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"name": "net", "params": list(self.net.parameters()), "lr": 1e-2}]


def train(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    job = DifferenceNetJob.model_validate(payload)
    frequency = Counter(text for row in iter_rows(job.pairs, ["captions"], "train") for text in row["captions"])
    captions = [text for text, _ in frequency.most_common(20)]
    train, val = (Differences(job.pairs, split, job.side, captions) for split in ("train", "val"))
    loaders = Loaders(
        Loader(train, default_collate, job.train, context.rank, context.world_size),
        EvalLoader(val, 32, context.rank, context.world_size, default_collate),
    )

    def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
        weights = {name.removeprefix("net."): tensor for name, tensor in state.items()}
        about = {"system": "difference_net", "config": {"side": job.side, "captions": captions}}
        write_artifact(context.run_dir / "artifact", **about, state_dict=weights, metrics=metrics)

    return fit(DifferenceNetTask(job, len(captions)), loaders, context, job.train, export=export)
