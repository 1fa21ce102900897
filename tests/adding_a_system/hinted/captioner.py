"""The captioner of a Hinted artifact: it looks for the hint itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from idc.captioning.contract import Speed
from idc.systems.hinted.data import with_hint
from idc.systems.hinted.task import SYSTEM
from idc.vlm.captioner import VlmCaptioner
from idc.vlm.config import PromptConfig


class HintedCaptioner(VlmCaptioner):
    def pair_prompts(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[PromptConfig]:
        return [with_hint(self.prompt, before, after) for before, after in zip(befores, afters, strict=True)]


def load_captioner(path: str, device: str = "cpu", speed: Speed = "auto", base: str | None = None) -> HintedCaptioner:
    job, model, family, _, options = SYSTEM.load(path, device, speed, base)
    return HintedCaptioner(model, family, job.prompt, job.generation, **options)
