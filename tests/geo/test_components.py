"""Connected parts of a map against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from idc.geo.polygons import map_parts


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
    expected = by_scipy(kinds)
    assert len(parts) == expected.max() > 5
    assert ((numbers > 0) == (expected > 0)).all()
    for label in range(1, len(parts) + 1):
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
