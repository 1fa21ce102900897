"""The search: against a plain computation, over shards, and where there are fewer images than neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from idc.data.mining.config import IndexConfig
from idc.data.mining.features_folder import FEATURES, LENGTHS, feature_schema, to_matrix, unit_length
from idc.data.mining.near_duplicates import FindCopies, duplicates
from idc.data.mining.neighbours import BuildIndex, FindNeighbours, Shards, index_schema
from idc.data.store import DatasetFolder

ROWS, PARTS = 60, 4


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
    """A folder of features in several parts of unequal length."""
    path = tmp_path_factory.mktemp("features")
    folder = DatasetFolder.open_for_build(
        path, kind="image_features", schema=feature_schema(), fingerprint="x", config={}, num_chunks=PARTS
    )
    cells = {name: unit_length(values) for name, values in vectors.items()}
    for part, rows in enumerate(np.array_split(np.arange(ROWS), PARTS)):
        folder.write_chunk(
            part,
            [
                {
                    "place": int(i), "image_id": f"{i}.png", "height": 4, "width": 4,
                    "thumbnail": bytes([4 * int(i) if i != 8 else 28] * 192),
                    **{name: cells[name][i].tobytes() for name in FEATURES}, **dict.fromkeys(LENGTHS, 1.0),
                }
                for i in rows
            ],
        )  # fmt: skip
    folder.finish()
    return path


def found(features: Path, shards: Shards, config: IndexConfig, k: int, built: Path | None = None,
          batch: int = ROWS) -> list[dict[str, list[float]]]:  # fmt: skip
    """Neighbours of the images that are searched, in batches of this size."""
    stage = FindNeighbours(shards, config, built, k, 1)
    rows = []
    numbers = [n for n in range(ROWS) if n not in shards.removed]
    for start in range(0, len(numbers), batch):
        out = stage({"number": numbers[start : start + batch]})
        rows += [{name: out[name][i] for name in out if name != "error"} for i in range(len(out["number"]))]
    return rows


def test_the_exact_search_finds_what_a_plain_computation_finds(features: Path, vectors: dict[str, np.ndarray]) -> None:
    removed = np.array([5, 40])
    rows = found(features, Shards(features, 1000, removed), IndexConfig(), k=7)
    assert [row["number"] for row in rows] == [n for n in range(ROWS) if n not in removed]
    for name in FEATURES:
        x = to_matrix([v.tobytes() for v in unit_length(vectors[name])]).astype(np.float64)
        sims = (x @ x.T).round(6)
        for row in rows:
            others = [n for n in range(ROWS) if n != row["number"] and n not in removed]
            expected = sorted(others, key=lambda n: (-sims[row["number"], n], n))[:7]
            assert row[f"{name}_ids"] == expected
            assert np.allclose(row[f"{name}_sims"], sims[row["number"], expected], atol=2e-6)


@pytest.mark.parametrize("shard_size", [60, 17, 1])
@pytest.mark.parametrize("batch", [60, 11])
def test_the_exact_lists_depend_neither_on_the_shards_nor_on_the_batches(
    features: Path, shard_size: int, batch: int
) -> None:
    removed = np.array([0, 33, 59])
    expected = found(features, Shards(features, 1000, removed), IndexConfig(), k=9)
    assert found(features, Shards(features, shard_size, removed), IndexConfig(), k=9, batch=batch) == expected


def test_an_approximate_index_that_searches_everything_agrees_with_the_exact_one(
    features: Path, tmp_path: Path
) -> None:
    config = IndexConfig(kind="hnsw")
    shards = Shards(features, 25, np.array([2]))
    folder = DatasetFolder.open_for_build(
        tmp_path, kind="mining_index", schema=index_schema(), fingerprint="x", config={}, num_chunks=len(shards)
    )
    build = BuildIndex(shards, config, 1)
    for shard in range(len(shards)):
        built = build({"shard": [shard]})
        folder.write_chunk(shard, [{name: built[name][0] for name in index_schema().names}])
    folder.finish()
    near = found(features, shards, config, k=6, built=tmp_path)
    exact = found(features, shards, IndexConfig(), k=6)
    for one, other in zip(near, exact, strict=True):
        for name in FEATURES:
            assert np.allclose(one[f"{name}_sims"], other[f"{name}_sims"], atol=2e-6)


@pytest.mark.parametrize("shard_size", [60, 13])
def test_copies_are_images_whose_thumbnails_hardly_differ(features: Path, shard_size: int) -> None:
    def copies(threshold: float) -> dict[int, list[int]]:
        out = FindCopies(str(features), shard_size, threshold, 1)({"number": list(range(ROWS))})
        return {n: list(c) for n, c in zip(out["number"], out["copies"], strict=True) if len(c)}

    assert copies(0) == {8: [7]}
    assert copies(3.9) == {8: [7]}
    assert copies(4)[12] == [11]  # the threshold itself is included


def test_in_a_chain_of_copies_every_other_image_stays() -> None:
    assert duplicates([(0, []), (1, [0]), (2, [1]), (3, [2]), (4, [2, 3])]) == {1: 0, 3: 2, 4: 2}
