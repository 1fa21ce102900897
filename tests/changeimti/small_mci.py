"""A small folder in the layout of LEVIR-MCI, with masks that are easy to count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from idc.changeimti.config import BuildChangeImtiJob
from idc.data.images import encode_png
from tests.data.readers.test_own import prepare, put

SIZE = 60
UNCHANGED = [" there is no difference .", " the scene is the same as before ."] * 2 + [" no change has occurred ."]

Box = tuple[int, int, int, int, int]
"""x, y, width, height, grey value."""

ROAD_LEFT: Box = (2, 22, 12, 12, 128)
ROAD_CENTER: Box = (25, 25, 8, 8, 128)
ROOF_TOP: Box = (25, 2, 8, 8, 255)
ROOF_TOP_TOO: Box = (36, 2, 3, 3, 255)
ROOF_LOW_RIGHT: Box = (45, 45, 10, 10, 255)
PIXEL: Box = (5, 5, 1, 1, 255)


def label_of(*boxes: Box, size: int = SIZE) -> np.ndarray:
    label = np.zeros((size, size, 3), np.uint8)
    for x, y, width, height, value in boxes:
        label[y : y + height, x : x + width] = value
    return label


class MciFolder:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.files: dict[str, int | str | bytes] = {}

    def pair(
        self, number: int, flag: int, *boxes: Box, split: str = "train", sentences: list[str] | None = None,
        label: np.ndarray | None = None, masked: bool = True, sizes: tuple[int, int] = (SIZE, SIZE),
    ) -> str:  # fmt: skip
        name = f"{split}_{number:06d}"
        changed = [f" {n} houses appear in the scene {number} ." for n in range(5)]
        raw = sentences if sentences is not None else changed if flag else UNCHANGED
        self.records.append({
            "filepath": split, "filename": f"{name}.png", "split": split, "changeflag": flag, "imgid": number,
            "sentences": [{"raw": text, "tokens": text.split()} for text in raw],
        })  # fmt: skip
        for side, size in zip("AB", sizes, strict=True):
            pixels = np.full((size, size, 3), (number % 250, 90 + 60 * (side == "B"), 40), np.uint8)
            self.files[f"images/{split}/{side}/{name}.png"] = encode_png(pixels)
        if masked:
            self.files[f"images/{split}/label/{name}.png"] = encode_png(label_of(*boxes) if label is None else label)
        return name

    def imported(self, folder: Path, **more: Any) -> str:
        names = {"LevirCCcaptions.json": json.dumps({"images": self.records, "dataset": "LEVIR-MCI"}), **self.files}
        manifest = prepare(put(folder / "mci", names), folder / "pairs", "levir", **more)
        assert manifest.num_rows == len(self.records), manifest.reject_reasons
        return str(folder / "pairs")


def small_job(pairs: str, **more: Any) -> BuildChangeImtiJob:
    return BuildChangeImtiJob.model_validate({"pairs": pairs, "out": str(Path(pairs).parent / "out"), **more})
