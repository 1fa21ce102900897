"""Connected parts of a map of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np


class MapPart(NamedTuple):
    """A connected part of one class. Pixels are connected by their sides, so that the outline of a part is a valid
    polygon.

    Attributes:
        kind: its class, from 1 on.
        pixels: number of pixels.
        centre: mean column and row, of the pixels' centres.
        value: mean of the map's values.
        tiles: number of a tile, row by row -> pixels in it.
    """

    kind: int
    pixels: int
    centre: tuple[float, float]
    value: float
    tiles: dict[int, int]


def map_parts(
    kinds: np.ndarray, values: np.ndarray, rows: Sequence[int] = (0,), columns: Sequence[int] = (0,)
) -> tuple[list[MapPart], np.ndarray]:
    """The parts of a map, and of every pixel the number of its part from 1 on, int32 (H, W); 0 for none.

    Args:
        kinds: uint8 (H, W), class of every pixel, 0 for none.
        values: of the map, (H, W).
        rows, columns: the first ones of the tiles.
    """
    labels, count = np.zeros(kinds.shape, np.int32), 0
    for kind in np.unique(kinds[kinds > 0]).tolist():
        number, parts = cv2.connectedComponents((kinds == kind).astype(np.uint8), connectivity=4, ltype=cv2.CV_32S)
        labels += np.where(parts > 0, parts + count, 0)
        count += number - 1
    y, x = np.nonzero(labels)
    of = labels[y, x] - 1
    pixels = np.bincount(of, minlength=count)
    means = [np.bincount(of, weights, minlength=count) / pixels for weights in (x + 0.5, y + 0.5, values[y, x])]
    classes = np.zeros(count, np.uint8)
    classes[of] = kinds[y, x]
    tile = np.searchsorted(rows, y, side="right") - 1
    tile = tile * len(columns) + np.searchsorted(columns, x, side="right") - 1
    number_of_tiles = len(rows) * len(columns)
    tiles: list[dict[int, int]] = [{} for _ in range(count)]
    for key, inside in zip(*np.unique(of.astype(np.int64) * number_of_tiles + tile, return_counts=True), strict=True):
        tiles[key // number_of_tiles][int(key % number_of_tiles)] = int(inside)
    measured = zip(classes.tolist(), pixels.tolist(), *(mean.tolist() for mean in means), tiles, strict=True)
    return [
        MapPart(kind, size, (column, row), value, of_part) for kind, size, column, row, value, of_part in measured
    ], labels


def keep_parts(
    parts: Sequence[MapPart], numbers: np.ndarray, areas: Sequence[float], least: float
) -> tuple[list[MapPart], np.ndarray]:
    """The parts whose area is at least this, numbered from 1 on, as :func:`map_parts` returns them."""
    kept = [number for number, area in enumerate(areas) if area >= least]
    renumbered = np.zeros(len(parts) + 1, np.int32)
    renumbered[np.array(kept, int) + 1] = np.arange(1, len(kept) + 1)
    return [parts[number] for number in kept], renumbered[numbers]
