"""Small models that say a caption about a pair: a few steps of training on the default prompt, as their makers did."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch

from idc.vlm.base import find_base, load_model, save_processor
from idc.vlm.batch import encode_images
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig, PromptConfig
from idc.vlm.dialogue import caption_turns
from idc.vlm.logps import answer_rows, log_probabilities
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
def speaking_folder(kind: str) -> Path:
    """The folder of a small model that says the caption of each of :func:`pairs`."""
    return teach(tiny_folder(kind), pairs(), CAPTIONS, Path(mkdtemp(prefix=f"speaking-{kind}-")))


def teach(base: Path, shown: Sequence[Pair], captions: Sequence[str], folder: Path) -> Path:
    """Train all of a model until it says the captions of pairs, and write it as an ordinary model's folder. The number
    of steps differs: processors round differently, and half taught models then say different things."""
    config = BaseConfig(source=str(base))
    family, model = find_base(config).family, load_model(base, config)
    chat = Chat(family)
    prompts = [
        chat.prompt(caption_turns(PromptConfig()), [(image.shape[0], image.shape[1]) for image in pair])
        for pair in shown
    ]
    batch = answer_rows(prompts, [[chat.answer_ids(text)] for text in captions], family)
    batch |= family.pixels([image for pair in shown for image in pair])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(MOST_STEPS):
        totals, counts = log_probabilities(model, batch, encode_images(model, batch, family), family)
        means = totals / counts
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
