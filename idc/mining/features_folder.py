"""The folder of image features: what a mining job computes once per image, and how the later steps read it.

A row is an image that could be decoded. Its number, from 0 in the order of the collection, names it in the later steps.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np
import pyarrow as pa

from idc.data import files
from idc.data.manifest import AnyPath
from idc.data.parquet_files import open_parquet
from idc.data.pipeline import read_range
from idc.data.store import complete_manifest, undamaged

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


class FeatureRows:
    """Ranges of rows of a complete folder of features; picklable."""

    def __init__(self, path: AnyPath) -> None:
        self.folder = files.locate(path)
        manifest = complete_manifest(self.folder, "image_features")
        self.parts = manifest.parts
        self.starts = [0, *accumulate(part.num_rows for part in self.parts)]
        self.num_rows = manifest.num_rows

    def read(self, start: int, stop: int, columns: list[str]) -> pa.Table:
        """The rows from ``start`` to before ``stop``."""
        tables = []
        number = bisect_right(self.starts, start) - 1
        while number < len(self.parts) and self.starts[number] < stop:
            first, rows = self.starts[number], self.parts[number].num_rows
            low, high = max(start - first, 0), min(stop - first, rows)
            if low < high:
                file = self.folder / self.parts[number].file
                with undamaged(file), file.open() as stream:
                    tables.append(read_range(open_parquet(stream, file), low, high, columns))
            number += 1
        return pa.concat_tables(tables)

    def matrix(self, start: int, stop: int, feature: str) -> np.ndarray:
        """A feature of these rows, float32 (N, D)."""
        return to_matrix(self.read(start, stop, [feature])[feature].to_pylist())

    def thumbnails(self, start: int, stop: int) -> np.ndarray:
        """Thumbnails of these rows, float32 (N, 192), 0 to 255."""
        cells = self.read(start, stop, ["thumbnail"])["thumbnail"].to_pylist()
        return np.frombuffer(b"".join(cells), np.uint8).reshape(-1, THUMBNAIL_VALUES).astype(np.float32)


class RowRanges:
    """A source of row numbers: ``number`` and ``image_id`` of the images of a folder of features.

    Args:
        duplicates: numbers of removed images -> the image that each one duplicates; their rows have an error.
    """

    def __init__(self, path: AnyPath, chunk_size: int, duplicates: dict[int, int] | None = None) -> None:
        self.rows = FeatureRows(path)
        self.chunk_size = chunk_size
        self.duplicates = duplicates or {}

    @property
    def num_chunks(self) -> int:
        return -(-self.rows.num_rows // self.chunk_size)

    def read(self, chunk_id: int) -> dict[str, list[object]]:
        start = chunk_id * self.chunk_size
        stop = min(start + self.chunk_size, self.rows.num_rows)
        numbers = range(start, stop)
        ids = self.rows.read(start, stop, ["image_id"])["image_id"].to_pylist()
        of = sorted({self.duplicates[n] for n in numbers if n in self.duplicates})
        kept = {n: self.rows.read(n, n + 1, ["image_id"])["image_id"][0].as_py() for n in of}
        errors = [f"near duplicate: of {kept[self.duplicates[n]]}" if n in self.duplicates else None for n in numbers]
        return {"number": list(numbers), "row_id": ids, "image_id": ids, "error": errors}
