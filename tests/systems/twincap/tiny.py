"""A tiny TwinCap: its settings, and a run of a few seconds."""

from __future__ import annotations

from typing import Any

from idc.config import load
from idc.systems.twincap.config import TwinCapJob
from tests.systems.procap.world import TRAIN as WORLD_TRAIN

MODEL: dict[str, Any] = {
    "height": 32,
    "width": 32,
    "stem_channels": [8, 16],
    "channels": 32,
    "blocks": 1,
    "decoder": {"width": 32, "layers": 1, "heads": 2, "feedforward": 64, "max_length": 20},
}
TRAIN: dict[str, Any] = {**WORLD_TRAIN, "steps": 6, "seed": 3, "keep_best": {"metric": "CIDEr"}}


def tiny_job(pairs: str, settings: dict[str, Any] | None = None) -> TwinCapJob:
    """``settings`` are dotted."""
    base = {"pairs": pairs, "model": MODEL, "train": TRAIN, "optim.lr": 3e-3}
    return load(TwinCapJob, None, {**base, **(settings or {})})
