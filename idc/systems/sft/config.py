"""Settings of supervised tuning."""

from __future__ import annotations

from typing import Any

from idc.training.config import RunName
from idc.vlm.config import TuningJob


class SftJob(TuningJob):
    """Tune a vision-language model on folders of pairs or of instructions."""

    ENTRY = "idc.systems.sft.task:train"
    name: RunName = "sft"


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by."""
    return "captions, on a base taught before"
