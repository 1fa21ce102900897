"""The image tokenizer's encoder prepared for inference on a CPU: packed convolutions, no pass over a map that is not
needed, few images at a time.

What is replaced are modules inside diffusers' encoder; the names in the state dict stay.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.nn.packed import PackedConv2d
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer

_MAP_BYTES = 32 * 2**20
"""Largest map of the images of one pass. What is larger is in no cache when the next layer reads it."""


class PackedResidual(nn.Module):
    """diffusers' ``ResnetBlock2D`` as an image tokenizer has it. The activations are computed in place, and the sum
    with the input is part of the second convolution."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.conv1, self.norm2, self.conv2 = block.norm1, block.conv1, block.norm2, block.conv2
        self.conv_shortcut = block.conv_shortcut

    def forward(self, x: Tensor, temb: None = None) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x), inplace=True))
        hidden = F.silu(self.norm2(hidden), inplace=True)
        summed: Tensor = self.conv2.added(hidden, x if self.conv_shortcut is None else self.conv_shortcut(x))
        return summed


def images_at_once(config: TokenizerConfig) -> int:
    """How many images the encoder should read in one pass on a CPU."""
    side = config.image_size // config.patch_size
    largest = max((side >> level) ** 2 * config.channels * mult for level, mult in enumerate(config.channel_mult))
    return max(1, _MAP_BYTES // (4 * largest))


@torch.no_grad()
def pack_encoder(tokenizer: ImageTokenizer, dtype: torch.dtype = torch.float32) -> None:
    """Replace the convolutions of the encoder by packed ones, and its residual blocks by :class:`PackedResidual`.

    Args:
        dtype: number format of the convolutions and of the maps between them.
    """
    from diffusers.models.resnet import ResnetBlock2D

    encoder = tokenizer.model.encoder
    sizes = _input_sizes(tokenizer)
    for module in list(encoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, PackedConv2d(child, sizes[child], dtype))
    for module in list(encoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, ResnetBlock2D):
                setattr(module, name, PackedResidual(child))


def _input_sizes(tokenizer: ImageTokenizer) -> dict[nn.Module, tuple[int, int, int]]:
    """Batch size, height and width of each convolution's input, by one pass over black images."""
    config = tokenizer.config
    sizes: dict[nn.Module, tuple[int, int, int]] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        batch, _, height, width = inputs[0].shape
        sizes[layer] = (batch, height, width)

    convolutions = [module for module in tokenizer.model.encoder.modules() if isinstance(module, nn.Conv2d)]
    hooks = [layer.register_forward_pre_hook(note) for layer in convolutions]
    try:
        tokenizer.encoder_features(torch.zeros(1, 3, config.image_size, config.image_size))
    finally:
        for hook in hooks:
            hook.remove()
    return sizes
