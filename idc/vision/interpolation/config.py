"""Settings of frame triplets, VFIformer, its training, and the comparison of interpolators. No torch here.

The defaults are the paper's (Lu et al., Video Frame Interpolation with Transformer, CVPR 2022); presets are YAML files
in ``jobs/configs/vision``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.rendered.config import MotionConfig
from idc.training.config import GroupConfig, TrainConfig

LEVELS = 4
"""Resolutions of VFIformer: 1, 1/2, 1/4 and 1/8."""


class TripletsConfig(ConfigModel):
    """How frame triplets are made: cut from videos, or rendered."""

    videos: tuple[str, ...] = ()
    """Video files; this or `scenes`."""
    gap: int = Field(default=1, ge=1)
    """Distance in video frames from the first to the middle frame of a triplet, and from the middle to the last."""
    every: int = Field(default=3, ge=1)
    """Distance in video frames between the starts of triplets."""
    max_side: int | None = Field(default=None, ge=16)
    """Video frames are downscaled to this length of the longer side, in pixels; empty: they keep their size."""
    min_motion: float = Field(default=0.0, ge=0, le=255)
    """Triplets of videos are skipped if the mean difference of first and last frame (of 0 to 255) is smaller: much
    footage of fixed cameras is still."""
    val_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of each video, its last part, for validation (`scenes` has its own shares)."""
    scenes: MotionConfig | None = None
    """Rendered scenes in motion."""
    chunk_size: int = Field(default=16, ge=1, le=10_000)
    """Triplets per chunk of work, which is one Parquet part."""
    workers: int = Field(default=2, ge=1)
    """Number of processes on Ray, one CPU each."""
    max_reject_share: float = Field(default=0.01, ge=0, le=1)
    """The build fails if a larger share of the triplets is rejected."""

    def faults(self) -> Iterator[str]:
        if bool(self.videos) == (self.scenes is not None):
            yield "videos and scenes: give one of the two"

    def preflight(self) -> Iterator[str]:
        for n, path in enumerate(self.videos):
            yield from missing(path, f"videos.{n}")


class BuildTripletsJob(ConfigModel):
    """Make a folder of frame triplets."""

    triplets: str = Field(min_length=1)
    """Folder to write."""
    build: TripletsConfig
    """How to make them."""


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
    drop_path: float = Field(0.1, ge=0, lt=1)
    """Stochastic depth: drop rate of a resolution's last block in training, rising from 0 at its first block. As in the
    official code, 1/8 uses the first rates of 1/4 instead of rates of its own."""
    pad_multiple: int = Field(64, ge=16)
    """Images are padded to multiples of this (zeros, evenly on both sides, as in the official test) and the result is
    cropped. Official: 64 for both variants; 1/8 of it must be a multiple of `window`."""

    def faults(self) -> Iterator[str]:
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


class InterpolatorLossConfig(ConfigModel):
    """Losses of the middle frame."""

    l1: float = Field(1.0, ge=0)
    """Weight of the mean absolute error of the middle frame in [0, 1]."""
    census: float = Field(1.0, ge=0)
    """Weight of the census loss: soft Hamming distance of 7x7 neighbourhoods of grey (Meister et al. 2018). The
    official code passes BGR to a function that weights RGB; here red and blue have their own weights."""
    flow: float = Field(0.01, ge=0)
    """Weight of the distance of the flow network's three estimates to a teacher's flow from the middle frame to the
    first and last. The teacher is OpenCV's DIS on the crop; official: LiteFlowNet on whole frames, stored beforehand.
    The official first stage, which trains the flow network alone, is omitted (it "will not cause a significant impact
    on performance", according to its README)."""

    def faults(self) -> Iterator[str]:
        if self.l1 == self.census == 0:
            yield "l1 and census: at least one needs a weight above 0"


class TrainInterpolatorJob(ConfigModel):
    """Train VFIformer on frame triplets."""

    name: str = Field("interpolator", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""
    runs: str = "runs"
    """Folder of all runs."""
    triplets: str = Field(min_length=1)
    """Frame triplets: a folder of image files (Vimeo-90k, one folder per triplet, or *_frame0/1/2), or one that `build`
    or jobs/build_triplets.py made from videos or rendered scenes."""
    build: TripletsConfig | None = None
    """How to build `triplets` if it does not exist: from videos or rendered scenes."""
    start: str | None = None
    """Initial weights: the artifact of another run, or an official checkpoint (.pth); empty: random ones."""
    max_triplets: int | None = Field(None, ge=1)
    """Number of training triplets, the first of the split; default all."""
    validation_triplets: int | None = Field(64, ge=1)
    """Number of validation triplets, evenly spaced; default all."""
    crop_size: int = Field(192, ge=16)
    """Side of the random square crops of training, in pixels."""
    model: VFIformerConfig = VFIformerConfig()
    """Shape."""
    loss: InterpolatorLossConfig = InterpolatorLossConfig()
    """Losses."""
    optim: GroupConfig = GroupConfig(lr=1e-4, weight_decay=1e-4, schedule="linear_warmup_cosine", warmup_steps=2000)
    """Learning rate."""
    train: TrainConfig = TrainConfig(epochs=300, batch_size=24)
    """The loop."""

    def faults(self) -> Iterator[str]:
        if self.crop_size % self.model.pad_multiple:
            near = max(1, round(self.crop_size / self.model.pad_multiple)) * self.model.pad_multiple
            yield (
                f"crop_size: {self.crop_size} is not divisible by model.pad_multiple = {self.model.pad_multiple}; "
                f"take {near}"
            )

    def preflight(self) -> Iterator[str]:
        if self.build is None:
            yield from missing(self.triplets, "triplets")
        yield from missing(self.start, "start")


class CompareInterpolatorsJob(ConfigModel):
    """Measure interpolators on triplets whose middle frame is known."""

    triplets: dict[str, str] = Field(min_length=1)
    """Name in the table -> triplets, in any form that `TrainInterpolatorJob.triplets` takes."""
    split: Literal["train", "val", "test", "all"] = "all"
    """Split, for triplets that have splits."""
    max_triplets: int | None = Field(None, ge=1)
    """Number of triplets of each source, evenly spaced; default all."""
    interpolators: tuple[Literal["blend", "dis"], ...] = ("blend", "dis")
    """Interpolators without weights: the mean of both frames, and bidirectional DIS flow."""
    vfiformer: dict[str, str] = Field(default_factory=dict)
    """Name in the table -> weights of a VFIformer: an artifact's folder or an official checkpoint (.pth)."""
    out: str = Field(min_length=1)
    """Folder for `interpolators.json` and `interpolators.md`."""

    def faults(self) -> Iterator[str]:
        for name in self.vfiformer:
            if name in self.interpolators:
                yield f"vfiformer: {name!r} is the name of another interpolator; choose another"
        if not self.interpolators and not self.vfiformer:
            yield "interpolators and vfiformer: there is nothing to compare"

    def preflight(self) -> Iterator[str]:
        for name, path in self.triplets.items():
            yield from missing(path, f"triplets.{name}")
        for name, path in self.vfiformer.items():
            yield from missing(path, f"vfiformer.{name}")
