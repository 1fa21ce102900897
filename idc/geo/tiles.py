"""How a scene is cut into tiles that overlap, of which each pixel belongs to one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """A tile along one axis, in pixels.

    Attributes:
        start, stop: of what is read.
        first, last: of its core, the part that belongs to this tile and to no other; ``last`` is the first pixel after
            it. Cores lie side by side.
    """

    start: int
    stop: int
    first: int
    last: int


class Tile(NamedTuple):
    """A tile of a scene, by its rows and its columns of pixels."""

    rows: Span
    columns: Span

    @property
    def core(self) -> tuple[slice, slice]:
        """Rows and columns of the core, counted within the tile."""
        rows, columns = (slice(span.first - span.start, span.last - span.start) for span in self)
        return rows, columns


def spans(length: int, tile: int, overlap: int) -> list[Span]:
    """Tiles along an axis of ``length`` pixels. All have the same size; the last one is moved back to the end, so that
    it overlaps more. A border between two cores is in the middle of their tiles' overlap."""
    size = min(tile, length)
    last = length - size
    step = max(1, size - overlap)
    starts = [*range(0, last, step), last]
    borders = [0, *((before + size + after) // 2 for before, after in pairwise(starts)), length]
    return [Span(start, start + size, *borders[i : i + 2]) for i, start in enumerate(starts)]


@dataclass(frozen=True)
class Tiling:
    """The tiles of a scene of ``height`` times ``width`` pixels, numbered row by row."""

    height: int
    width: int
    tile: int
    overlap: int

    @property
    def rows(self) -> list[Span]:
        """Tiles from top to bottom."""
        return spans(self.height, self.tile, self.overlap)

    @property
    def columns(self) -> list[Span]:
        """Tiles from left to right."""
        return spans(self.width, self.tile, self.overlap)

    @property
    def count(self) -> int:
        """Number of tiles."""
        return len(self.rows) * len(self.columns)

    def __getitem__(self, number: int) -> Tile:
        row, column = divmod(number, len(self.columns))
        return Tile(self.rows[row], self.columns[column])
