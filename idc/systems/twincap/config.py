"""Settings of TwinCap. Every part of model, supervision and data has a setting that switches it off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.data.augmentation import AugmentationConfig
from idc.nn.config import PairsTraining, WordCaptionerSettings, WordDecoderConfig
from idc.training.config import GroupConfig, KeepBest, RunName, TrainConfig


class ModelConfig(ConfigModel):
    """Sizes and parts of the network."""

    height: int = Field(64, ge=16, multiple_of=8)
    """Height to which images are resized, in pixels."""
    width: int = Field(64, ge=16, multiple_of=8)
    """Width to which images are resized, in pixels."""
    stem: Literal["twin", "early"] = "twin"
    """twin: one convolutional stem, applied to each image, to a quarter of the resolution; the trunk reads the features
    of both. early: one stem on the images stacked as [before, after, 2 (before - after)]."""
    difference: bool = True
    """The trunk also reads the difference of the twin features, [f_a, f_b, f_b - f_a]."""
    stem_channels: tuple[int, int] = (24, 48)
    """Channels of the stem at a half and at a quarter of the resolution."""
    stem_blocks: int = Field(1, ge=0)
    """Residual blocks of the stem, at a quarter of the resolution."""
    channels: int = Field(128, ge=8, multiple_of=8)
    """Channels of the trunk, at an eighth of the resolution."""
    blocks: int = Field(2, ge=0)
    """Residual blocks of the trunk."""
    peaks: int = Field(0, ge=0, le=16)
    """Peaks of the heat maps of objects and changes at which the decoder sees the features of both images, each a
    position of its memory; for pairs in which several objects change. 0: none, only the one look at each image."""
    peak_layers: int = Field(1, ge=0)
    """Self-attention layers among the peaks: an object that moved is one that is gone here and new there."""
    decoder: WordDecoderConfig = WordDecoderConfig()
    """Text decoder."""


class SupervisionConfig(ConfigModel):
    """Losses beyond the caption's. What a pair does not have is left out of its loss: the objects of a scene are in the
    `meta` of rendered pairs; of other pairs the type and the attributes of the change are read from the captions where
    the rules of idc.metrics can."""

    heads: float = Field(0.5, ge=0)
    """Weight of the pooled heads: the type of the change, and colour, shape, material and size of the changed object
    before and after it. 0: no such heads, and no attributes in the captioner's descriptions."""
    dense: float = Field(0.3, ge=0)
    """Weight of the dense heads: where the objects of each image are and what they look like, where the changed
    objects are in both images, and which kind of change is at each of `model.peaks`. 0: no such heads, and no change
    map."""


class DataConfig(ConfigModel):
    """How samples are made of pairs."""

    captions: int = Field(1, ge=1)
    """Captions of a pair in a sample, in the order of its references from a drawn one on: the network sees the images
    once for all of them, and the caption loss is their mean."""
    mirror: bool = True
    """Mirror every other sample, with "left" and "right" exchanged in its captions. Not for images with writing, nor
    for captions that use the two words in another sense."""
    augment: bool = True
    """Change the images at random, by `augmentation`."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """How much."""
    augment_share: float = Field(1.0, gt=0, le=1)
    """Probability that a sample is augmented at all: below 1, clean images stay part of the training."""
    augment_from: float = Field(0.66, ge=0, lt=1)
    """Share of the training, in whole epochs, that comes first, without augmentation: the captions are learned faster
    on clean images."""
    cache_mb: int = Field(1024, ge=0)
    """Keep decoded training images in memory, at the model's size, up to this many MiB per folder; the others are
    decoded each time."""


class TwinCapJob(WordCaptionerSettings, PairsTraining):
    """Train TwinCap on folders of pairs."""

    ENTRY = "idc.systems.twincap.task:train"
    name: RunName = "twincap"
    model: ModelConfig = ModelConfig()
    """The network."""
    supervision: SupervisionConfig = SupervisionConfig()
    """Losses beyond the caption's."""
    data: DataConfig = DataConfig()
    """Mirroring and augmentation."""
    ema: float = Field(0.998, ge=0, lt=1)
    """Decay per step of the exponential moving average of the weights, which is what is validated and stored; smaller
    during the first steps. 0: the weights themselves."""
    optim: GroupConfig = GroupConfig(lr=1e-3, weight_decay=0.05, schedule="linear_warmup_cosine", warmup_share=0.03)
    """Learning rate and schedule."""
    train: TrainConfig = TrainConfig(epochs=30, batch_size=64, keep_best=KeepBest(metric="CIDEr"))
    """The loop; the best validation CIDEr is selected."""

    def errors(self) -> Iterator[str]:
        if self.ema and self.train.zero_stage == 3:
            yield "ema: train.zero_stage=3 shards the weights that are averaged; take train.zero_stage=2, or ema=0"
        if self.model.peaks and not self.supervision.dense:
            yield (
                f"model.peaks={self.model.peaks}: peaks are those of maps that the dense heads learn, and "
                "supervision.dense is 0; take supervision.dense=0.3, or model.peaks=0"
            )


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by: scene graphs too, unless all heads beyond the captions are off."""
    weights = saved["job"]["supervision"]
    return "captions and scene graphs" if weights["heads"] or weights["dense"] else "captions"
