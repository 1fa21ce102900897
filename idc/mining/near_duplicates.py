"""Near-duplicates of a collection: images whose thumbnails hardly differ from an earlier image's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import faiss
import numpy as np
import pyarrow as pa

from idc.data.pipeline import Batch, with_errors
from idc.mining.features_folder import THUMBNAIL_VALUES, FeatureRows

_LISTED = 64
"""Earlier copies that are stored per image, the first ones: there may be thousands of one placeholder picture."""


def copies_schema() -> pa.Schema:
    """One row per image: the numbers of the earlier images with nearly the same thumbnail, ascending."""
    return pa.schema([pa.field("number", pa.int32(), False), pa.field("copies", pa.list_(pa.int32()), False)])


class FindCopies:
    """Stage: ``copies`` of the images of a batch, by an exact search over the thumbnails of all images.

    A worker holds them as float32: 768 bytes per image.

    Args:
        threshold: largest difference of a copy, root mean square of 255.
    """

    def __init__(self, features: str, threshold: float, threads: int) -> None:
        faiss.omp_set_num_threads(threads)
        self.rows = FeatureRows(features)
        self.index = faiss.IndexFlatL2(THUMBNAIL_VALUES)
        self.index.add(self.rows.thumbnails(0, self.rows.num_rows))
        # Sums of squares of whole numbers up to 192 x 255^2 are exact in float32; faiss's limit is exclusive.
        self.limit = math.floor(threshold**2 * THUMBNAIL_VALUES + 1e-9) + 0.5

    def __call__(self, batch: Batch) -> Batch:
        numbers = np.array(batch["number"])
        queries = self.rows.thumbnails(int(numbers[0]), int(numbers[-1]) + 1)
        starts, _, near = self.index.range_search(queries, self.limit)
        lists = [np.sort(near[start:stop]) for start, stop in pairwise(starts)]
        copies = [of[of < number][:_LISTED].tolist() for number, of in zip(numbers, lists, strict=True)]
        return {**with_errors(batch), "copies": copies}


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
