"""Settings of a captioner without training."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from idc.config import ConfigModel
from idc.util.option_values import DiskPath
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig


class ZeroShotConfig(ConfigModel):
    """Which model, what it is asked, and how it answers."""

    base: BaseConfig
    """The model."""
    prompt: PromptConfig = PromptConfig()
    """The question about a pair."""
    generation: GenerateConfig = GenerateConfig()
    """How captions are generated."""
    trained_on: str | None = Field(None, min_length=1, max_length=200)
    """Training data of the model, if known, to complete "This model has only seen ..."."""


class WrapJob(ZeroShotConfig):
    """Make an artifact of a vision-language model."""

    out: DiskPath = Field(min_length=1)
    """Folder of the artifact."""
    weights: bool = True
    """The base's weights are on this machine, or downloaded with `base.download=true`. false: neither, for a model that
    runs behind an endpoint."""


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by: it is not trained here."""
    return "none"
