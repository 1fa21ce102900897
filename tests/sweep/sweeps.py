"""The sweeps of the repository: tables at each of their sizes, and files that are a sweep by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from idc.config import load
from idc.sweep.config import SweepJob
from tests.systems.procap.world import DECODER, ENCODER, TRAIN, World

CONFIGS = Path(__file__).resolve().parents[2] / "jobs/configs"
SIZES = ("paper", "small")


def shipped_sweeps() -> dict[str, tuple[str, ...]]:
    """Name as in ``procap/table02_small`` -> its files below the folder of configs, in the order of the command line.
    What has no size but its own is small, if its file does not say otherwise."""
    sweeps: dict[str, tuple[str, ...]] = {}
    for path in sorted(CONFIGS.glob("*/sweeps/*.yaml")):
        system, file = path.parts[-3], path.relative_to(CONFIGS).as_posix()
        if path.stem in SIZES:
            continue
        sizes = yaml.safe_load(path.read_text(encoding="utf-8")).get("sizes")
        if sizes is None:
            sweeps[f"{system}/{path.stem}"] = (file,)
        for size in sizes or ():
            name = f"{system}/{path.stem}" + ("" if size == "paper" else f"_{size}")
            sweeps[name] = (file, f"{system}/sweeps/{size}.yaml")
    return sweeps


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
