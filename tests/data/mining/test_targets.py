"""Thresholds, candidates in both lists, clusters and targets."""

from __future__ import annotations

import numpy as np
import pytest

from idc.data.mining.config import FeatureThresholds, MiningConfig
from idc.data.mining.targets import (
    BELOW_SET_MAX,
    BELOW_SET_MIN,
    NOT_BETWEEN,
    cluster,
    combined,
    in_range,
    nearest_of_each,
)

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


def test_a_set_whose_least_similar_candidate_is_too_far_is_left_out() -> None:
    strict = FeatureThresholds(max=0.95, min=0.5, set_max=0.8, set_min=0.7)
    assert in_range(np.arange(2), np.array([0.9, 0.72]), strict)[1] == ""
    assert in_range(np.arange(2), np.array([0.9, 0.69]), strict)[1] == BELOW_SET_MIN


def test_the_combined_similarity_is_the_cosine_of_the_weighted_concatenation() -> None:
    rng = np.random.default_rng(1)
    first, second = (
        x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rng.normal(size=(5, 8)), rng.normal(size=(5, 12)))
    )
    both = np.hstack([0.4 * first, 0.6 * second])
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    sims = np.stack([first[1:] @ first[0], second[1:] @ second[0]], 1)
    assert np.allclose(combined(sims, 0.4, 0.6), both[1:] @ both[0])


@pytest.mark.parametrize("seed", range(5))
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


def test_up_to_k_candidates_are_a_cluster_each() -> None:
    assert cluster(np.zeros((3, 4)), 3, 0.1).tolist() == [0, 1, 2]


def test_the_most_similar_image_of_each_cluster_is_its_target() -> None:
    assert nearest_of_each(np.array([0, 1, 0, 1, 2]), np.array([0.8, 0.9, 0.85, 0.9, 0.1])) == [1, 2, 4]


def test_the_papers_settings() -> None:
    """Appendix D.1.4."""
    paper = MiningConfig(encoder="clip_dinov2")
    for thresholds in paper.thresholds():
        assert (thresholds.max, thresholds.min, thresholds.set_max, thresholds.set_min) == (0.95, 0.78, 0.80, 0.78)
    assert (paper.clusters, paper.gamma, paper.alpha, paper.beta) == (3, 0.1, 0.4, 0.6)
