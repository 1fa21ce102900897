"""Frozen image features of pretrained models: DINOv2.

A class of features loads its model once, onto a GPU if there is one, and maps uint8 RGB images (H, W, 3) of any sizes
to one float32 vector per image.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from idc.data.images import resize_image
from idc.vision.pretrained import load_pretrained

_IMAGENET_MEAN = [[[0.485]], [[0.456]], [[0.406]]]
_IMAGENET_STD = [[[0.229]], [[0.224]], [[0.225]]]


class Dinov2Features:
    """DINOv2's class token after the last norm.

    Images are resized to about 224 pixels per side (a multiple of the patch size), whatever their aspect, and
    normalised by ImageNet's statistics, as in DINOv2's training. On a GPU in bfloat16.

    Args:
        source: a local folder or a hub id.

    Raises:
        ValueError: it is not a DINOv2, or cannot be reached.
    """

    def __init__(self, source: str) -> None:
        from transformers import Dinov2Model

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_pretrained(Dinov2Model, source, "dinov2")
        self.model: Any = model.eval().requires_grad_(False).to(self.device)
        patch = self.model.config.patch_size
        self.size = max(1, round(224 / patch)) * patch

    def __call__(self, images: Iterable[np.ndarray]) -> np.ndarray:
        """The features (N, D) of N images."""
        pixels = torch.from_numpy(np.stack([resize_image(image, self.size) for image in images])).to(self.device)
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (_IMAGENET_MEAN, _IMAGENET_STD))
        scaled = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            vectors = self.model(pixel_values=scaled).pooler_output
        return np.asarray(vectors.float().cpu().numpy())
