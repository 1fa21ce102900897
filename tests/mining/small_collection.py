"""A small collection of images with known scenes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from idc.config import load
from idc.mining.config import MinePairsJob
from idc.mining.features_folder import FEATURES, LENGTHS, feature_schema, unit_length
from tests.folders import write_rows

LOOSE = {
    f"efficientnet_lite0.{layer}_thresholds.{name}": value
    for layer in ("head", "middle")
    for name, value in (("max", 0.9999), ("min", 0.3), ("set_max", 0.3), ("set_min", 0.3))
}
"""Thresholds under which nearly every image has candidates."""


def scene(number: int, variant: int, size: int = 48) -> np.ndarray:
    """A picture of coloured rectangles; the variants of a scene differ in one of them and in the light."""
    rng = np.random.default_rng(number)
    picture = np.full((size, size, 3), rng.integers(40, 216, 3), np.uint8)
    for _ in range(6):
        top, left = rng.integers(0, size - 12, 2)
        height, width = rng.integers(8, 24, 2)
        picture[top : top + height, left : left + width] = rng.integers(0, 256, 3)
    if variant:
        top, left = np.random.default_rng((number, variant)).integers(0, size - 10, 2)
        picture[top : top + 9, left : left + 9] = (255, 250 * (variant % 2), 40)
    return np.clip(picture.astype(int) + 4 * variant, 0, 255).astype(np.uint8)


def write_images(folder: Path, scenes: int = 10, variants: int = 3) -> dict[str, int]:
    """Write the images under names that do not reveal their scenes; name -> scene."""
    rng = np.random.default_rng(5)
    names = rng.permutation(scenes * variants)
    truth = {}
    for number in range(scenes):
        for variant in range(variants):
            name = f"{names[number * variants + variant] % 4}/{names[number * variants + variant]:03d}.png"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(scene(number, variant)).save(folder / name)
            truth[name] = number
    return truth


def job(images: Path, out: Path, **settings: object) -> MinePairsJob:
    """A small job over a collection with the embedded features and loose thresholds; ``__`` in a name is a dot."""
    given = {name.replace("__", "."): value for name, value in settings.items()}
    small = {"efficientnet_lite0.size": 64, "chunk_size": 8, "query_chunk": 8, "neighbours": 5, "workers": 1}
    return load(MinePairsJob, None, {"images": str(images), "out": str(out), **small, **LOOSE, **given})


def features_folder(path: Path, features: Sequence[np.ndarray], thumbnails: Sequence[int] | None = None) -> Path:
    """A folder of features as the job's first step writes it, in parts of 15; ``thumbnails`` are grey values."""
    rows = [
        {
            "place": i, "image_id": str(i), "height": 1, "width": 1,
            "thumbnail": bytes([0 if thumbnails is None else thumbnails[i]] * 192),
            **{name: unit_length(x)[i].tobytes() for name, x in zip(FEATURES, features, strict=True)},
            **{name: float(np.linalg.norm(x[i])) for name, x in zip(LENGTHS, features, strict=True)},
        }
        for i in range(len(features[0]))
    ]  # fmt: skip
    return Path(write_rows(path, rows, "image_features", feature_schema(), rows_per_part=15))
