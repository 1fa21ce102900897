"""DifferenceNet as a task of the training loop, and the entry of its training."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import default_collate

from idc.nn.captioned_rows import training_captions
from idc.systems.difference_net.config import DifferenceNetJob
from idc.systems.difference_net.data import Differences
from idc.systems.difference_net.model import DifferenceNet
from idc.training.context import Context
from idc.training.system import Parts, System
from idc.training.task import Batch, Task


class DifferenceNetTask(Task):
    def __init__(self, job: DifferenceNetJob, captions: int):
        super().__init__()
        self.net = DifferenceNet(job.side, captions)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        return F.cross_entropy(self.net(batch["difference"]), batch["caption"]), {}

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"name": "net", "params": list(self.net.parameters()), "lr": 1e-2}]


def build(job: DifferenceNetJob, context: Context) -> Parts:
    frequency = Counter(training_captions(job.pairs))
    captions = [text for text, _ in frequency.most_common(20)]
    train, val = (Differences(job.pairs, split, job.side, captions) for split in ("train", "val"))
    task = DifferenceNetTask(job, len(captions))
    config = {"side": job.side, "captions": captions}
    return Parts(task, train, val, default_collate, lambda: {"config": config}, weights="net.")


train = System("difference_net", DifferenceNetJob, build).train
