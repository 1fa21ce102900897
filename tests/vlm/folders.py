"""Small folders of pairs and of instructions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.images import encode_png
from idc.data.schema import ChangePair, Instruction, Turn, instruction_arrow_schema
from idc.vlm.chat import Chat
from idc.vlm.config import PromptConfig
from idc.vlm.samples import DialogueSamples
from tests.folders import write_rows
from tests.vlm.models import TEXTS, found, picture

SIZES = ((64, 64), (48, 90), (100, 30))
CAPTIONS = TEXTS[:3]


def image(seed: int, size: tuple[int, int]) -> bytes:
    """A PNG whose four quarters have colours of their own, so that a small model can tell images apart."""
    colours = picture(seed, 2, 2)
    height, width = size
    return encode_png(
        np.ascontiguousarray(colours.repeat(-(-height // 2), 0).repeat(-(-width // 2), 1)[:height, :width])
    )


def write_pairs(folder: Path, train: int = 12, val: int = 4, sizes: Sequence[tuple[int, int]] = SIZES) -> Path:
    """Pairs with one, two or no captions by turns; the images of a pair may have different sizes."""
    rows = []
    for number in range(train + val):
        texts = [CAPTIONS[number % 3], CAPTIONS[(number + 1) % 3]][: number % 3]
        if number >= train:
            texts = [CAPTIONS[number % 3]]
        images = [image(2 * number + side, sizes[(number + side) % len(sizes)]) for side in range(2)]
        split = "train" if number < train else "val"
        rows.append(ChangePair(f"pair-{number}", *images, captions=tuple(texts), split=split))
    write_rows(folder, rows, fingerprint=folder.name)
    return folder


def write_instructions(folder: Path, count: int = 6) -> Path:
    """Dialogues of one to three turns about one or two images."""
    rows = []
    for number in range(count):
        images = tuple(image(100 + 2 * number + n, SIZES[n]) for n in range(1 + number % 2))
        turns = [
            Turn("user", "<image>" * len(images) + " What changed?"),
            Turn("assistant", CAPTIONS[number % 3], "caption"),
        ]
        for again in range(number % 3):
            turns += [Turn("user", f"How many cubes, {again}?"), Turn("assistant", str(again), "count")]
        split = "train" if number < count - 2 else "val"
        rows.append(Instruction(f"row-{number}", images, tuple(turns), split).to_row())
    write_rows(folder, rows, "instructions", instruction_arrow_schema(), fingerprint=folder.name)
    return folder


@cache
def samples(kind: str, folder: Path, **options: Any) -> DialogueSamples:
    """The training split for a family, with the default question."""
    chat = Chat(found(kind).family)
    return DialogueSamples(str(folder), "train", chat, PromptConfig(), 0, **options)
