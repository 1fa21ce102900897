"""Connected parts of a map against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from idc.geo.components import keep_parts, map_parts


def by_scipy(kinds: np.ndarray) -> np.ndarray:
    labels = np.zeros(kinds.shape, int)
    for kind in np.unique(kinds[kinds > 0]):
        mine, _ = ndimage.label(kinds == kind)
        labels[mine > 0] = mine[mine > 0] + labels.max()
    return labels


@pytest.mark.parametrize("seed", range(8))
def test_parts_and_what_is_measured_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(60, 40)), 1.5)
    kinds = np.where(smooth > 0.05, np.where(rng.random((60, 40)) < 0.95, 1, 0), 0).astype(np.uint8)
    kinds[:, 20:] *= 2
    values, borders = rng.random((60, 40)), ([0, 7, 30], [0, 10, 25])
    parts, numbers = map_parts(kinds, values, *borders)
    parts, numbers = keep_parts(parts, numbers, [part.pixels for part in parts], 4)
    expected = by_scipy(kinds)
    sizes = np.bincount(expected.ravel())
    large = [label for label in range(1, len(sizes)) if sizes[label] >= 4]
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
        assert part.value == pytest.approx(values[mask].mean())
        in_tiles = [3 * (row >= 7) + 3 * (row >= 30) + (column >= 10) + (column >= 25)
                    for row, column in zip(rows.tolist(), columns.tolist(), strict=True)]  # fmt: skip
        assert part.tiles == {tile: in_tiles.count(tile) for tile in set(in_tiles)}


def test_a_map_without_a_change_has_no_parts() -> None:
    parts, numbers = map_parts(np.zeros((3, 4), np.uint8), np.zeros((3, 4)))
    assert keep_parts(parts, numbers, [], 1)[0] == []
