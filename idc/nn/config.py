"""Settings of the blocks that systems share."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel


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
