"""M3Diff as a captioner; its change map is the difference of the module's gated features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from idc.captioning.contract import Speed
from idc.systems.m3diff.model import Mdp, encode_pairs
from idc.systems.m3diff.task import SYSTEM
from idc.vlm.captioner import Pairs, VlmCaptioner, token_distance_map
from idc.vlm.samples import at_one_size


class M3DiffCaptioner(VlmCaptioner):
    """As :class:`idc.vlm.captioner.VlmCaptioner`, with the module; ``mdp`` is None for a model that was tuned
    without it. An image after of another size than the image before is resized to that, as in training."""

    def __init__(self, mdp: Mdp | None, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.mdp = mdp

    def encode(self, pixels: Mapping[str, Tensor]) -> tuple[Any, list[Tensor] | None]:
        if self.mdp is None:
            return super().encode(pixels)
        return encode_pairs(self.model, self.family, self.mdp, pixels)

    def prepare_images(self, before: np.ndarray, after: np.ndarray) -> Sequence[np.ndarray]:
        return at_one_size(before, after)

    def maps(self, pairs: Pairs) -> list[np.ndarray]:
        """|F^_1 - F^_2| of the last level (equation 2), as a share of |F^_1| + |F^_2|: equal images have 0
        everywhere. One number for each patch of the tower, without padding."""
        if self.mdp is None:
            return super().maps(pairs)
        return [
            token_distance_map(self.family, apart[:, 2], apart[:, :2].long(), pairs.of(pair)[1])
            for pair, apart in enumerate(pairs.more)
        ]


def load_captioner(
    path: Path | str, device: str = "cpu", speed: Speed = "auto", base: str | None = None
) -> M3DiffCaptioner:
    """The captioner of an artifact; arguments and errors as of :meth:`idc.vlm.system.TunedSystem.load`. At "bf16" the
    module computes in bfloat16 too."""
    job, model, family, modules, options = SYSTEM.load(path, device, speed, base)
    mdp = modules.get("mdp")
    assert mdp is None or isinstance(mdp, Mdp)
    return M3DiffCaptioner(mdp, model, family, job.prompt, job.generation, **options)
