"""Pairs with captions as training samples: what the data sets of several systems share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from idc.data.images import decode_image, resize_image
from idc.data.manifest import uncaptioned
from idc.data.mapped_rows import MappedRows
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.metrics.scene_scores import scene_truth
from idc.training.caption_validation import ValidatedRows

_COLUMNS = ("pair_id", "before", "after", "captions", "change_type", "meta")


def training_captions(*folders: str) -> list[str]:
    """All captions of the training splits of folders of pairs."""
    return [text for path in folders for row in iter_rows(path, ["captions"], "train") for text in row["captions"]]


class ImageStore:
    """Decoded images of a folder, at the model's size. Pairs of one scene share images, so equal files are kept
    once.

    Args:
        size: height and width in pixels, or one number for both.
        megabytes: kept in memory at most (``room``, in images); others are decoded each time.
    """

    def __init__(self, size: int | tuple[int, int], megabytes: float):
        self.size = size
        height, width = (size, size) if isinstance(size, int) else size
        self._kept: dict[bytes, np.ndarray] = {}
        self.room = int(megabytes * 2**20) // (3 * height * width)

    def __call__(self, data: bytes) -> tuple[np.ndarray, bytes]:
        """The image, uint8 (H, W, 3), and a key of its content."""
        key = hashlib.blake2b(data, digest_size=16).digest()
        image = self._kept.get(key)
        if image is None:
            image = resize_image(decode_image(data), self.size)
            if len(self._kept) < self.room:
                self._kept[key] = image
        return image, key


class CaptionedRows(ValidatedRows):
    """The pairs of a split that have captions: ``captions`` of each row of it, ``order`` the row of each sample."""

    def __init__(
        self, pairs: str, split: str, vocabulary: Vocabulary, length: int, seed: int, columns: Sequence[str] = _COLUMNS
    ):
        self.rows = MappedRows(pairs, columns, split)
        self.vocabulary, self.length, self.seed = vocabulary, length, seed
        self.captions: list[list[str]] = self.rows.column("captions")
        self.order = [index for index, texts in enumerate(self.captions) if texts]
        if split == "train" and not self.order:
            raise ValueError(uncaptioned(pairs, split))

    def __len__(self) -> int:
        return len(self.order)

    def scored(self, row: dict[str, Any]) -> dict[str, Any]:
        """The references and the scene, which validation compares captions with."""
        scene = scene_truth(row["change_type"], json.loads(row["meta"]) if row["meta"] else {})
        return {"pair_id": row["pair_id"], "references": row["captions"], "scene": scene}


def of_validation(samples: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """What :meth:`CaptionedRows.scored` adds to the samples, for their batch."""
    names = [name for name in ("pair_id", "references", "scene") if name in samples[0]]
    return {name: [sample[name] for sample in samples] for name in names}


def padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Rows of numbers, padded at the end to the longest."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])
