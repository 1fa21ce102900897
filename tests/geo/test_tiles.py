"""Tiles cover a scene, and their cores share it out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from idc.geo.tiles import Tiling, spans

LENGTHS = [(1, 64, 0), (63, 64, 32), (64, 64, 32), (65, 64, 32), (1000, 256, 32), (10_000, 256, 32), (777, 100, 50),
           (300, 100, 0), (301, 100, 1)]  # fmt: skip


@pytest.mark.parametrize(("length", "tile", "overlap"), LENGTHS)
def test_cores_share_out_an_axis_within_their_tiles_half_the_overlap_from_the_next(
    length: int, tile: int, overlap: int
) -> None:
    axis = spans(length, tile, overlap)
    pixels = [pixel for span in axis for pixel in range(span.first, span.last)]
    assert pixels == list(range(length))
    for span in axis:
        assert 0 <= span.start <= span.first < span.last <= span.stop <= length
        assert span.stop - span.start == min(tile, length)
    for here, there in pairwise(axis):
        assert here.stop - there.start >= overlap
        assert here.stop - here.last >= overlap // 2
        assert there.first - there.start >= overlap // 2


def test_tiles_are_numbered_row_by_row() -> None:
    tiling = Tiling(height=300, width=700, tile=256, overlap=32)
    assert (len(tiling.rows), len(tiling.columns), tiling.count) == (2, 3, 6)
    count = np.zeros((300, 700), int)
    for number in range(tiling.count):
        rows, columns = tile = tiling[number]
        count[rows.first : rows.last, columns.first : columns.last] += 1
        core = np.zeros((rows.stop - rows.start, columns.stop - columns.start))[tile.core]
        assert core.shape == (rows.last - rows.first, columns.last - columns.first)
    assert (count == 1).all()
    assert tiling[1].columns == tiling.columns[1]
    assert tiling[3].rows == tiling.rows[1]
