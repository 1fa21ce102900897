"""Artifacts of small models without training in this project, for tests: models that have learned to speak."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from idc.schema import IMAGE, Turn
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.vlm.base import find_base, load_model
from idc.vlm.batch import Sample, collate_encoded, encode_images, model_inputs
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig
from tests.vlm.models import picture, tiny_folder

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
    folder = Path(tempfile.mkdtemp(prefix=f"speaking-{kind}-"))
    shutil.copytree(tiny_folder(kind), folder, dirs_exist_ok=True)
    base = BaseConfig(source=str(folder), max_pixels=64 * 64)
    family, model = find_base(base).family, load_model(folder, base)
    chat, samples = Chat(family), []
    for number, turns in enumerate(SPOKEN):
        images = [picture(2 * (number % 2)), picture(2 * (number % 2) + 1)]
        encoded = chat.encode(turns, [(64, 64)] * 2)
        samples.append(Sample(encoded.ids, encoded.learned, family.pixels(images)))
    batch = collate_encoded(samples, family)
    targets = batch["input_ids"].masked_fill(~batch["learned"], -100)[:, 1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(120):
            inputs = model_inputs(batch, encode_images(model, batch, family), family)
            logits = model(**inputs).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss < 0.5, f"{kind} did not learn to speak: {loss.item():.2f}"
    model.save_pretrained(folder)
    return folder


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
