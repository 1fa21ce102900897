"""Near-duplicates of a collection: images whose thumbnails hardly differ from an earlier image's."""

from __future__ import annotations

from collections.abc import Iterable

import faiss
import numpy as np
import pyarrow as pa

from idc.data.mining.features_folder import FeatureRows
from idc.data.mining.neighbours import earlier_copies
from idc.data.pipeline import Batch, with_errors

_LISTED = 64
"""Earlier copies that are stored per image, the first ones: there may be thousands of one placeholder picture."""


def copies_schema() -> pa.Schema:
    """One row per image: the numbers of the earlier images with nearly the same thumbnail, ascending."""
    return pa.schema([pa.field("number", pa.int32(), False), pa.field("copies", pa.list_(pa.int32()), False)])


class FindCopies:
    """Stage: ``copies`` of the images of a batch, by an exact search over the thumbnails of the images before them.

    A worker holds the thumbnails of one shard as float32: 768 bytes per image.
    """

    def __init__(self, features: str, shard_size: int, threshold: float, threads: int) -> None:
        faiss.omp_set_num_threads(threads)
        self.rows = FeatureRows(features)
        self.shard_size, self.threshold = shard_size, threshold
        self._index: tuple[int, int, faiss.IndexFlatL2] | None = None

    def __call__(self, batch: Batch) -> Batch:
        numbers = np.array(batch["number"])
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        queries = self.rows.thumbnails(first, stop)
        copies: list[list[int]] = [[] for _ in numbers]
        for start in range(0, stop, self.shard_size):
            members, index = self._load(start, min(start + self.shard_size, self.rows.num_rows))
            for i, earlier in enumerate(earlier_copies(index, members, queries, numbers, self.threshold)):
                copies[i] = (copies[i] + earlier)[:_LISTED]
        return {**with_errors(batch), "copies": copies}

    def _load(self, start: int, stop: int) -> tuple[np.ndarray, faiss.IndexFlatL2]:
        if self._index is None or self._index[:2] != (start, stop):
            thumbnails = self.rows.thumbnails(start, stop)
            self._index = start, stop, faiss.IndexFlatL2(thumbnails.shape[1])
            self._index[2].add(thumbnails)
        return np.arange(start, stop), self._index[2]


def duplicates(copies: Iterable[tuple[int, list[int]]]) -> dict[int, int]:
    """Which images are removed, and the image that each one duplicates.

    In the order of the collection an image is removed if an earlier one that stays is a copy of it. So the frames of a
    slow film are not all copies of its first one: the next frame that differs from it stays.

    Args:
        copies: number and earlier copies of every image, ascending.
    """
    removed: dict[int, int] = {}
    for number, earlier in copies:
        kept = [other for other in earlier if other not in removed]
        if kept:
            removed[number] = kept[0]
    return removed
