"""Small pairs with scenes, a small pair encoder, tasks and batches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from idc.config import load
from idc.data.schema import NO_CHANGE, ChangePair
from idc.data.text import Vocabulary
from idc.systems.adpo.config import AdpoJob
from idc.systems.adpo.data import collate_preferences, make_loaders, preference_parts
from idc.systems.adpo.retriever import Retriever, frame_size
from idc.systems.adpo.task import PreferenceTask
from idc.training.context import LocalContext
from idc.training.data import Loaders
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pair_encoder.model import PairEncoder, WordTokens
from idc.vlm.base import load_model
from idc.vlm.config import BaseConfig
from tests.folders import write_rows
from tests.vlm.folders import SIZES, image
from tests.vlm.models import found, tiny_folder

KIND = "internvl"
COLORS, SHAPES = ("red", "blue", "green", "gray"), ("cube", "sphere", "cylinder")
SAME = ("there is no change", "nothing has changed", "no difference at all")
TUNE = {"lora": {"rank": 4, "dropout": 0.0}, "language_optim": {"lr": 3e-2}}
VISION_TOO = {**TUNE, "lora": {"rank": 4, "dropout": 0.0, "targets": "all"}}
WHOLE = {"language": "full", "language_optim": {"lr": 1e-2}, "tower": {"lr": 1e-2}, "projector": {"lr": 1e-2}}
TRAIN = {
    "epochs": None, "steps": 3, "batch_size": 4, "log_every": 1, "precision": "fp32", "group_by_length": 0,
    "keep_best": None,
}  # fmt: skip


def rows_of(train: int, val: int = 3, sizes: Sequence[tuple[int, int]] = SIZES) -> list[dict[str, Any]]:
    """Pairs in which an object was added; every fourth is unchanged. Each has two captions: of an unchanged pair two of
    :data:`SAME`, of the others one that names the object and one that names its color."""
    rows = []
    for number in range(train + val):
        color, shape = COLORS[number % 4], SHAPES[number % 3]
        images = [image(2 * number + side, sizes[(number + side) % len(sizes)]) for side in range(2)]
        if number % 4 == 3:
            captions, kind = (SAME[number % 3], SAME[(number + 1) % 3]), NO_CHANGE
        else:
            captions, kind = (f"the {color} {shape} was added", f"a {color} thing was added"), "add"
        split = "train" if number < train else "val"
        rows.append(ChangePair(f"pair-{number}", *images, captions, kind, split).to_row())
    return rows


def pairs_folder(folder: Path, train: int = 12, **options: Any) -> Path:
    return Path(write_rows(folder, rows_of(train, **options), fingerprint=folder.name))


@cache
def encoder_folder(seed: int = 0) -> Path:
    torch.manual_seed(seed)
    words = sorted({word for row in rows_of(12) for text in row["captions"] for word in text.split()})
    tokens = WordTokens(Vocabulary(words), max_words=12)
    config = PairEncoderConfig(
        image_size=32, patch_size=16, width=32, heads=2, separate_layers=1, joint_layers=1, text_width=32, text_heads=2,
        text_layers=1, text_positions=16, embedding=16,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="encoder-")) / "artifact"
    PairEncoder(config, len(tokens), tokens).save(folder)
    return folder


def job_of(kind: str, pairs: Path | str, **settings: Any) -> AdpoJob:
    given: dict[str, Any] = {
        "pairs": str(pairs), "base": {"source": str(tiny_folder(kind))}, "captions": "one", "candidates": 6,
        "generation": {"max_new_tokens": 8}, "tune": TUNE, "train": TRAIN,
    }  # fmt: skip
    if settings.get("objective", "adpo") == "adpo":
        given["retriever"] = {"encoder": str(encoder_folder())}
    return load(AdpoJob, None, {**given, **settings})


def loaders_of(job: AdpoJob, kind: str, run: Path) -> Loaders:
    size = frame_size(job.retriever) if job.retriever else None
    return make_loaders(job, found(kind).family, LocalContext(run), size)


def task_of(job: AdpoJob, kind: str, loaders: Loaders) -> PreferenceTask:
    """A new task, with the bank of these loaders."""
    torch.manual_seed(0)
    model = load_model(found(kind).folder, BaseConfig(source=job.base.source))
    task = PreferenceTask(job, model, found(kind).family, Retriever(job.retriever) if job.retriever else None)
    task.set_caption_bank(preference_parts(loaders))
    return task


def batch_of(loaders: Loaders, indices: Sequence[int] = (0, 1, 2, 3), epoch: int = 0) -> dict[str, Any]:
    samples = [loaders.train.dataset.get(index, epoch) for index in indices]
    family = preference_parts(loaders)[0].chat.family
    return {**collate_preferences(samples, family), "num_samples": len(samples)}


def moved(task: PreferenceTask, seed: int = 1, by: float = 0.05) -> None:
    """Move everything that is trained, so that the policy is no longer its reference."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in task.parameters():
        if parameter.requires_grad:
            parameter.data += by * torch.randn(parameter.shape, generator=generator)
