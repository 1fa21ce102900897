"""NAMC as a captioner: captions with confidences, change maps from its co-attention, the probability of given captions,
and samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from idc.captioning.contract import Images, Speed
from idc.nn.decoding import Decoded
from idc.nn.word_captioner import DescriptionExtras, WordCaptioner
from idc.systems.namc.config import FinetuneJob, ModelConfig
from idc.systems.namc.model import NamcNet
from idc.systems.namc.task import CNN, frozen_grid, grid_channels, standardised
from idc.training.artifact import read_artifact

MISMATCH = "log_mismatch"
"""Name of the captioner's evidence: the logarithm of the largest value of the change map."""


class PairMemory(NamedTuple):
    """A batch of B encoded pairs, before the words: ``embedded`` (2 * B, P, D), before first, and E_MIR (B, P, D)."""

    embedded: Tensor
    memory: Tensor


class NamcCaptioner(WordCaptioner[PairMemory]):
    """A fine-tuned artifact; "bf16" computes products in bfloat16, all other speeds in float32."""

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed = "auto"):
        artifact = read_artifact(path, system="namc")
        if artifact.config["stage"] != "finetune":
            raise ValueError(f"{path} is pre-trained only and writes no captions; train it with jobs/finetune_namc.py")
        assert artifact.vocabulary is not None
        job, model = artifact.settings(FinetuneJob), artifact.settings(ModelConfig, "model")
        self.grid_side = model.image.grid
        folder = artifact.extra(CNN) if model.image.cnn == "resnet" else None
        grid = frozen_grid(model.image, torch.device(device), folder)
        self._extract = None if grid is None else standardised(grid)
        self.net = NamcNet(model, grid_channels(model.image, grid), len(artifact.vocabulary))
        artifact.load_into(self.net)
        self.net.to(device).eval()
        super().__init__(
            artifact,
            device,
            self.net.decoder,
            job,
            rules={"max_length": job.max_length - 1},
            evidence=[MISMATCH],
            image_size=model.image.size,
            speed=speed,
        )

    def _encode(self, befores: Images, afters: Images) -> PairMemory:
        images = self._images(befores, afters).transpose(0, 1).flatten(0, 1)
        if self._extract is not None:
            features = self._extract(images)
        else:
            assert self.net.stem is not None
            features = self.net.stem(images)
        embedded = self.net.encoder.embed(features)
        return PairMemory(embedded, self.net.encoder.compare(embedded))

    def _findings(self, encoded: PairMemory, decoded: Decoded, change_map: bool) -> Sequence[DescriptionExtras]:
        mismatch_BP = mismatch(
            self.net.encoder.co_attention(encoded.embedded), self.net.encoder.content(encoded.embedded)
        )
        # Equal images have no mismatch: the logarithm of 0 would not be finite.
        evidence = mismatch_BP.amax(dim=1).clamp(min=1e-6).log().tolist()
        maps = mismatch_BP.unflatten(1, (self.grid_side, self.grid_side)).float().cpu().numpy()
        if not change_map:
            return [DescriptionExtras({MISMATCH: value}) for value in evidence]
        return [DescriptionExtras({MISMATCH: value}, drawn) for value, drawn in zip(evidence, maps, strict=True)]


def mismatch(co_attention_2BPP: Tensor, content_2BPD: Tensor) -> Tensor:
    """The change map (B, P), in [0, 1]: how little a position of one image resembles what its co-attention finds in the
    other image, whichever image's position finds the less. ``co_attention_2BPP`` of after's positions to those of
    before, and of before's to those of after; ``content_2BPD``: what the positions hold, before first."""
    before, after = content_2BPD.chunk(2)
    attended = co_attention_2BPP.to(content_2BPD) @ torch.stack([before, after])
    difference = (torch.stack([after, before]) - attended).float().square().mean(dim=-1)
    return 1 - torch.exp(-difference.amax(dim=0))


load_captioner = NamcCaptioner
