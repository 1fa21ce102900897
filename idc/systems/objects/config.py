"""What may be set is in :mod:`idc.captioning.objects_config`; thresholds are constants of the modules, each with its
reason."""

from __future__ import annotations

from typing import Any


def supervision(saved: dict[str, Any]) -> str:
    """What an artifact was taught by: it is not trained here."""
    return "none"
