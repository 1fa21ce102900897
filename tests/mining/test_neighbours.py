"""The search and near-duplicates against plain computations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from idc.mining.features_folder import FEATURES, to_matrix, unit_length
from idc.mining.neighbours import FindNeighbours, near_duplicates
from tests.mining.heaps import features_folder

ROWS = 60


@pytest.fixture(scope="module")
def vectors() -> dict[str, np.ndarray]:
    """Features in clusters; images 7 and 8 have equal ones."""
    rng = np.random.default_rng(0)
    found = {}
    for name, dimensions in zip(FEATURES, (24, 40), strict=True):
        centres = rng.normal(size=(6, dimensions))
        found[name] = centres[np.arange(ROWS) % 6] + 0.3 * rng.normal(size=(ROWS, dimensions))
        found[name][8] = found[name][7]
    return found


@pytest.fixture(scope="module")
def features(vectors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    thumbnails = [28 if number == 8 else 4 * number for number in range(ROWS)]
    return features_folder(tmp_path_factory.mktemp("features"), list(vectors.values()), thumbnails)


Lists = list[dict[str, list[float]]]


def found(features: Path, removed: list[int], k: int, batch: int = ROWS) -> Lists:
    """Neighbours of the images that are searched, in batches of this size."""
    stage = FindNeighbours(features, np.array(removed), k, 1)
    rows = []
    numbers = [n for n in range(ROWS) if n not in removed]
    for start in range(0, len(numbers), batch):
        out = stage({"number": numbers[start : start + batch]})
        rows += [{name: out[name][i] for name in out if name != "error"} for i in range(len(out["number"]))]
    return rows


def test_the_exact_search_finds_what_a_plain_computation_finds(features: Path, vectors: dict[str, np.ndarray]) -> None:
    removed = [5, 40]
    rows = found(features, removed, k=7)
    assert found(features, removed, k=7, batch=11) == rows, "whatever the batches"
    assert [row["number"] for row in rows] == [n for n in range(ROWS) if n not in removed]
    for name in FEATURES:
        x = to_matrix([v.tobytes() for v in unit_length(vectors[name])]).astype(np.float64)
        sims = (x @ x.T).round(6)
        for row in rows:
            others = [n for n in range(ROWS) if n != row["number"] and n not in removed]
            expected = sorted(others, key=lambda n: (-sims[row["number"], n], n))[:7]
            assert row[f"{name}_ids"] == expected
            assert np.allclose(row[f"{name}_sims"], sims[row["number"], expected], atol=2e-6)


def test_copies_are_images_whose_thumbnails_hardly_differ(features: Path) -> None:
    assert near_duplicates(str(features), 0) == {8: 7}
    assert near_duplicates(str(features), 3.9, batch=7) == {8: 7}, "whatever the batches"


def test_in_a_chain_of_copies_every_other_image_stays(features: Path) -> None:
    levels, kept, removed = [28 if n == 8 else 4 * n for n in range(ROWS)], list[int](), dict[int, int]()
    for n, level in enumerate(levels):
        near = [m for m in kept if abs(levels[m] - level) <= 4]  # the threshold itself is included
        if near:
            removed[n] = near[0]
        else:
            kept.append(n)
    assert removed[1] == 0
    assert removed[3] == 2
    assert near_duplicates(str(features), 4, batch=7) == removed
