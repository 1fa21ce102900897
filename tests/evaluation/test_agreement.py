"""Agreement of measures with the truth: against scipy, against loops over captions, and under the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from idc.evaluation import agreement as ag
from idc.evaluation.significance import SEED, bootstrap

SYSTEMS, PAIRS = 5, 40


@pytest.fixture
def drawn() -> tuple[np.ndarray, np.ndarray]:
    """A measure and a truth with many ties, which agree in part; the captions of the first pair are equally true."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 4, (SYSTEMS, PAIRS)) / 3
    truth[:, 0] = 1
    return np.round(truth + rng.normal(0, 0.5, truth.shape), 1), truth


def test_rank_correlations_are_scipys(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    values, truth = drawn
    pooled = ag.pooled(values, truth, ag.spearman, 0)
    assert pooled.value == pytest.approx(stats.spearmanr(values.ravel(), truth.ravel()).statistic)
    assert ag.kendall(values.ravel(), truth.ravel()) == pytest.approx(
        stats.kendalltau(values.ravel(), truth.ravel()).statistic
    )
    rho, tau = ag.spearman(values, truth), ag.kendall_by_pair(values, truth)
    assert (rho[0], tau[0]) == (0, 0), "captions that are equally true have no order"
    for pair in range(1, PAIRS):
        expected = stats.spearmanr(values[:, pair], truth[:, pair]).statistic
        assert rho[pair] == pytest.approx(np.nan_to_num(expected))
        assert tau[pair] == pytest.approx(np.nan_to_num(stats.kendalltau(values[:, pair], truth[:, pair]).statistic))


def test_pairwise_accuracy_is_that_of_a_loop(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    values, truth = drawn
    right = total = 0.0
    for pair in range(PAIRS):
        for one in range(SYSTEMS):
            for other in range(one):
                if truth[one, pair] != truth[other, pair]:
                    total += 1
                    better = (values[one, pair] - values[other, pair]) * (truth[one, pair] - truth[other, pair])
                    right += 1 if better > 0 else 0.5 if better == 0 else 0
    found = ag.pairwise(values, truth)
    assert found.total.sum() == total
    assert found.total[0] == 0
    assert found.share() == pytest.approx(right / total)
    assert 0.5 < found.share() < 1
    assert ag.pairwise(truth, truth).share() == 1
    assert ag.pairwise(-truth, truth).share() == 0
    assert ag.pairwise(np.zeros_like(truth), truth).share() == 0.5, "a measure that does not distinguish is a coin"
    assert ag.spearman(np.zeros_like(truth), truth).max() == 0


def test_ties_are_exact_in_spite_of_rounding() -> None:
    truth = np.array([[0.0], [1.0]])
    assert ag.pairwise(np.array([[0.1 + 0.2], [0.3]]), truth).share() == 0.5
    assert ag.preferred(np.array([0.1 + 0.2, 1, 0]), np.array([0.3, 0, 1])).right.tolist() == [0.5, 1, 0]


def test_intervals_are_of_sets_of_pairs_with_all_their_captions(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    values, truth = drawn
    found = ag.pooled(values, truth, ag.kendall, 30)
    weights = next(bootstrap(PAIRS, 30, SEED))
    each = []
    for row in weights:
        places = [pair for pair in range(PAIRS) for _ in range(int(row[pair]))]
        each.append(stats.kendalltau(values[:, places].ravel(), truth[:, places].ravel()).statistic)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(np.quantile(each, [0.025, 0.975])))

    decisions = ag.pairwise(values, truth)
    shares = [sum(row * decisions.right) / sum(row * decisions.total) for row in weights]
    assert decisions.share(weights) == pytest.approx(shares)
    again = ag.estimate(float(decisions.share()), decisions.share, PAIRS, 30)
    assert again == ag.estimate(float(decisions.share()), decisions.share, PAIRS, 30)
    assert again.interval is not None
    assert again.interval.low < again.value < again.interval.high


def test_a_mean_counts_only_pairs_whose_captions_differ(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    values, truth = drawn
    counted = truth.max(axis=0) > truth.min(axis=0)
    assert not counted[0]
    by_pair = ag.kendall_by_pair(values, truth)
    assert ag.mean_over(by_pair, counted, 0).value == pytest.approx(by_pair[counted].mean())
    assert ag.mean_over(by_pair, counted, 0).interval is None
