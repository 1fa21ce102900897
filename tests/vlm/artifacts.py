"""Artifacts of small models without training in this project, for tests: models that have learned to speak."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from idc.data.schema import IMAGE, Turn
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.vlm.config import BaseConfig
from tests.vlm.models import picture, tiny_folder
from tests.vlm.speaking import teach_dialogues

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
