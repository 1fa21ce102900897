"""Settings of the blocks that systems share."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.manifest import missing_pairs
from idc.training.config import TrainingJob


class WordCaptionerSettings(ConfigModel):
    """How a model with a text decoder of our own captions and is validated: part of the job that trains it."""

    beams: int = Field(1, ge=1)
    """Number of beams of the captioner; 1 is greedy, as in the papers. An artifact keeps that of its training; a system
    with another default overrides the field in its job."""
    length_penalty: float = Field(1.0, ge=0)
    """Exponent of the length in beam search's scoring rule."""
    validation_pairs: int | None = Field(None, ge=1)
    """Number of validation pairs, of each change type in proportion; default all."""
    trained_on: str | None = Field(None, min_length=1, max_length=200)
    """Description of the training images, to complete "This model has only seen ..." on the model card and in the
    warning for other images. By default derived from the manifests of the data."""


class PairsTraining(TrainingJob):
    """Data of a training on folders of captioned pairs."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: training and validation split."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of which only the training split is used; their images are resized to the model's size."""
    start: str | None = Field(None, min_length=1)
    """Artifact of the same model and supervision to start from, with its vocabulary."""

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs", captions=True)
        for path in self.more_pairs:
            yield from missing_pairs(path, "more_pairs", captions=True)
        yield from missing(self.start, "start")


class WordDecoderConfig(ConfigModel):
    """Text decoder: pre-norm layers that attend to the memory of a pair. A system whose defaults differ subclasses
    it."""

    width: int = Field(128, ge=8)
    """Width of the layers."""
    layers: int = Field(2, ge=1)
    """Number of layers."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    feedforward: int = Field(512, ge=8)
    """Width of the feed-forward parts."""
    max_length: int = Field(24, ge=2)
    """Maximum tokens of a caption, begin and end token included."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the residual branches."""

    def errors(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width: {self.width} is not divisible by heads = {self.heads}"
