"""A tiny real world for ProCap: rendered pairs, a tokenizer, procedures; made once a test session, without Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.train import TrainingRun, launch
from idc.config import load
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.rendered.config import RenderJob
from idc.rendered.render import open_rendering
from idc.systems.procap.config import FinetuneJob, PretrainJob
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_images

SIZE = 32
SCENES = 12
TOKENIZER = TokenizerConfig(
    image_size=SIZE, patch_size=2, channels=16, channel_mult=(1, 1, 2), res_blocks=1, mid_attention=False,
    norm_groups=8, codebook_size=32, latent_dim=16,
)  # fmt: skip
ENCODER = {"width": 32, "layers": 2, "heads": 4, "text_length": 12}
DECODER = {"width": 32, "layers": 1, "heads": 4, "feedforward": 64, "max_length": 20, "dropout": 0.0}
TRAIN: dict[str, Any] = {
    "steps": 4,
    "epochs": None,
    "batch_size": 4,
    "log_every": 1,
    "seed": 5,
    "tracking": {"enabled": False},
}


Images = tuple[list[np.ndarray], list[np.ndarray]]
"""The images before and those after."""


@dataclass(frozen=True)
class World:
    """Folders of 24 rendered pairs, a tokenizer, procedures (5 frames, k = 2) with features, and without."""

    pairs: str
    tokenizer: str
    procedures: str
    pixels: str

    def pretrain(self, settings: dict[str, Any] | None = None, **overrides: Any) -> PretrainJob:
        """Stage 1 on ``procedures``; ``settings`` are dotted, ``overrides`` top-level keys."""
        base = {"procedures": self.procedures, "encoder": ENCODER, "optim.lr": 1e-2, "optim.warmup_steps": 2}
        return load(PretrainJob, None, {"train": TRAIN, **base, **overrides, **(settings or {})})

    def finetune(self, settings: dict[str, Any] | None = None, **overrides: Any) -> FinetuneJob:
        """Stage 2 from scratch, or from ``pretrained``."""
        scratch = {} if "pretrained" in overrides else {"encoder": ENCODER}
        rates = {"encoder_optim.lr": 3e-3, "decoder_optim.lr": 3e-3}
        base = {"procedures": self.procedures, "decoder": DECODER, **rates, **scratch}
        train = {**TRAIN, "keep_best": {"metric": "CIDEr"}}
        return load(FinetuneJob, None, {"train": train, **base, **overrides, **(settings or {})})


def start(job: Any, run_dir: Path) -> dict[str, Any]:
    """Train by the job of any system, without Ray."""
    payload = job.model_dump(mode="json", exclude={"train"})
    return launch(TrainingRun.in_folder(job.ENTRY, payload, job.train, run_dir), local=True)


def make_world(folder: Path) -> World:
    pairs = str(folder / "pairs")
    scenes = {
        "num_scenes": SCENES, "width": SIZE, "height": SIZE, "samples_per_pixel": 4, "min_objects": 2, "max_objects": 3,
        "jitter": "slight", "min_visible_pixels": 8, "val_share": 0.17, "test_share": 0.17,
    }  # fmt: skip
    job = load(RenderJob, None, {"out": pairs, "render": scenes, "chunk_size": SCENES})
    run_local(*open_rendering(job), progress=False)
    tokenizer = make_tokenizer(folder / "tokenizer", pairs)
    common = {"pairs": pairs, "tokenizer": tokenizer, "depth": 2, "num_keyframes": 2, "temperature": 0.001}
    stored = build_procedures(folder / "procedures", {**common, "store_features": True})
    return World(pairs, tokenizer, stored, build_procedures(folder / "pixels", common))


def build_procedures(path: Path, settings: dict[str, Any]) -> str:
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_local(*args, progress=False, **kwargs)

    build(ProceduresConfig.model_validate(settings), str(path), run)
    return str(path)


def make_tokenizer(path: Path, pairs: str) -> str:
    """Random weights; the codes are outputs of its own encoder, so that images use many of them."""
    images = np.stack([prepare_frame(decode_image(row["before"]), TOKENIZER) for row in iter_rows(pairs)])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tokenizer = ImageTokenizer(TOKENIZER).eval()
        with torch.no_grad():
            rows = tokenizer.project(tokenizer.encoder_features(to_images(images))).flatten(0, 1)
            tokenizer.codebook.copy_(rows[torch.randperm(len(rows))[: TOKENIZER.codebook_size]])
    tokenizer.save(path)
    return str(path)
