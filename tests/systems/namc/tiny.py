"""A tiny NAMC: described pairs, settings, and runs of a few seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from idc.config import load
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.mining.descriptions.config import OracleConfig
from idc.mining.descriptions.oracle import describe_by_oracle
from idc.nn.captioned_rows import ImageStore
from idc.systems.namc.config import FinetuneJob, PretrainJob
from idc.systems.namc.data import DescribedPairs, Tokens
from tests.systems.procap.world import TRAIN as WORLD_TRAIN
from tests.systems.procap.world import World
from tests.vision.scenes import write_pairs

MODEL: dict[str, Any] = {
    "image": {"grid": 4, "cnn": "stem", "stem_channels": [8, 16, 16, 32]},
    "encoder": {"width": 32, "layers": 2, "heads": 2, "dropout": 0.0, "comparing": True},
    "decoder": {"width": 32, "layers": 1, "heads": 2, "feedforward": 64, "max_length": 96, "dropout": 0.0},
}
TRAIN: dict[str, Any] = {**WORLD_TRAIN, "steps": 6, "seed": 3, "optimizer": "adamw"}


def described_pairs(world: World, folder: Path, noise: float = 0.3) -> str:
    rows = []
    for row in iter_rows(world.pairs):
        meta = json.loads(row["meta"])
        description = describe_by_oracle(row["pair_id"], meta, OracleConfig(noise=noise))
        rows.append({**row, "captions": [description.sentence()]})
    return write_pairs(folder, rows)


def described_samples(described: str, **settings: Any) -> DescribedPairs:
    """The training split of :func:`described_pairs`, with a vocabulary of its descriptions; ``settings`` are arguments
    of :class:`DescribedPairs`."""
    vocabulary = settings.pop("vocabulary", None) or Vocabulary.build(
        row["captions"][0] for row in iter_rows(described)
    )
    defaults = {"tokens": Tokens(vocabulary, 96), "positions": 16, "length": 96, "seed": 0}
    return DescribedPairs(
        described, "train", images=ImageStore(64, 64), vocabulary=vocabulary, **{**defaults, **settings}
    )


def pretrain_job(world: World, described: str, settings: dict[str, Any] | None = None) -> PretrainJob:
    """``settings`` are dotted; a ``tokenizer`` of None leaves it out."""
    base = {
        "pairs": described, "tokenizer": world.tokenizer, "caption_pairs": world.pairs, "model": MODEL, "train": TRAIN,
        "nim.encoder": {"width": 32, "layers": 1, "heads": 2}, "optim.lr": 3e-3, "optim.final_lr": 1e-3,
        "nim_optim.lr": 3e-3, "cache_mb": 64,
    }  # fmt: skip
    return load(PretrainJob, None, {**base, **(settings or {})})


def finetune_job(world: World, settings: dict[str, Any] | None = None) -> FinetuneJob:
    """``settings`` are dotted; the model is given if ``pretrained`` is not."""
    given = settings or {}
    base: dict[str, Any] = {"pairs": world.pairs, "optim.lr": 3e-3, "max_length": 20, "cache_mb": 64}
    base["train"] = {**TRAIN, "keep_best": {"metric": "CIDEr"}}
    if "pretrained" not in given:
        base["model"] = MODEL
    return load(FinetuneJob, None, {**base, **given})
