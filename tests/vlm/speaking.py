"""Small models that say a caption about a pair: a few steps of training on the default prompt, as their makers did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch

from idc.data.schema import Turn
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
def speaking_folder(kind: str) -> Path:
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
