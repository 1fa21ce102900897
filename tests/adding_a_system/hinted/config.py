"""Settings of Hinted: those of every tuning, and the weight of its own loss."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from idc.vlm.tuning_config import TuningJob


class HintedJob(TuningJob):
    """Tune a vision-language model whose question has a hint in it, on a folder of pairs."""

    name: str = Field("hinted", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""
    order: float = Field(0.5, ge=0)
    """Weight of the preference for the images in their order over the images exchanged."""


def is_captioner(config: dict[str, Any]) -> bool:
    return True
