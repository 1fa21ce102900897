"""From features to targets, against plain computations: near-duplicates, the search, thresholds, clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.spatial

from idc.mining.config import FeatureThresholds, MiningConfig
from idc.mining.features_folder import FEATURES, to_matrix, unit_length
from idc.mining.neighbours import FindNeighbours, near_duplicates
from idc.mining.targets import BELOW_SET_MAX, BELOW_SET_MIN, NOT_BETWEEN, ChooseTargets, cluster, in_range
from tests.mining.small_collection import features_folder

ROWS = 60


@pytest.fixture(scope="module")
def vectors() -> dict[str, np.ndarray]:
    """Features in clusters; images 7 and 8 have equal ones."""
    rng = np.random.default_rng(0)
    vector_of = {}
    for name, dimensions in zip(FEATURES, (24, 40), strict=True):
        centres = rng.normal(size=(6, dimensions))
        vector_of[name] = centres[np.arange(ROWS) % 6] + 0.3 * rng.normal(size=(ROWS, dimensions))
        vector_of[name][8] = vector_of[name][7]
    return vector_of


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
    assert near_duplicates(str(features), 3.9) == {8: 7}


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
    assert near_duplicates(str(features), 4) == removed


@pytest.mark.parametrize("threshold", [0, 0.5, 2.0, 30.0])
def test_copies_among_pictures_are_those_of_the_rule_and_equal_ones_are_not_compared_in_pairs(
    threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smooth pictures, some with a little noise, a third of all equal: the rule as it is written, image by image."""
    rng = np.random.default_rng(3)
    waves = np.outer(np.cos(np.arange(8) / 5), np.sin(np.arange(8) / 4)).ravel()
    pictures = rng.integers(20, 235, (600, 1, 3)) + rng.normal(size=(600, 1, 3)) * 40 * waves[None, :, None]
    pictures[rng.integers(0, 600, 200)] = pictures[rng.integers(0, 600, 200)]
    thumbnails = np.clip(pictures + (rng.random((600, 64, 3)) < 0.2), 0, 255).astype(np.uint8).reshape(600, 192)
    thumbnails[rng.permutation(600)[:200]] = thumbnails[5]
    removed = dict[int, int]()
    for n in range(600):
        kept = [m for m in range(n) if m not in removed]
        squares = np.square(thumbnails[kept].astype(int) - thumbnails[n]).mean(axis=1)
        if near := [m for m, square in zip(kept, squares, strict=True) if square <= threshold**2]:
            removed[n] = near[0]
    looked: list[int] = []
    look = scipy.spatial.KDTree.query_ball_point

    def counted(tree: Any, *arguments: Any) -> Any:
        near = look(tree, *arguments)
        looked.append(len(near))
        return near

    monkeypatch.setattr(scipy.spatial.KDTree, "query_ball_point", counted)
    monkeypatch.setattr("idc.mining.neighbours.read_thumbnails", lambda _: thumbnails)
    assert near_duplicates("", threshold) == removed
    assert len(removed) > 150
    assert len(looked) == 600 - len(removed), "only images that stay look for copies"
    assert sum(looked) < 600 * 10


PAPER = FeatureThresholds()


@pytest.mark.parametrize(
    ("sims", "kept", "reason"),
    [
        ([0.97, 0.95, 0.85, 0.78, 0.77], [0.95, 0.85, 0.78], ""),
        ([0.97, 0.96], [], NOT_BETWEEN),
        ([0.77, 0.2], [], NOT_BETWEEN),
        ([0.97, 0.79, 0.78], [0.79, 0.78], BELOW_SET_MAX),
        ([0.80], [0.80], ""),
    ],
)
def test_the_papers_thresholds(sims: list[float], kept: list[float], reason: str) -> None:
    found, why = in_range(np.arange(len(sims)), np.array(sims), PAPER)
    assert (list(found.values()), why) == (kept, reason)
    strict = FeatureThresholds(max=0.95, min=0.5, set_max=0.8, set_min=0.7)
    assert in_range(np.arange(2), np.array([0.9, 0.69]), strict)[1] == BELOW_SET_MIN


@pytest.mark.parametrize("scale", ["encoder", "unit"])
def test_targets_are_the_nearest_of_each_cluster_of_the_weighted_concatenation(scale: str, tmp_path: Path) -> None:
    """Eq. 7 to 10 a second time: g(I) is built, clustered and compared as it is written."""
    rng = np.random.default_rng(1)
    centre = rng.normal(size=20)
    first = 3 * rng.uniform(0.5, 2, size=(9, 1)) * (centre[:8] + 0.4 * rng.normal(size=(9, 8)))
    second = 0.1 * rng.uniform(0.5, 2, size=(9, 1)) * (centre[8:] + 0.4 * rng.normal(size=(9, 12)))
    wide = FeatureThresholds(max=1, min=-1, set_max=-1, set_min=-1)
    config = MiningConfig(
        encoder="clip_dinov2", scale=scale, gamma=0.5, clip_dinov2={"clip_thresholds": wide, "dinov2_thresholds": wide},
    )  # fmt: skip
    parts = [x if scale == "encoder" else x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second)]
    g = np.hstack([0.4 * parts[0], 0.6 * parts[1]])
    cosines = (g[1:] @ g[0]) / (np.linalg.norm(g[1:], axis=1) * np.linalg.norm(g[0]))
    labels = cluster(g[1:], 3, 0.5)
    expected = sorted((max((s, i) for s, i, of in zip(cosines, range(1, 9), labels, strict=True) if of == label)
                       for label in range(3)), reverse=True)  # fmt: skip

    stage = ChooseTargets(features_folder(tmp_path / "features", (first, second)), config)
    row: dict[str, list[Any]] = {"number": [0], "image_id": ["0"]}
    for name, x in zip(FEATURES, (first, second), strict=True):
        row[f"{name}_ids"] = [list(range(1, 9))]
        row[f"{name}_sims"] = [(x[1:] @ x[0] / (np.linalg.norm(x[1:], axis=1) * np.linalg.norm(x[0]))).tolist()]
    out = stage(row)
    assert out["targets"][0] == [i for _, i in expected]
    assert np.allclose(out["sims"][0], [s for s, _ in expected], atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_clusters_of_images_are_found(seed: int) -> None:
    """Unit vectors around three centres, weighted as in the paper: their distances are far below 1 / gamma."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat([0, 1, 2], (9, 4, 17)))
    centre, arms = rng.normal(size=600), rng.normal(size=(3, 600))
    points = centre + 0.45 * arms[truth] + 0.2 * rng.normal(size=(len(truth), 600))
    points = 0.7 * points / np.linalg.norm(points, axis=1, keepdims=True)
    labels = cluster(points, 3, 0.1)
    assert len(set(zip(labels.tolist(), truth.tolist(), strict=True))) == 3
    assert np.array_equal(labels, cluster(points, 3, 0.1))
    assert cluster(np.zeros((3, 4)), 3, 0.1).tolist() == [0, 1, 2], "up to k candidates are a cluster each"
