"""Shape of VFIformer (Lu et al., Video Frame Interpolation with Transformer, CVPR 2022). No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel

LEVELS = 4
"""Resolutions of VFIformer: 1, 1/2, 1/4 and 1/8."""


class VFIformerConfig(ConfigModel):
    """Shape of VFIformer. The defaults are the official network (24,166,930 parameters); its small variant
    (17,024,426) has refine=false, width=136, window=4."""

    flow_channels: tuple[int, int, int] = (240, 150, 90)
    """Widths of the flow network's three blocks, which work at 1/4, 1/2 and 1/1 of the image's size."""
    context_channels: int = Field(24, ge=1)  # c
    """Width of the warped features at full resolution; it doubles at every lower one."""
    refine: bool = True
    """Refine the flow from 1/8 to full resolution by the features; false: only enlarge it (official small)."""
    width: int = Field(160, ge=2)
    """Width of the transformer."""
    heads: int = Field(2, ge=1)
    """Attention heads."""
    window: int = Field(8, ge=4)
    """Side of an attention window, in pixels of its level. Every second block's windows are shifted by half of it."""
    depths: tuple[tuple[int, int], ...] = ((3, 3), (3, 3), (3, 3), (1, 1))
    """Blocks of the two groups of each resolution, from 1 to 1/8. The second group of all but the last resolution
    also attends to a second window, twice as wide and half as fine (cross-scale window attention)."""
    mlp_ratio: float = Field(2.0, gt=0)
    """Width of the blocks' MLP as a multiple of `width`."""
    pad_multiple: int = Field(64, ge=16)
    """Images are padded to multiples of this (zeros, evenly on both sides, as in the official test) and the result is
    cropped. Official: 64 for both variants; 1/8 of it must be a multiple of `window`."""

    def errors(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"
        if self.width % 2:
            yield f"width: {self.width} is odd; the last layers halve it"
        if self.window % 4:
            yield f"window: {self.window} is not divisible by 4; take {max(4, round(self.window / 4) * 4)}"
        if len(self.depths) != LEVELS or any(blocks < 1 for level in self.depths for blocks in level):
            yield f"depths: needs {LEVELS} pairs of numbers above 0, from full resolution to 1/8"
        if any(channels < 2 or channels % 2 for channels in self.flow_channels):
            yield f"flow_channels: {list(self.flow_channels)} must be even; a block's first layer halves its width"
        if self.pad_multiple % (least := math.lcm(16, 8 * self.window)):
            yield f"pad_multiple: {self.pad_multiple} is not divisible by {least}, as 16 and 8 * window demand"
