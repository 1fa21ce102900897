"""A tiny guide, its pairs, and their questions: settings, and runs of a few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from idc.captioning.contract import Captioner, SearchOptions
from idc.changeimti.changeimti_job import open_changeimti
from idc.changeimti.config import BuildChangeImtiJob
from idc.config import load
from idc.data.images import encode_png
from idc.data.pipeline import run_local
from idc.data.schema import NO_CHANGE, ChangePair
from idc.systems.changevg.config import ChangeVgJob, GuideJob
from tests.folders import write_rows
from tests.vlm.models import tiny_folder

WITH_MAP = SearchOptions(change_map=True)

SIDE = 32
MODEL: dict[str, Any] = {
    "image_size": SIDE,
    "backbone": {
        "widths": [8, 12, 16, 24], "depths": [1, 1, 1, 1], "heads": [1, 2, 2, 2], "reductions": [4, 2, 1, 1],
        "first_stride": 2,
    },
    "heads": 4,
    "map_layers": 1,
    "summary_layers": 1,
    "positions": 4,
    "decoder": {"width": 24, "layers": 1, "heads": 2, "feedforward": 48, "max_length": 16},
}  # fmt: skip
TRAIN: dict[str, Any] = {
    "steps": 6, "epochs": None, "batch_size": 2, "log_every": 1, "seed": 3, "clip_norm": 1.0,
    "tracking": {"enabled": False},
}  # fmt: skip
TUNING: dict[str, Any] = {
    "generation": {"max_new_tokens": 6},
    "tune": {"lora": {"rank": 4}, "language_optim": {"lr": 3e-2}},
    "train": {"epochs": None, "steps": 2, "batch_size": 4, "log_every": 1, "precision": "fp32", "group_by_length": 0,
              "clip_norm": 0},
}  # fmt: skip
SAME = "the scene is the same as before"


def scene(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (np.array([90, 110, 70]) + rng.integers(-8, 9, (SIDE, SIDE, 1))).astype(np.uint8)


def changed_pair(number: int, split: str, kind: str) -> ChangePair:
    """A road or a building appears, or (``same``) nothing."""
    before = scene(number)
    after, mask = before.copy(), np.zeros((SIDE, SIDE), np.uint8)
    at = 4 + 3 * (number % 5)
    if kind == "road":
        after[:, at : at + 5], mask[:, at : at + 5] = 60, 128
    elif kind == "building":
        after[at : at + 9, 8:20], mask[at : at + 9, 8:20] = (200, 120, 110), 255
    texts = (SAME, "there is no difference") if kind == "same" else (f"a {kind} appears", f"a new {kind} is built")
    return ChangePair(
        f"{split}-{number}",
        encode_png(before),
        encode_png(after),
        captions=texts,
        change_type=NO_CHANGE if kind == "same" else None,
        split=split,
        mask=None if kind == "same" else encode_png(np.repeat(mask[..., None], 3, axis=2)),
        meta={"changeflag": int(kind != "same")},
    )


def write_scenes(folder: Path, train: int = 6, val: int = 3, test: int = 0, masked: bool = False) -> str:
    """Roads, buildings and unchanged pairs by turns; these have masks too if all are ``masked``."""
    rows = [
        changed_pair(number, split, ("road", "building", "same")[number % 3])
        for split, count in (("train", train), ("val", val), ("test", test))
        for number in range(count)
    ]
    black = encode_png(np.zeros((SIDE, SIDE, 3), np.uint8)) if masked else None
    return write_rows(folder, [replace(row, mask=row.mask or black) for row in rows], fingerprint=folder.name)


def tiny_job(pairs: str, settings: dict[str, Any] | None = None) -> GuideJob:
    """``settings`` are dotted."""
    base = {"pairs": pairs, "model": MODEL, "train": TRAIN, "min_count": 1, "optim.lr": 3e-3}
    return load(GuideJob, None, {**base, **(settings or {})})


def class_maps_of(captioner: Captioner, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> np.ndarray:
    """The class of every pixel, (B, side, side)."""
    maps = [description.class_map for description in captioner.describe(befores, afters, WITH_MAP)]
    return np.stack([class_map.classes for class_map in maps if class_map is not None])


def write_questions(pairs: str, folder: Path, **settings: Any) -> str:
    job = load(BuildChangeImtiJob, None, {"pairs": pairs, "out": str(folder), **settings})
    run_local(*open_changeimti(job), max_reject_share=0.0)
    return job.out


def tuning_job(questions: str, guide: Path | str | None, **settings: Any) -> ChangeVgJob:
    """``settings`` are dotted."""
    base = {"pairs": questions, "base": {"source": str(tiny_folder("internvl", SIDE))}, **TUNING}
    return load(ChangeVgJob, None, {**base, **({} if guide is None else {"guide": str(guide)}), **settings})
