"""Settings of mining similar pairs from an image collection (NAMC, appendix D.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing

Encoder = Literal["efficientnet_lite0", "clip_dinov2"]


class FeatureThresholds(ConfigModel):
    """Which neighbours under one feature are candidates. Similarities are cosines, -1 to 1.

    Appendix D.1.2 has two sets of thresholds. The first, {0.95, 0.78}, decides about single images (`max`, `min`). The
    second, {0.80, 0.78} for both features, decides about an image's whole set: it is filtered out if its "maximum
    similarity is below tau_max or minimum similarity is below tau_min". The paper does not say whether the second looks
    at the nearest neighbours before or after the first was applied. Here: after, in the order of the text. With the
    paper's values `set_min` then never filters (what is left is at least `min` = 0.78), and `set_max` demands that the
    best candidate left has at least 0.80. Looking before instead would drop every image whose k-th neighbour is below
    0.78, so that a smaller k would give more pairs.
    """

    max: float = Field(default=0.95, ge=-1, le=1)
    """tau_max: a neighbour above this similarity is taken for the same image and is not a candidate."""
    min: float = Field(default=0.78, ge=-1, le=1)
    """tau_min: a neighbour below this similarity is not a candidate."""
    set_max: float = Field(default=0.80, ge=-1, le=1)
    """tau_max of the set: an image has no candidates if the most similar one is below this."""
    set_min: float = Field(default=0.78, ge=-1, le=1)
    """tau_min of the set: an image has no candidates if the least similar one is below this."""

    def errors(self) -> Iterator[str]:
        if self.min >= self.max:
            yield f"min: {self.min:g} is not below max={self.max:g}; no neighbour could be a candidate"
        if self.set_max > self.max:
            yield f"set_max: {self.set_max:g} is above max={self.max:g}; no set could stay"


class ClipDinov2Config(ConfigModel):
    """The paper's features: CLIP ViT-L/14 and DINOv2 ViT-L/14, from the hub or a folder; a GPU is advisable."""

    clip: str = "openai/clip-vit-large-patch14"
    """CLIP: hub id or local folder. The feature is the projected image embedding."""
    dinov2: str = "facebook/dinov2-large"
    """DINOv2: hub id or local folder. The feature is the class token after the last norm."""
    clip_thresholds: FeatureThresholds = FeatureThresholds()
    """Thresholds of CLIP's similarities (the paper's)."""
    dinov2_thresholds: FeatureThresholds = FeatureThresholds()
    """Thresholds of DINOv2's similarities (the paper's)."""


class EfficientNetLite0Config(ConfigModel):
    """The embedded features: two layers of EfficientNet-Lite0 with ImageNet weights, which come with the program.

    One network has one feature, and both lists of D.1.2 would be the same. Two depths of it are different enough: the
    pooled output of the head (what is in the image; in CLIP's place), and the output of a middle block on a grid (where
    it is; in DINOv2's). The paper's thresholds belong to CLIP and DINOv2; these have their own, see docs/data.md.
    """

    size: int = Field(default=128, ge=64, le=448, multiple_of=32)
    """Pixels per side to which images are resized. The network was trained with 224, which costs four times as much
    and found the same scene no more often (docs/data.md)."""
    head_thresholds: FeatureThresholds = FeatureThresholds(max=0.99, min=0.75, set_max=0.77, set_min=0.75)
    """Thresholds of the head's similarities, chosen on small rendered collections and photographs. Those of a
    collection of similar photographs may be lower; the page's quantiles help to choose."""
    middle_thresholds: FeatureThresholds = FeatureThresholds(max=0.99, min=0.83, set_max=0.85, set_min=0.83)
    """Thresholds of the middle block's similarities."""


class MiningConfig(ConfigModel):
    """The rules by which two images of a collection are a pair."""

    encoder: Encoder = "efficientnet_lite0"
    """The two features. efficientnet_lite0: embedded, runs on a CPU. clip_dinov2: the paper's."""
    efficientnet_lite0: EfficientNetLite0Config = EfficientNetLite0Config()
    """Settings of encoder=efficientnet_lite0."""
    clip_dinov2: ClipDinov2Config = ClipDinov2Config()
    """Settings of encoder=clip_dinov2."""
    max_pixels: int = Field(default=50_000_000, ge=1)
    """Most pixels of an image; larger ones are rejected before they are decoded."""
    near_duplicate: float = Field(default=0.5, ge=0)
    """Images whose 8x8 thumbnails differ by at most this (root mean square, of 255) from an earlier image of the
    collection are removed before the search: copies and other sizes of one picture (0.2 to 0.4), some of its JPEGs (0.3
    to 1.3). A changed object of a rendered scene of 64x64 is 0.6 and more. 0 removes equal thumbnails only. The paper
    removes none beforehand; its tau_max leaves out a pair of copies, but not the pairs of each copy."""
    neighbours: int = Field(default=50, ge=1)  # k
    """k: nearest images listed under each feature, of all (the paper states neither its k nor an index). Every worker
    holds both features in memory: images x dimensions x 4 bytes (0.4 GB of 100,000 images and 1024 dimensions)."""
    clusters: int = Field(default=3, ge=1)  # K
    """K: clusters of an image's candidates, each of which gives one pair. Up to K candidates are a cluster each."""
    gamma: float = Field(default=0.1, gt=0)
    """gamma of the RBF kernel exp(-gamma d^2) of the spectral clustering."""
    alpha: float = Field(default=0.4, ge=0)
    """alpha: weight of the first feature (CLIP or head) in the concatenation of eq. 8."""
    beta: float = Field(default=0.6, ge=0)
    """beta: weight of the second feature (DINOv2 or middle)."""
    scale: Literal["unit", "encoder"] = "unit"
    """Length of the features that alpha and beta weight. encoder: as the encoder returns them; D.1.3 concatenates the
    features "as computed in eq. (3)" and weights them "as the CLIP feature and DINOv2 feature have different scales"
    (the preset `paper.yaml`). unit: both are scaled to length 1 first, for which gamma = 0.1 is a wide kernel: no two
    images are further apart than 1.44. The thresholds are of cosines and do not depend on it."""

    def errors(self) -> Iterator[str]:
        other = "clip_dinov2" if self.encoder == "efficientnet_lite0" else "efficientnet_lite0"
        if getattr(self, other) != type(self).model_fields[other].default:
            yield f"{other}: not used with encoder={self.encoder}; set encoder={other}, or leave it out"
        if self.alpha == 0 and self.beta == 0:
            yield "alpha, beta: both are 0; give one of them a weight"

    def thresholds(self) -> tuple[FeatureThresholds, FeatureThresholds]:
        """The thresholds of the first and the second feature."""
        if self.encoder == "clip_dinov2":
            return self.clip_dinov2.clip_thresholds, self.clip_dinov2.dinov2_thresholds
        return self.efficientnet_lite0.head_thresholds, self.efficientnet_lite0.middle_thresholds

    def feature_names(self) -> tuple[str, str]:
        """Names of the two features, for pages and the pairs' meta."""
        return ("CLIP", "DINOv2") if self.encoder == "clip_dinov2" else ("head", "middle")


class MinePairsJob(MiningConfig):
    """Mine similar pairs from an image collection into a folder of pairs without captions."""

    images: str = Field(min_length=1)
    """A folder of images, searched recursively. Path or URI."""
    out: str = Field(min_length=1)
    """Folder of pairs to write, with the page mining.html. Path or URI."""
    work: str | None = None
    """Folder of the features, near-duplicates and neighbours, which a job with other thresholds and another out
    can reuse. Default: out with -work."""
    chunk_size: int = Field(default=256, ge=1, le=100_000)
    """Images per chunk of feature extraction; a worker holds their files in memory."""
    query_chunk: int = Field(default=1024, ge=1, le=100_000)
    """Images per chunk of search and clustering."""
    batch_size: int = Field(default=32, ge=1)
    """Images per forward pass of the encoders."""
    workers: int = Field(default=2, ge=1)
    """Parallel workers of every step, on Ray or with --local as processes of this machine."""
    cpus_per_worker: int = Field(default=1, ge=1)
    """CPUs of a worker; torch and faiss use as many threads."""
    gpus_per_worker: float = Field(default=0.0, ge=0)
    """GPUs of a worker that extracts features, on Ray. The other steps use CPUs."""
    max_reject_share: float = Field(default=0.05, ge=0, le=1)
    """The job fails if more than this share of the images cannot be read."""
    pictures: int = Field(default=24, ge=0, le=500)
    """Mined pairs on the page, evenly spaced."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.images, "images")

    def mining(self) -> MiningConfig:
        """The rules by which two images are a pair, without paths and resources."""
        return MiningConfig(**self.model_dump(include=set(MiningConfig.model_fields), exclude_unset=True))

    def work_folder(self) -> str:
        """The folder of the steps before the thresholds."""
        return self.work or f"{self.out.rstrip('/')}-work"

    def targets_folder(self) -> str:
        """The folder of what was chosen, always next to the pairs."""
        return f"{self.out.rstrip('/')}-work/targets"
