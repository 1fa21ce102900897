"""The folder of image features: what a mining job computes once per image, and how the later steps read it.

A row is an image that could be decoded. Its number, from 0 in the order of the collection, names it in the later steps.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from idc.data.manifest import AnyPath, Manifest
from idc.data.store import read_table

FEATURES = ("first", "second")
"""Columns of the two features: CLIP and DINOv2, or head and middle of the embedded network."""
LENGTHS = ("first_length", "second_length")
"""Columns of their lengths as the encoder returned them."""
THUMBNAIL_SIDE = 8
THUMBNAIL_VALUES = THUMBNAIL_SIDE * THUMBNAIL_SIDE * 3


def feature_schema() -> pa.Schema:
    """``place`` is the position in the collection, ``thumbnail`` 8x8 RGB, a feature a float16 vector of unit length,
    with the length that it had."""
    return pa.schema(
        [
            pa.field("place", pa.int64(), nullable=False),
            pa.field("image_id", pa.string(), nullable=False),
            pa.field("height", pa.int32(), nullable=False),
            pa.field("width", pa.int32(), nullable=False),
            pa.field("thumbnail", pa.binary(THUMBNAIL_VALUES), nullable=False),
            *(pa.field(name, pa.binary(), nullable=False) for name in FEATURES),
            *(pa.field(name, pa.float32(), nullable=False) for name in LENGTHS),
        ]
    )


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Vectors (N, D) scaled to unit length, float16; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float16)


def to_matrix(cells: list[bytes]) -> np.ndarray:
    """Stored features as float32 (N, D)."""
    return np.frombuffer(b"".join(cells), np.float16).reshape(len(cells), -1).astype(np.float32)


def read_feature(path: AnyPath, feature: str) -> np.ndarray:
    """A feature of all images of a complete folder, float32 (N, D)."""
    return to_matrix(read_table(path, [feature])[feature].to_pylist())


def read_thumbnails(path: AnyPath) -> np.ndarray:
    """Thumbnails of all images, uint8 (N, 192)."""
    cells = read_table(path, ["thumbnail"])["thumbnail"].to_pylist()
    return np.frombuffer(b"".join(cells), np.uint8).reshape(-1, THUMBNAIL_VALUES)


@lru_cache(maxsize=1)
def _image_ids(path: str, fingerprint: str) -> list[str]:
    return read_table(path, ["image_id"])["image_id"].to_pylist()


class RowRanges:
    """A source of row numbers: ``number`` and ``image_id`` of the images of a folder of features.

    Args:
        duplicates: numbers of removed images -> the image that each one duplicates; their rows have an error.
    """

    def __init__(self, path: str, features: Manifest, chunk_size: int, duplicates: dict[int, int]) -> None:
        self.folder, self.num_rows = (path, features.fingerprint), features.num_rows
        self.chunk_size, self.duplicates = chunk_size, duplicates

    @property
    def num_chunks(self) -> int:
        return -(-self.num_rows // self.chunk_size)

    def read(self, chunk_id: int) -> dict[str, list[object]]:
        ids, start = _image_ids(*self.folder), chunk_id * self.chunk_size
        numbers = range(start, min(start + self.chunk_size, self.num_rows))
        originals = [self.duplicates.get(n) for n in numbers]
        errors = [None if of is None else f"near duplicate: of {ids[of]}" for of in originals]
        names: list[object] = [ids[n] for n in numbers]
        return {"number": list(numbers), "row_id": names, "image_id": names, "error": list(errors)}
