"""Settings of the pre-training of a small base model. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.shipped_weights import BASES
from idc.training.config import GroupConfig, TrainConfig
from idc.vlm.config import TinyConfig


class StageConfig(ConfigModel):
    """A part of the training: how long, and how its samples are shared between the three tasks."""

    share: float = Field(gt=0, le=1)
    """Length, as a share of all steps."""
    describe: float = Field(0.0, ge=0)
    """Weight of single images: the list of their objects, and questions."""
    choose: float = Field(0.0, ge=0)
    """Weight of two images of different scenes: which of them shows an object, and the list of one of them."""
    compare: float = Field(0.0, ge=0)
    """Weight of two images of one scene: what changed, then which of them shows an object."""

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of the tasks, in the order of :data:`TASKS`."""
        return self.describe, self.choose, self.compare

    def faults(self) -> Iterator[str]:
        if not sum(self.weights):
            yield "describe, choose, compare: at least one weight must be above 0"


TASKS = ("describe", "choose", "compare")
"""The kinds of samples, in the order in which they are learned."""


class PretrainVlmJob(ConfigModel):
    """Make a small base model: a vision-language model from random weights that learns to see on rendered images."""

    name: str = Field("vlm-base", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""
    runs: str = "runs"
    """Folder of all runs."""
    pairs: str = Field(min_length=1)
    """Folder of pairs of `jobs/render.py`: training and validation split."""
    start: str | None = Field(None, min_length=1)
    """Folder `artifact` of another run, or a base that comes with the program (`shipped-single`), whose weights and
    tokenizer this run begins with. Empty: random weights of `model`."""
    model: TinyConfig = TinyConfig()
    """Family and sizes, without `start`."""
    stages: tuple[StageConfig, ...] = Field(
        (
            StageConfig(share=0.35, describe=1.0),
            StageConfig(share=0.07, describe=0.4, choose=0.6),
            StageConfig(share=0.58, describe=0.1, choose=0.1, compare=0.8),
        ),
        min_length=1,
    )
    """The parts of the training, one after another."""
    optim: GroupConfig = GroupConfig(lr=2e-3, weight_decay=0.05, schedule="linear_warmup_cosine", warmup_steps=100)
    """Learning rate and schedule, of all weights."""
    validation_pairs: int | None = Field(None, ge=2)
    """Number of validation pairs, of each change type in proportion; default all."""
    train: TrainConfig = TrainConfig(steps=5000, batch_size=32, betas=(0.9, 0.99))
    """The loop."""

    def faults(self) -> Iterator[str]:
        if abs(sum(stage.share for stage in self.stages) - 1) > 1e-6:
            yield f"stages: the shares sum to {sum(stage.share for stage in self.stages):g}, not to 1"

        if self.start is not None and self.model != TinyConfig():
            yield "model: is that of start; leave it out"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")
        if self.start is not None and self.start not in BASES:
            yield from missing(self.start, "start")

    def stage_at(self, done: float) -> StageConfig:
        """The stage after this share of the steps."""
        end = 0.0
        for stage in self.stages:
            end += stage.share
            if done < end - 1e-9:
                return stage
        return self.stages[-1]
