"""Pictures of coloured shapes, for tests of the vision parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from idc.data.images import encode_png
from idc.vision.tokenizer.config import TokenizerConfig
from tests.folders import write_rows

TINY = TokenizerConfig(
    image_size=32, patch_size=4, channels=32, channel_mult=(1, 1), res_blocks=1, mid_attention=False, norm_groups=8,
    codebook_size=32, latent_dim=16,
)  # fmt: skip
"""32x32 images to 4x4 codes."""

COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 210), "yellow": (230, 210, 50)}


def scene(colour: str | None, left: int = 8, size: tuple[int, int] = (32, 32)) -> np.ndarray:
    """Grey ground, brighter below, with one square (or none); uint8 (H, W, 3)."""
    height, width = size
    pixels = np.repeat(np.linspace(90, 160, height)[:, None], width, 1)[..., None].repeat(3, 2)
    pixels += 6 * np.sin(np.arange(width) / 2)[None, :, None]
    if colour is not None:
        pixels[height // 3 : height // 3 + 12, left : left + 12] = COLOURS[colour]
    return pixels.round().astype(np.uint8)


def pair_row(index: int, split: str, **changes: Any) -> dict[str, Any]:
    """A pair whose square changes its colour, or for odd indices stays as it is."""
    names = list(COLOURS)
    first, second = names[index % 4], names[(index + 1) % 4]
    left = 2 + (5 * index) % 17
    changed = index % 2 == 0
    row = {
        "pair_id": f"p{index:03d}",
        "before": encode_png(scene(first, left)),
        "after": encode_png(scene(second if changed else first, left)),
        "captions": [f"the {first} square became {second}"] if changed else ["nothing changed", "no change"],
        "change_type": "color" if changed else "none",
        "split": split,
        "mask": None,
        "source": "test",
        "meta": "{}",
    }
    return {**row, **changes}


def write_pairs(path: Path, rows: list[dict[str, Any]], rows_per_part: int = 8) -> str:
    """A complete folder of pairs at ``path``; its path as text."""
    return write_rows(path, rows, rows_per_part=rows_per_part)
