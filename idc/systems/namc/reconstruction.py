"""Images as tokens, and how well MIR and the image tokenizer reconstruct them (table 9)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from idc.systems.namc.config import ImageConfig
from idc.vision.image_quality import psnr_ssim
from idc.vision.tokenizer.model import ImageTokenizer, to_frames

CPU_IMAGES = 8
"""Images that frozen parts read at once: what is between their layers then stays in the cache."""


def load_tokenizer(path: str, image: ImageConfig, device: torch.device) -> ImageTokenizer:
    """A frozen image tokenizer with the same grid."""
    tokenizer = ImageTokenizer.load(path).eval().requires_grad_(False).to(device)
    if tokenizer.config.grid[0] != image.grid:
        raise ValueError(
            f"tokenizer: {path} has {tokenizer.config.grid[0]} patches per side, image.grid is {image.grid}; train one "
            "with the same grid"
        )
    return tokenizer


def scaled(images: Tensor, size: int) -> Tensor:
    """uint8 images (N, S, S, 3) as floats (N, 3, size, size) in [0, 1]."""
    pixels = images.permute(0, 3, 1, 2).float() / 255
    if images.shape[1] == size:
        return pixels
    # Bicubic weights are partly negative, so edges overshoot.
    return F.interpolate(pixels, (size, size), mode="bicubic", antialias=True).clamp(0, 1)


def image_tokens(tokenizer: ImageTokenizer) -> Callable[[Tensor], Tensor]:
    """The tokens z_i (N, P) of uint8 images."""

    @torch.no_grad()
    def compute(images: Tensor) -> Tensor:
        out = []
        for part in images.split(CPU_IMAGES):
            out.append(tokenizer.encode(scaled(part, tokenizer.config.image_size)).flatten(1).to(torch.int32))
        return torch.cat(out)

    return compute


@torch.no_grad()
def reconstruction_quality(
    tokenizer: ImageTokenizer, images_NHWC: Tensor, tokens_NP: Tensor, guessed_NP: Tensor
) -> list[dict[str, float]]:
    """Of each image PSNR and SSIM between the image itself (raw), what its tokens show (vqgan), and what they show with
    the masked ones predicted (mir)."""
    out = []
    for images, tokens, guessed in zip(
        *(x.split(CPU_IMAGES) for x in (images_NHWC, tokens_NP, guessed_NP)), strict=True
    ):
        shown = scaled(images, tokenizer.config.image_size), tokenizer.decode(tokens), tokenizer.decode(guessed)
        for raw, vqgan, mir in zip(*map(to_frames, shown), strict=True):
            for_image = {}
            for name, pair in {"mir_vqgan": (vqgan, mir), "vqgan_raw": (raw, vqgan), "mir_raw": (raw, mir)}.items():
                for_image[f"psnr_{name}"], for_image[f"ssim_{name}"] = psnr_ssim(*pair)
            out.append(for_image)
    return out
