"""Settings of the image tokenizer and its training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.data.manifest import missing_pairs
from idc.training.config import GroupConfig, RunName, TrainConfig, TrainingJob


class TokenizerConfig(ConfigModel):
    """Shape of the VQGAN image tokenizer, a ``diffusers.VQModel``."""

    image_size: int = Field(224, ge=8)
    """Images are resized to this many pixels on both sides, whatever their aspect ratio (as ProCap does)."""
    patch_size: int = Field(1, ge=1)
    """Space-to-depth before the first convolution: squares with this many pixels per side become channels. 1 is the
    VQGAN; 2 makes a small tokenizer about four times faster, as its widest maps have the full resolution."""
    channels: int = Field(128, ge=1)
    """Width of the first level."""
    channel_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    """Width of each level divided by `channels`; every level but the last halves the resolution."""
    res_blocks: int = Field(2, ge=1)
    """Residual blocks per level of the encoder (the decoder has one more)."""
    mid_attention: bool = True
    """Self-attention at the lowest resolution, between its residual blocks."""
    norm_groups: int = Field(32, ge=1)
    """Groups of the group normalisation."""
    codebook_size: int = Field(1024, ge=2)  # K
    """Number K of codes."""
    latent_dim: int = Field(256, ge=1)  # d_z
    """Width d_z of a code and of a patch's feature."""
    feature_range: Literal["signed", "unit"] = "signed"
    """Range of the pixels that features are computed from. The encoder is trained on [-1, 1] (signed); the official
    ProCap code computes features, not tokens, from images in [0, 1] (unit), which costs a second pass."""
    resize: Literal["bicubic", "bilinear"] = "bicubic"
    """Antialiased filter that resizes images to `image_size`. Official: bilinear, without rounding to whole grey levels
    afterwards; the captioner does the same, while frames of stored procedures are rounded."""

    def errors(self) -> Iterator[str]:
        if self.image_size % self.stride:
            yield (
                f"image_size: {self.image_size} is not divisible by {self.stride} = patch_size * 2 ** "
                f"(len(channel_mult) - 1); take {max(1, round(self.image_size / self.stride)) * self.stride}"
            )
        if not self.channel_mult:
            yield "channel_mult: needs at least one level"
        for mult in self.channel_mult:
            if mult < 1 or self.channels * mult % self.norm_groups:
                yield (
                    f"channel_mult: {mult} * channels = {self.channels * mult} is not divisible by "
                    f"norm_groups = {self.norm_groups}"
                )

    @property
    def stride(self) -> int:
        """Pixels per side of a patch (f in VQGAN's papers)."""
        return int(self.patch_size * 2 ** max(0, len(self.channel_mult) - 1))

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        side = self.image_size // self.stride
        return side, side

    @property
    def patches_per_frame(self) -> int:  # n_I
        return self.grid[0] * self.grid[1]


class TokenizerLossConfig(ConfigModel):
    """Losses and codebook of the training. The paper states only "an image reconstruction task"."""

    l1: float = Field(1.0, ge=0)
    """Weight of the mean absolute error of pixels in [-1, 1]."""
    l2: float = Field(1.0, ge=0)
    """Weight of the mean squared error of pixels in [-1, 1]."""
    commitment: float = Field(0.25, ge=0)  # beta
    """Weight beta of the distance of encoder outputs to their codes."""
    codebook_decay: float = Field(0.99, ge=0, lt=1)
    """Codes are moving averages of the encoder outputs assigned to them; this is the decay per step."""
    linear_start: bool = False
    """Initialise the weights as the principal component analysis of the training images' patches instead of at random;
    needs a tokenizer of one level (channel_mult: [1], patch_size the whole stride). With it a tokenizer trained for a
    minute on a laptop represents colours and shapes."""
    codebook_start: int = Field(0, ge=0)
    """Initial optimizer steps without quantisation: the autoencoder learns faster, then the codebook is initialised by
    k-means of its outputs. 0: the codebook is initialised after the first step."""
    continuous_share: float = Field(0.0, ge=0, lt=1)
    """Share of training images that are decoded without quantisation throughout, so that the encoder's features, which
    captioners read, are not trained through the codebook alone."""
    revive_after: int = Field(100, ge=1)
    """Steps after which an unused code is moved to one of the patches that fit the codebook worst."""
    blend_share: float = Field(0.0, ge=0, le=1)
    """Share of training images that are a blend of before and after, similar to the frames between them (the official
    tokenizers are fine-tuned on random frames of procedures)."""
    flip: bool = True
    """Mirror half of the training images."""
    optim: GroupConfig = GroupConfig(lr=1e-3, schedule="linear_warmup_decay", warmup_share=0.05)
    """Learning rate of encoder and decoder."""

    def errors(self) -> Iterator[str]:
        if self.l1 == self.l2 == 0:
            yield "l1 and l2: at least one needs a weight above 0"


class TrainTokenizerJob(TrainingJob):
    """Train an image tokenizer on the images of a folder of pairs."""

    ENTRY = "idc.vision.tokenizer.task:train"
    name: RunName = "tokenizer"
    pairs: str = Field(min_length=1)
    """Folder of pairs."""
    max_pairs: int | None = Field(None, ge=1)
    """Number of training pairs, the first of the split; default all."""
    validation_pairs: int | None = Field(64, ge=1)
    """Validation reads twice so many images, drawn at random, the same in every run; default all."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Shape."""
    loss: TokenizerLossConfig = TokenizerLossConfig()
    """Losses and codebook."""
    train: TrainConfig = TrainConfig(steps=100_000, batch_size=32)
    """The loop."""

    def errors(self) -> Iterator[str]:
        if self.loss.linear_start:
            shape = self.tokenizer
            width, needed = shape.channels * shape.channel_mult[0], 2 * (shape.latent_dim + shape.norm_groups)
            if len(shape.channel_mult) != 1:
                yield f"loss.linear_start: needs one level, and tokenizer.channel_mult is {list(shape.channel_mult)}"
            elif width < needed:
                yield (
                    f"loss.linear_start: needs tokenizer.channels of at least {needed} = "
                    f"2 * (latent_dim + norm_groups), got {width}"
                )
            elif width // shape.norm_groups % 2:
                yield "loss.linear_start: needs an even number of channels in every normalisation group"
        if self.train.steps is not None and self.loss.codebook_start >= self.train.steps:
            yield (
                f"loss.codebook_start: {self.loss.codebook_start} is not before train.steps = {self.train.steps}; "
                "the codebook would never be used"
            )

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")
