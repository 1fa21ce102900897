"""The captioner of a DifferenceNet artifact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from idc.captioning.contract import Candidate, Capability, Captioner, Description, SearchOptions
from idc.systems.difference_net.data import difference
from idc.systems.difference_net.model import DifferenceNet
from idc.training.artifact import read_artifact


class DifferenceNetCaptioner(Captioner):
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, artifact: str, device: str):
        stored = read_artifact(artifact, system="difference_net")
        self.captions, self.side = stored.config["captions"], stored.config["side"]
        self.trained_on, self.device = stored.trained_on, device
        self.net = DifferenceNet(self.side, len(self.captions)).eval()
        stored.load_into(self.net)
        self.net.to(device)

    @torch.no_grad()
    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        pairs = zip(befores, afters, strict=True)
        x = torch.from_numpy(np.stack([difference(before, after, self.side) for before, after in pairs]))
        best = self.net(x.to(self.device)).log_softmax(1).topk(min(options.candidates, len(self.captions)))
        return [
            Description(tuple(Candidate(self.captions[i], p) for i, p in zip(ids, ps, strict=True)))
            for ids, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def load_captioner(artifact: str, device: str, speed: str) -> DifferenceNetCaptioner:
    if speed == "bf16":
        raise ValueError("speed: DifferenceNet runs in float32, not in bf16")
    return DifferenceNetCaptioner(artifact, device)
