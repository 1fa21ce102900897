"""The hint: which quarter of the image differs most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from idc.data.images import decode_image, resize_image
from idc.vlm.config import PromptConfig


def with_hint(prompt: PromptConfig, before: np.ndarray, after: np.ndarray) -> PromptConfig:
    """The question about a pair of uint8 RGB images (H, W, 3)."""
    small = [resize_image(image, 2).astype(np.float32) for image in (before, after)]
    quarter = int(np.abs(small[1] - small[0]).sum(axis=2).argmax())
    where = f"{('upper', 'lower')[quarter // 2]} {('left', 'right')[quarter % 2]}"
    return prompt.model_copy(update={"text": f"{prompt.text} Most pixels differ at the {where}."})


def with_hint_of_row(prompt: PromptConfig, row: Mapping[str, Any]) -> PromptConfig:
    """The question about a stored pair."""
    return with_hint(prompt, decode_image(row["before"]), decode_image(row["after"]))
