"""Supervised tuning on questions with a hint, and a preference for the images in their order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from idc.systems.hinted.config import HintedJob
from idc.systems.hinted.data import with_hint_of_row
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.task import SAMPLES, Batch
from idc.vlm.family import Family
from idc.vlm.logps import repeated
from idc.vlm.sft import SftTask, sample_losses
from idc.vlm.system import TunedSystem
from idc.vlm.tuning_data import dialogue_loaders


class HintedTask(SftTask):
    """L = loss(caption | before, after) - order * log sigmoid(loss(caption | after, before) - loss(caption | before,
    after)), by one vision pass."""

    def __init__(self, job: HintedJob, model: Any, family: Family):
        super().__init__(model, family, job.tune, job.generation)
        self.order = job.order

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        encoded = self.encode(batch)
        exchanged = [image ^ 1 for image in range(2 * batch[SAMPLES])]
        features, language = repeated(encoded, batch, exchanged, self.family)
        right = sample_losses(*self.token_losses(batch, encoded), batch[SAMPLES])
        wrong = sample_losses(*self.token_losses({**batch, **language}, features), batch[SAMPLES])
        losses = right - self.order * F.logsigmoid(wrong - right)
        return losses.mean(), {"margin": (wrong - right).mean().detach()}


class Hinted(TunedSystem[HintedJob]):
    def task(self, job: HintedJob, model: Any, family: Family, modules: Mapping[str, nn.Module]) -> SftTask:
        return HintedTask(job, model, family)

    def loaders(self, job: HintedJob, family: Family, context: Context) -> Loaders:
        return dialogue_loaders(job, family, context, prompt_of=partial(with_hint_of_row, job.prompt))


SYSTEM = Hinted("hinted", HintedJob)
train = SYSTEM.train
