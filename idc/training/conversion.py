"""The conversion of a foreign checkpoint as a command: done once, with a note of its origin and of what was dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from idc.training.foreign import Dropped

CONVERSION = "conversion.json"
"""File next to the weights: their origin, and the dropped tensors."""


def dropped_before(out: Path, note: Mapping[str, Any], overwrite: bool) -> list[Dropped] | None:
    """What a conversion that is complete has dropped; None if there is none, or it is to be replaced.

    Args:
        note: the origin, with the hashes of the files and the settings.

    Raises:
        ValueError: the folder holds anything else.
    """
    if overwrite or not out.exists():
        return None
    conversion = json.loads(path.read_text(encoding="utf-8")) if (path := out / CONVERSION).is_file() else {}
    if any(conversion.get(key) != value for key, value in note.items()):
        raise ValueError(f"{out} exists and is not this conversion; choose another folder, or pass --overwrite")
    return [Dropped(item["name"], tuple(item["shape"]), item["reason"]) for item in conversion["dropped"]]


def conversion_text(note: Mapping[str, Any], dropped: Sequence[Dropped]) -> str:
    """The content of :data:`CONVERSION`."""
    return json.dumps({**note, "dropped": [asdict(item) for item in dropped]}, indent=1, ensure_ascii=False) + "\n"
