"""Small models that have learned to say captions about pairs, and to answer: a few steps of training, as their makers
did; and artifacts of them, without training in this project."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from idc.data.schema import IMAGE, Turn
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.vlm.base import find_base, load_model, save_processor
from idc.vlm.batch import Sample, collate_encoded, encode_images
from idc.vlm.chat import Chat, caption_turns
from idc.vlm.config import BaseConfig, PromptConfig
from idc.vlm.logps import token_log_probabilities
from idc.vlm.system import sample_losses
from tests.vlm.models import TEXTS, picture, tiny_folder

CAPTIONS = TEXTS[:3]
TAUGHT = -0.02
"""Mean log probability of a caption's tokens from which on a model says it."""
MOST_STEPS = 400
Pair = tuple[np.ndarray, np.ndarray]


def pairs() -> list[Pair]:
    """A pair for each of :data:`CAPTIONS`, of different sizes; that of the last one has no change."""
    unchanged = picture(5, 100, 40)
    return [(picture(0), picture(2)), (picture(1, 48, 90), picture(3, 64, 100)), (unchanged, unchanged)]


@cache
def taught_folder(kind: str) -> Path:
    """The folder of a small model that says the caption of each of :func:`pairs`."""
    return teach(tiny_folder(kind), pairs(), CAPTIONS, Path(mkdtemp(prefix=f"speaking-{kind}-")))


def teach(base: Path, shown: Sequence[Pair], captions: Sequence[str], folder: Path) -> Path:
    """Train all of a model until it says the captions of pairs, and write it as an ordinary model's folder."""
    turns = [*caption_turns(PromptConfig())]
    dialogues = [([*turns, Turn("assistant", text)], pair) for text, pair in zip(captions, shown, strict=True)]
    return teach_dialogues(BaseConfig(source=str(base)), dialogues, folder)


def teach_dialogues(base: BaseConfig, dialogues: Iterable[tuple[Sequence[Turn], Pair]], folder: Path) -> Path:
    """The same for any dialogues about pairs, whose answers are said. The number of steps differs: processors round
    differently, and half taught models then say different things."""
    family, model = find_base(base).family, load_model(Path(base.source), base)
    chat, samples = Chat(family), []
    for turns, pair in dialogues:
        encoded = chat.encode(turns, [(image.shape[0], image.shape[1]) for image in pair])
        samples.append(Sample(encoded.ids, encoded.learned, family.pixels(pair)))
    batch = collate_encoded(samples, family)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(MOST_STEPS):
        logs, rows = token_log_probabilities(model, batch, encode_images(model, batch, family), family)
        means = sample_losses(logs, rows, len(samples))
        if means.min() > TAUGHT:
            break
        loss = -means.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert means.min() > TAUGHT, f"not taught after {MOST_STEPS} steps: {means.tolist()}"
    model.save_pretrained(folder)
    save_processor(family, folder)
    return folder


TEXT = f"{IMAGE}{IMAGE}What changed between the two images?"
QUESTION = "Which colour has it?"
SPOKEN = (
    (Turn("user", TEXT), Turn("assistant", "the small red metal cube was added")),
    (Turn("user", TEXT), Turn("assistant", "the large blue rubber sphere has moved")),
    (Turn("user", TEXT), Turn("assistant", "the small red metal cube was added"), Turn("user", QUESTION),
     Turn("assistant", "red")),
    (Turn("user", TEXT), Turn("assistant", "the large blue rubber sphere has moved"), Turn("user", QUESTION),
     Turn("assistant", "blue")),
)  # fmt: skip
"""Dialogues that the models have seen, the same two images of noise in each kind."""


@cache
def speaking_folder(kind: str) -> Path:
    """The folder of a small model after some steps on :data:`SPOKEN`: with random weights it would repeat its last
    token, which is a line break."""
    base = BaseConfig(source=str(tiny_folder(kind)), max_pixels=64 * 64)
    shown = [(picture(0), picture(1)), (picture(2), picture(3))]
    dialogues = [(turns, shown[number % 2]) for number, turns in enumerate(SPOKEN)]
    folder = Path(shutil.copytree(tiny_folder(kind), tempfile.mkdtemp(prefix=f"speaking-{kind}-"), dirs_exist_ok=True))
    return teach_dialogues(base, dialogues, folder)


def wrapped(out: Path, kind: str = "qwen2_5_vl", folder: Path | None = None, **settings: Any) -> str:
    """The folder of an artifact of a speaking model (or of that in ``folder``), which sees images at up to 64 x 64
    pixels."""
    given = {
        "base": {"source": str(folder or speaking_folder(kind)), "max_pixels": 64 * 64},
        "prompt": {"text": TEXT},
        "generation": {"max_new_tokens": 12},
        "trained_on": "pictures of noise",
    }
    wrap(WrapJob.model_validate({**given, **settings, "out": str(out)}), overwrite=True)
    return str(out)
