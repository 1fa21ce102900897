"""Parts that are found strip by strip are those of the whole map."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from idc.geo.components import MapPart, MapParts


def whole(kinds: np.ndarray) -> np.ndarray:
    """The parts by scipy, of all of the map at once."""
    labels = np.zeros(kinds.shape, int)
    for kind in np.unique(kinds[kinds > 0]):
        mine, _ = ndimage.label(kinds == kind)
        labels[mine > 0] = mine[mine > 0] + labels.max()
    return labels


def by_strips(kinds: np.ndarray, values: np.ndarray, height: int, least: int) -> tuple[np.ndarray, list[MapPart]]:
    parts = MapParts(least, [0, 10, 25])
    tops = range(0, len(kinds), height)
    for top in tops:
        parts.add(kinds[top : top + height], values[top : top + height], top)
    kept = [node for node, part in parts.candidates().items() if part.pixels >= least]
    numbered = parts.keep(kept)
    return np.concatenate([parts.numbered(i, kinds[top : top + height]) for i, top in enumerate(tops)]), numbered


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("height", [1, 7, 60])
def test_parts_of_strips_are_those_of_the_whole(seed: int, height: int) -> None:
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(60, 40)), 1.5)
    kinds = np.where(smooth > 0.05, np.where(rng.random((60, 40)) < 0.95, 1, 0), 0).astype(np.uint8)
    kinds[:, 20:] *= 2
    values = rng.random((60, 40))
    least = 4
    numbers, parts = by_strips(kinds, values, height, least)
    expected = whole(kinds)
    sizes = np.bincount(expected.ravel())
    large = [label for label in range(1, len(sizes)) if sizes[label] >= least]
    assert len(parts) == len(large) > 5
    assert (numbers > 0).sum() == sum(sizes[label] for label in large)
    for label in large:
        mask = expected == label
        (number,) = np.unique(numbers[mask]).tolist()
        part = parts[number - 1]
        rows, columns = np.nonzero(mask)
        assert (numbers == number).sum() == mask.sum() == part.pixels
        assert part.kind == kinds[rows[0], columns[0]]
        assert part.centre == pytest.approx((columns.mean() + 0.5, rows.mean() + 0.5))
        assert part.value == pytest.approx(values[mask].sum())
        tiles = [(int(row) // height, int(np.searchsorted([0, 10, 25], column, side="right")) - 1)
                 for row, column in zip(rows, columns, strict=True)]  # fmt: skip
        assert part.tiles == {tile: tiles.count(tile) for tile in set(tiles)}


def test_parts_of_two_classes_that_touch_across_a_strip_stay_two() -> None:
    kinds = np.ones((4, 5), np.uint8)
    kinds[2:] = 2
    numbers, parts = by_strips(kinds, kinds.astype(float), 2, 1)
    assert [part.kind for part in parts] == [1, 2]
    assert (numbers == kinds).all()


def test_small_parts_inside_a_strip_are_forgotten_at_once() -> None:
    kinds = np.zeros((30, 300), np.uint8)
    kinds[5:25:2, ::2] = 1
    parts = MapParts(5, [0])
    parts.add(kinds, kinds.astype(float), 0)
    assert not parts.candidates()
