"""The image tokenizer: a VQGAN on ``diffusers.VQModel``.

Unusual here: the codebook is a buffer, not a parameter. It is updated by moving averages (``task.py``), never by an
optimizer, so no engine shards, casts or overwrites it. Small tokenizers begin with space-to-depth (``patch_size``).
Names in the state dict are those of ``VQModel`` with the prefix ``model.``.

Shapes: B images, C channels, H = W = image_size, n_I = grid[0] * grid[1] patches, D = d_z, K codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.images import resize_image
from idc.training.artifact import PREPROCESS, Artifact, read_artifact, write_artifact
from idc.vision.tokenizer.config import TokenizerConfig

SYSTEM = "image_tokenizer"
"""System name in its artifacts."""


class ImageTokenizer(nn.Module):
    """Maps images, float BCHW in [0, 1] of side ``config.image_size``, to discrete codes (one of K per patch) and to
    features, and codes back to images. The encoder reads ``images_at_once``; None: all."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        from diffusers import VQModel

        self.config = config
        levels = len(config.channel_mult)
        pixels = 3 * config.patch_size**2
        model: Any = VQModel(
            in_channels=pixels,
            out_channels=pixels,
            down_block_types=("DownEncoderBlock2D",) * levels,
            up_block_types=("UpDecoderBlock2D",) * levels,
            block_out_channels=tuple(config.channels * mult for mult in config.channel_mult),
            layers_per_block=config.res_blocks,
            latent_channels=config.latent_dim,
            vq_embed_dim=config.latent_dim,
            num_vq_embeddings=config.codebook_size,
            norm_num_groups=config.norm_groups,
            norm_type="group",  # "spatial" would be MoVQ
            mid_block_add_attention=config.mid_attention,
        )
        embedding = model.quantize.embedding
        codebook = embedding.weight.detach().clone()
        del embedding.weight
        embedding.register_buffer("weight", codebook)
        self.model: Any = model
        self.images_at_once: int | None = None

    @property
    def codebook(self) -> Tensor:
        """(K, D), float32."""
        return cast(Tensor, self.model.quantize.embedding.weight)

    # -- parts, for training -----------------------------------------------------------------------------------------

    def encoder_features(self, images: Tensor, unit_range: bool = False) -> Tensor:
        """Encoder output before ``quant_conv``, (B, D, h, w); ``unit_range`` feeds [0, 1] pixels (official)."""
        x = images if unit_range else 2 * images - 1
        x = F.pixel_unshuffle(x, self.config.patch_size)
        if self.images_at_once is None or len(x) <= self.images_at_once:
            return cast(Tensor, self.model.encoder(x))
        return torch.cat([self.model.encoder(few) for few in x.split(self.images_at_once)])

    def project(self, features: Tensor) -> Tensor:
        """The latents to quantise: ``quant_conv`` of the features, as float32 rows (B, n_I, D)."""
        return cast(Tensor, self.model.quant_conv(features)).float().flatten(2).transpose(1, 2)

    def nearest(self, latents: Tensor) -> Tensor:
        """Index of the nearest code of each row: (..., D) to (...)."""
        with torch.autocast(latents.device.type, enabled=False):
            return nearest_rows(latents.reshape(-1, latents.shape[-1]), self.codebook).view(latents.shape[:-1])

    def reconstruct(self, latents: Tensor) -> Tensor:
        """Decode latents (B, n_I, D) to images in about [-1, 1], not clamped."""
        z = latents.transpose(1, 2).unflatten(2, self.config.grid)
        return F.pixel_shuffle(self.model.decoder(self.model.post_quant_conv(z)), self.config.patch_size)

    # -- use ---------------------------------------------------------------------------------------------------------

    def encode(self, images: Tensor) -> Tensor:
        """The codes of the patches: (B, n_I) int64, row by row from the top left."""
        return self.nearest(self.project(self.encoder_features(self._checked(images))))

    def features(self, images: Tensor) -> Tensor:
        """The features of the patches: (B, n_I, D), the encoder's output before ``quant_conv``."""
        maps = self.encoder_features(self._checked(images), unit_range=self.config.feature_range == "unit")
        return maps.flatten(2).transpose(1, 2)

    def tokens_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`encode` and :meth:`features`, in one pass where both read the same range of pixels."""
        if self.config.feature_range == "unit":
            return self.encode(images), self.features(images)
        maps = self.encoder_features(self._checked(images))
        return self.nearest(self.project(maps)), maps.flatten(2).transpose(1, 2)

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode codes (B, n_I) to images in [0, 1]."""
        if tokens.ndim != 2 or tokens.shape[1] != self.config.patches_per_frame:
            raise ValueError(f"tokens are {tuple(tokens.shape)}, expected (B, {self.config.patches_per_frame})")
        return ((self.reconstruct(self.codebook[tokens]) + 1) / 2).clamp(0, 1)

    def _checked(self, images: Tensor) -> Tensor:
        size = self.config.image_size
        if images.ndim != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(f"images are {tuple(images.shape)}, expected (B, 3, {size}, {size})")
        return images

    # -- at rest -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write the artifact."""
        write_artifact(folder, system=SYSTEM, state_dict=self.state_dict(), **artifact_settings(self.config))

    @classmethod
    def load(cls, folder: Path | str) -> ImageTokenizer:
        """Read an artifact, for inference; ValueError as of :func:`read_config`."""
        artifact, config = _read(folder)
        tokenizer = cls(config)
        artifact.load_into(tokenizer)
        return tokenizer.eval().requires_grad_(False)


def artifact_settings(config: TokenizerConfig) -> dict[str, Any]:
    """Arguments of :func:`idc.training.artifact.write_artifact`."""
    return {
        "config": config.model_dump(mode="json"),
        "preprocess": tokenizer_preprocess(config),
        "purpose": "Maps the patches of an image to codes and features, and codes back to an image.",
        "use": "python jobs/pretrain_procap.py build.tokenizer=<this folder> ...",
    }


def read_config(folder: Path | str) -> TokenizerConfig:
    """The config of an artifact, without its weights and without diffusers, whose import takes seconds. ValueError:
    it is not an image tokenizer, or a file is missing or does not fit the others."""
    return _read(folder)[1]


def _read(folder: Path | str) -> tuple[Artifact, TokenizerConfig]:
    artifact = read_artifact(folder, system=SYSTEM)
    config = TokenizerConfig.model_validate(artifact.config)
    if artifact.preprocess != (expected := tokenizer_preprocess(config)):
        raise ValueError(f"{folder}/{PREPROCESS} has {artifact.preprocess}, but this program prepares {expected}")
    return artifact, config


def nearest_rows(rows: Tensor, centres: Tensor) -> Tensor:
    """Index of the centre at the smallest Euclidean distance: (N, D), (K, D) to (N,)."""
    return torch.addmm(centres.square().sum(1), rows.to(centres.dtype), centres.T, beta=1, alpha=-2).argmin(1)


def tokenizer_preprocess(config: TokenizerConfig) -> dict[str, object]:
    """How an image is prepared for the tokenizer, by :func:`prepare_frame` in training and :func:`prepare_images` in
    use; stored in the artifact."""
    return {
        "resize": [config.image_size, config.image_size],
        "keep_aspect": False,
        "filter": f"{config.resize}, antialiased",
        "range": [0.0, 1.0],
        "channels": "RGB",
    }


def prepare_frame(pixels: np.ndarray, config: TokenizerConfig) -> np.ndarray:
    """Resize uint8 RGB (H, W, 3) of any size to the tokenizer's size."""
    if config.resize == "bicubic" or pixels.shape[:2] == (config.image_size, config.image_size):
        return resize_image(pixels, config.image_size)
    return to_frames(prepare_images([pixels], config))[0]


def prepare_images(pictures: Sequence[np.ndarray], config: TokenizerConfig) -> Tensor:
    """Resize uint8 RGB (H, W, 3) of any sizes to float (B, 3, Y, X) in [0, 1] of the tokenizer's size; the bilinear
    filter does not round to whole grey levels, as in the official code."""
    if config.resize == "bicubic":
        return to_images(np.stack([prepare_frame(picture, config) for picture in pictures]))
    size = (config.image_size, config.image_size)
    return torch.cat(
        [F.interpolate(to_images(picture[None]), size, mode="bilinear", antialias=True) for picture in pictures]
    )


def to_images(frames: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """Convert uint8 (B, H, W, 3) to float (B, 3, H, W) in [0, 1], on the device: bytes travel a quarter as long."""
    return torch.from_numpy(np.ascontiguousarray(frames)).to(device).permute(0, 3, 1, 2).float().div_(255)


def to_frames(images: Tensor) -> np.ndarray:
    """Convert float (B, 3, H, W) in [0, 1] to uint8 (B, H, W, 3)."""
    return images.float().clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu().numpy()
