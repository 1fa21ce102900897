"""Connected parts of a map that is read in strips from top to bottom: one part stays one across any number of strips.

Two passes over the same strips: :meth:`MapParts.add` measures, :meth:`MapParts.numbered` gives every pixel the number
of its part. What is in memory grows with the parts, not with the pixels: a part that is too small to be kept and
touches no border of its strip is forgotten at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import cv2
import numpy as np


@dataclass
class MapPart:
    """A connected part of one class. Pixels are connected by their sides, so that the outline of a part is a valid
    polygon.

    Attributes:
        kind: its class, from 1 on.
        pixels: number of pixels.
        x, y: sums of its pixels' columns and rows.
        value: sum of the map's values.
        tiles: row and column of a tile -> number of pixels in it.
    """

    kind: int
    pixels: int = 0
    x: float = 0.0
    y: float = 0.0
    value: float = 0.0
    tiles: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def centre(self) -> tuple[float, float]:
        """Mean column and row, of the pixels' centres."""
        return self.x / self.pixels + 0.5, self.y / self.pixels + 0.5

    def merge(self, other: MapPart) -> None:
        """Add what is known of another part of the same class."""
        self.pixels += other.pixels
        self.x, self.y, self.value = self.x + other.x, self.y + other.y, self.value + other.value
        self.tiles.update(other.tiles)


class MapParts:
    """The parts of a map.

    Args:
        least: smaller parts may be forgotten, in pixels.
        borders: first columns of the tiles; a strip is a row of tiles.
    """

    def __init__(self, least: int, borders: list[int]) -> None:
        self._least = least
        self._borders = np.array(borders)
        self._parents: list[int] = []
        self._parts: dict[int, MapPart] = {}
        self._nodes: list[dict[int, int]] = []
        self._above: tuple[np.ndarray, np.ndarray] | None = None
        self._numbers: dict[int, int] = {}

    def add(self, kinds: np.ndarray, values: np.ndarray, top: int) -> None:
        """Measure the next strip.

        Args:
            kinds: uint8 (H, W), class of every pixel, 0 for none.
            values: of the map, (H, W).
            top: its first row.
        """
        labels, count = _labelled(kinds)
        rows, columns = np.nonzero(labels)
        of = labels[rows, columns]
        pixels = np.bincount(of, minlength=count + 1)
        sums = [
            np.bincount(of, weights, minlength=count + 1) for weights in (columns, rows + top, values[rows, columns])
        ]
        wanted = np.unique(np.concatenate([labels[0], labels[-1], np.flatnonzero(pixels >= self._least)]))
        strip, nodes = len(self._nodes), {}
        classes = np.zeros(count + 1, np.uint8)
        classes[of] = kinds[rows, columns]
        for label in wanted[wanted > 0].tolist():
            nodes[label] = node = len(self._parents)
            self._parents.append(node)
            x, y, value = (float(total[label]) for total in sums)
            self._parts[node] = MapPart(int(classes[label]), int(pixels[label]), x, y, value)
        tile_of = np.searchsorted(self._borders, columns, side="right") - 1
        keys, counts = np.unique(of.astype(np.int64) * len(self._borders) + tile_of, return_counts=True)
        for key, number in zip(keys.tolist(), counts.tolist(), strict=True):
            label, column = divmod(key, len(self._borders))
            if label in nodes:
                self._parts[nodes[label]].tiles[strip, column] = number
        self._nodes.append(nodes)
        self._join(labels[0], kinds[0], nodes)
        below = np.array([nodes.get(label, -1) for label in labels[-1].tolist()])
        self._above = (below, kinds[-1].copy())

    def _join(self, labels: np.ndarray, kinds: np.ndarray, nodes: dict[int, int]) -> None:
        """Join parts of the strip above with those of a first row below it."""
        if self._above is None:
            return
        above, kinds_above = self._above
        touching = (kinds > 0) & (kinds == kinds_above)
        for node, label in set(zip(above[touching].tolist(), labels[touching].tolist(), strict=True)):
            first, second = sorted((self._root(node), self._root(nodes[label])))
            if first != second:
                self._parents[second] = first
                self._parts[first].merge(self._parts.pop(second))

    def _root(self, node: int) -> int:
        while self._parents[node] != node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def candidates(self) -> dict[int, MapPart]:
        """All parts that were not forgotten, by an internal number, once all strips are measured."""
        return self._parts

    def keep(self, nodes: list[int]) -> list[MapPart]:
        """Number these candidates from 1 on, and forget the others. Returns them in this order."""
        self._numbers = {node: number for number, node in enumerate(nodes, start=1)}
        self._parts = {node: self._parts[node] for node in nodes}
        return list(self._parts.values())

    def numbered(self, strip: int, kinds: np.ndarray) -> np.ndarray:
        """The number of every pixel's part in a strip that was measured, int32 (H, W); 0 for none."""
        labels, count = _labelled(kinds)
        numbers = np.zeros(count + 1, np.int32)
        for label, node in self._nodes[strip].items():
            numbers[label] = self._numbers.get(self._root(node), 0)
        return numbers[labels]


def _labelled(kinds: np.ndarray) -> tuple[np.ndarray, int]:
    """Connected parts of equal class, int32 (H, W) from 1 on, and their number; the same for equal strips."""
    labels, count = np.zeros(kinds.shape, np.int32), 0
    for kind in np.unique(kinds[kinds > 0]).tolist():
        mask = (kinds == kind).astype(np.uint8)
        number, parts = cv2.connectedComponents(mask, connectivity=4, ltype=cv2.CV_32S)
        labels += np.where(parts > 0, parts + count, 0)
        count += number - 1
    return labels, count
