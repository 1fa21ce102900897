"""A small ChangeVG: pairs, their questions, a guide, and a language model that was tuned for a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from idc.config import load
from idc.data.changeimti.changeimti_job import open_changeimti
from idc.data.changeimti.config import BuildChangeImtiJob
from idc.data.pipeline import run_local
from idc.systems.changevg.config import ChangeVgJob
from tests.systems.changevg.tiny import SIDE, write_scenes
from tests.vlm.models import tiny_folder

TUNING: dict[str, Any] = {
    "generation": {"max_new_tokens": 6},
    "tune": {"lora": {"rank": 4}, "language_optim": {"lr": 3e-2}},
    "train": {"epochs": None, "steps": 2, "batch_size": 4, "log_every": 1, "precision": "fp32", "group_by_length": 0,
              "clip_norm": 0},
}  # fmt: skip


def write_masked(folder: Path, train: int = 5, val: int = 3, test: int = 0) -> str:
    return write_scenes(folder, train, val, test, masked=True)


def write_questions(pairs: str, folder: Path, **settings: Any) -> str:
    """ChangeIMTI of the pairs."""
    job = load(BuildChangeImtiJob, None, {"pairs": pairs, "out": str(folder), **settings})
    run_local(*open_changeimti(job), max_reject_share=0.0)
    return job.out


def tuning_job(questions: str, guide: Path | str | None, **settings: Any) -> ChangeVgJob:
    """``settings`` are dotted."""
    base = {"pairs": questions, "base": {"source": str(tiny_folder("internvl", SIDE))}, **TUNING}
    return load(ChangeVgJob, None, {**base, **({} if guide is None else {"guide": str(guide)}), **settings})
