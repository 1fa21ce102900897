"""A scene in tiles that overlap, and their captions and parts of the map: a data set folder with one row per tile.

A part is a chunk of tiles and is written whole, so that a killed job repeats the chunks that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image
from rasterio.windows import Window

from idc.captioning.apply import describe_batch
from idc.captioning.contract import Description, SearchOptions
from idc.captioning.loading import LoadCaptioner
from idc.data.images import encode_png
from idc.data.pipeline import Batch
from idc.data.store import DatasetFolder, fingerprint
from idc.geo.config import SceneJob
from idc.geo.rasters import ScenePair, SceneReader, TilePixels
from idc.metrics.change_maps import upsample
from idc.training.artifact import artifact_identity
from idc.training.hashing import file_hash

KIND = "scene tiles"
"""The kind of the folder."""
NO_DATA = 255
"""In a map: nothing was compared."""
STEPS = 254
"""In a map: the value of 1."""

SCHEMA = pa.schema(
    [
        pa.field("tile", pa.int64(), False),  # its number, row by row
        pa.field("caption", pa.string()),  # empty like all below where either image has no data in the whole tile
        pa.field("confidence", pa.float64()),
        pa.field("verdict", pa.string()),
        pa.field("warning", pa.string()),
        pa.field("map", pa.binary()),  # of the core: PNG, 0 to STEPS, or NO_DATA
        pa.field("classes", pa.binary()),  # of the core: PNG, indices into names; of captioners with classes
        pa.field("names", pa.list_(pa.string())),
    ]
)
_VERSION = 1
"""Incremented when the same input and settings would give other rows."""
_MATTERS = ("tile", "overlap", "beams", "batch_size", "chunk_size")
"""Settings on which the rows depend, besides the scene, the captioner and how that is loaded."""


class Tile(NamedTuple):
    """A tile of a scene.

    Attributes:
        window: the pixels that are read.
        core: those of them that belong to this tile and to no other; cores lie side by side.
    """

    window: Window
    core: Window

    def cut(self, values: np.ndarray) -> np.ndarray:
        """Of values of the window those of the core."""
        top, left = self.core.row_off - self.window.row_off, self.core.col_off - self.window.col_off
        return values[top : top + self.core.height, left : left + self.core.width]


def tiles_of(height: int, width: int, side: int, overlap: int) -> list[Tile]:
    """The tiles of a scene of so many pixels, row by row. All have the same size; the last ones of an axis are moved
    back to its end, so that they overlap more. A border between two cores is in the middle of their tiles' overlap."""

    def spans(length: int) -> list[tuple[slice, slice]]:
        size = min(side, length)
        starts = [*range(0, length - size, max(1, size - overlap)), length - size]
        borders = [0, *((before + size + after) // 2 for before, after in pairwise(starts)), length]
        return [
            (slice(start, start + size), slice(*core)) for start, core in zip(starts, pairwise(borders), strict=True)
        ]

    return [
        Tile(*(Window.from_slices(*axes) for axes in zip(rows, columns, strict=True)))
        for rows in spans(height)
        for columns in spans(width)
    ]


def open_tiles(
    job: SceneJob, artifact: str, scene: ScenePair, num_chunks: int, folder: str, overwrite: bool
) -> DatasetFolder:
    """The folder of the tiles captioned by an artifact (its folder), new or to be continued. With ``overwrite`` tiles
    of other images or settings are replaced; those of the same are kept.

    Raises:
        ValueError: it holds tiles of other images or settings, and ``overwrite`` is off.
    """
    images = [[file_hash(image.path), image.bands] for image in (scene.before, scene.after)]
    settings = {name: getattr(job, name) for name in _MATTERS} | job.loading_identity()
    identity = artifact_identity(artifact)
    content = fingerprint(KIND, _VERSION, images, scene.resampled, scene.scaling, scene.nodata, identity, settings)
    return DatasetFolder.open_for_build(
        folder,
        kind=KIND,
        schema=SCHEMA,
        fingerprint=content,
        config=job.model_dump(mode="json"),
        num_chunks=num_chunks,
        overwrite="others" if overwrite else False,
    )


class CaptionTiles:
    """Stage: numbers of tiles become rows of the folder. While the captioner works on a batch, the next one is read.

    Args:
        load: loads a captioner with a change map.
        batch_size: tiles per batch of the captioner; tiles without data, which it does not get, count.
    """

    def __init__(
        self, scene: ScenePair, tiles: Sequence[Tile], load: LoadCaptioner, options: SearchOptions, batch_size: int
    ) -> None:
        self._reader, self._tiles = SceneReader(scene), tiles
        self._captioner = load()
        self._options, self._batch_size = options, batch_size
        options.check(self._captioner)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read")

    def __call__(self, batch: Batch) -> Batch:
        numbers, size = batch["index"], self._batch_size
        groups = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        rows: list[dict[str, Any]] = []
        ahead = self._pool.submit(self._read, groups[0])
        for i, group in enumerate(groups):
            tiles = ahead.result()
            if i + 1 < len(groups):
                ahead = self._pool.submit(self._read, groups[i + 1])
            rows += self._captioned(group, tiles)
        names = ["row_id", *SCHEMA.names, "error"]
        return {name: [row.get(name) for row in rows] for name in names}

    def _read(self, numbers: Sequence[int]) -> list[TilePixels | str]:
        tiles: list[TilePixels | str] = []
        for number in numbers:
            try:
                tiles.append(self._reader.read(self._tiles[number].window))
            except ValueError as error:
                tiles.append(f"damaged image: {error}")
        return tiles

    def _captioned(self, numbers: Sequence[int], tiles: Sequence[TilePixels | str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"row_id": f"tile {number}", "tile": number} for number in numbers]
        comparable = []
        for i, tile in enumerate(tiles):
            if isinstance(tile, str):
                rows[i]["error"] = tile
            elif tile.valid.any():
                comparable.append((rows[i], tile))
        images = [tile.pixels for _, tile in comparable]
        results = describe_batch(self._captioner, images, [self._options] * len(images))
        for (row, tile), result in zip(comparable, results, strict=True):
            assert result.description is not None
            row |= self._row(row["tile"], tile.valid, result.description)
        return rows

    def _row(self, number: int, valid: np.ndarray, description: Description) -> dict[str, Any]:
        tile = self._tiles[number]
        assert description.change_map is not None
        values = tile.cut(upsample(description.change_map, valid.shape))
        grey = (STEPS * values.clip(0, 1)).round().astype(np.uint8)
        grey[~tile.cut(valid)] = NO_DATA
        row: dict[str, Any] = {
            "caption": description.best.caption,
            "confidence": description.best.confidence,
            "verdict": description.verdict,
            "warning": description.warning,
            "map": encode_png(grey),
        }
        if description.class_map is not None:
            height, width = valid.shape
            classes = Image.fromarray(description.class_map.classes).resize((width, height), Image.Resampling.NEAREST)
            row["classes"] = encode_png(tile.cut(np.asarray(classes)))
            row["names"] = list(description.class_map.names)
        return row
