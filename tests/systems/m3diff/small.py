"""Small M3Diff models and batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from idc.config import load
from idc.data.schema import IMAGE, Turn
from idc.systems.m3diff.config import M3DiffJob, MdpConfig
from idc.systems.m3diff.model import new_mdp
from idc.systems.m3diff.task import M3DiffTask
from idc.vlm.base import load_model
from idc.vlm.batch import Sample, collate_encoded
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig, GenerateConfig, TuneConfig
from idc.vlm.family import Family
from tests.vlm.models import found, picture, tiny_folder

TURNS = (
    Turn("user", f"{IMAGE}{IMAGE} What changed?"),
    Turn("assistant", "the small red metal cube was added", "caption"),
)
SMALL = {
    "captions": "one", "generation": {"max_new_tokens": 8}, "mdp": {"optim": {"lr": 1e-2}},
    "tune": {"lora": {"rank": 4}, "language_optim": {"lr": 3e-2}, "tower": {"lr": 1e-3}, "projector": {"lr": 1e-3}},
    "train": {"epochs": None, "steps": 4, "batch_size": 4, "log_every": 1, "precision": "fp32", "group_by_length": 0,
              "clip_norm": 0},
}  # fmt: skip
SQUARE, WIDE = (64, 64), (48, 90)


def task_of(kind: str, mdp: dict[str, Any] | None = None, tune: dict[str, Any] | None = None) -> M3DiffTask:
    base = found(kind)
    torch.manual_seed(0)
    config = load(MdpConfig, None, mdp or {})
    model = load_model(base.folder, BaseConfig(source=str(base.folder)))
    tuned = load(TuneConfig, None, tune or {"lora": {"rank": 4}, "tower": {"lr": 1e-3}, "projector": {"lr": 1e-3}})
    return M3DiffTask(model, base.family, tuned, GenerateConfig(max_new_tokens=8), new_mdp(config, base.family),
                      config.optim)  # fmt: skip


def batch_of(family: Family, sizes: Sequence[tuple[int, int]], side: str = "right") -> dict[str, Any]:
    """A pair of noise of each size with a dialogue about it; with ``side`` left, its prompt alone."""
    chat, samples = Chat(family), []
    for number, size in enumerate(sizes):
        images = [picture(2 * number + n, *size) for n in range(2)]
        if side == "left":
            ids = chat.prompt(TURNS[:-1], [size] * 2)
            samples.append(Sample(ids, [False] * len(ids), family.pixels(images)))
        else:
            encoded = chat.encode(TURNS, [size] * 2)
            samples.append(Sample(encoded.ids, encoded.learned, family.pixels(images)))
    return {**collate_encoded(samples, family, side), "num_samples": len(samples)}  # type: ignore[arg-type]


def job_of(kind: str, pairs: Path | str, runs: Path | str, **settings: Any) -> M3DiffJob:
    given = {"pairs": str(pairs), "base": {"source": str(tiny_folder(kind))}, "runs": str(runs), **SMALL}
    return load(M3DiffJob, None, {**given, **settings})
