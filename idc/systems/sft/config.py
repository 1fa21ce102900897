"""Settings of supervised tuning."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from idc.vlm.config import TuningJob


class SftJob(TuningJob):
    """Tune a vision-language model on folders of pairs or of instructions."""

    name: str = Field("sft", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the run: its folder under `runs`. The same name resumes it."""


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by."""
    return "captions, on a base taught before"
