"""Thresholds, candidates in both lists, clusters and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.mining.config import FeatureThresholds, MiningConfig
from idc.mining.features_folder import FEATURES
from idc.mining.targets import BELOW_SET_MAX, BELOW_SET_MIN, NOT_BETWEEN, ChooseTargets, cluster, in_range
from tests.mining.heaps import features_folder

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
