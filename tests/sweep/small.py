"""Sweeps over the tiny world of ``tests.systems.procap.world``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from idc.config import load
from idc.sweep.config import SweepJob
from tests.systems.procap.world import DECODER, ENCODER, TRAIN, World

SETTINGS: dict[str, Any] = {
    "pretrain": {"encoder": ENCODER, "optim": {"lr": 1e-3, "warmup_steps": 2}, "train": TRAIN},
    "finetune": {"decoder": DECODER, "train": {**TRAIN, "keep_best": {"metric": "CIDEr"}}},
    "evaluate": {"metrics": ["CIDEr"], "spice": False, "constant_candidates": 0, "nearest_train_pairs": 0},
}
"""Everything at its smallest."""


def small_sweep(world: World, runs: Path, **overrides: Any) -> SweepJob:
    """A table of one row, without tracking and baselines; ``overrides`` are top-level, ``settings`` laid over."""
    own = overrides.pop("settings", {})
    values: dict[str, Any] = {
        "name": "small",
        "system": "procap",
        "runs": str(runs),
        "settings": {"pairs": world.pairs, "procedures": world.procedures, **SETTINGS, **own},
        "columns": [{"title": "C", "metric": "CIDEr"}],
        "rows": [{"label": "without stage 1", "settings": {"explicit_modeling": False}}],
        "tracking": {"enabled": False},
    }
    return load(SweepJob, None, {**values, **overrides})


def write_yaml(path: Path, job: SweepJob) -> str:
    """The sweep as a file for the command line."""
    path.write_text("# A tiny sweep.\n" + yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True)))
    return str(path)
