"""Pairs as difference images with the index of a caption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from idc.data.images import decode_image, resize_image
from idc.data.store import iter_rows


def difference(before: np.ndarray, after: np.ndarray, side: int) -> np.ndarray:
    """After minus before, uint8 (H, W, 3) each, to float32 (3, S, S) in [-1, 1]."""
    small = [resize_image(image, side).astype(np.float32) / 255 for image in (before, after)]
    return (small[1] - small[0]).transpose(2, 0, 1)


class Differences:
    """One sample per pair and caption that is among ``captions``."""

    def __init__(self, pairs: str, split: str, side: int, captions: Sequence[str]):
        self.samples = []
        for row in iter_rows(pairs, ["before", "after", "captions"], split):
            x = difference(decode_image(row["before"]), decode_image(row["after"]), side)
            answers = [text for text in row["captions"] if text in captions]
            self.samples += [{"difference": x, "caption": captions.index(text)} for text in answers]

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        return self.samples[index]
