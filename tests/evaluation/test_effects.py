"""The effect of a change over seeds and pairs: against textbook intervals and repetitions with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from idc.evaluation.significance import seeded_effect

T_975 = {3: 3.182446, 4: 2.776445, 6: 2.446912, 1e9: 1.959964}
"""Quantiles of Student's distribution, from a printed table."""


def drawn(seeds: int, pairs: int, a: float, b: float, e: float, rng: np.random.Generator) -> np.ndarray:
    """Differences with these variances and no effect."""
    of_seeds, of_pairs = rng.normal(0, a**0.5, (seeds, 1)), rng.normal(0, b**0.5, (1, pairs))
    return of_seeds + of_pairs + rng.normal(0, e**0.5, (seeds, pairs))


def test_the_interval_is_that_of_the_analysis_of_variance() -> None:
    difference = drawn(4, 7, 0.5, 2.0, 1.0, np.random.default_rng(0)) + 0.3
    control = np.random.default_rng(1).random((4, 7))
    found = seeded_effect(control, control + difference)
    seeds, pairs = range(4), range(7)
    mean = sum(difference[s][i] for s in seeds for i in pairs) / 28
    by_seed = [sum(difference[s][i] for i in pairs) / 7 for s in seeds]
    by_pair = [sum(difference[s][i] for s in seeds) / 4 for i in pairs]
    of_seeds = 7 * sum((value - mean) ** 2 for value in by_seed) / 3
    of_pairs = 4 * sum((value - mean) ** 2 for value in by_pair) / 6
    rest = sum((difference[s][i] - by_seed[s] - by_pair[i] + mean) ** 2 for s in seeds for i in pairs) / 18
    half = math.sqrt((T_975[3] ** 2 * of_seeds + T_975[6] ** 2 * (of_pairs - rest)) / 28)
    assert of_seeds > rest < of_pairs
    assert found.effect == pytest.approx(mean)
    assert (found.interval.low, found.interval.high) == pytest.approx((mean - half, mean + half), rel=1e-5)
    assert (found.seeds, found.pairs) == (4, 7)


def test_if_only_pairs_vary_the_interval_is_students_over_the_pairs() -> None:
    difference = np.tile(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]), (3, 1))
    found = seeded_effect(np.zeros((3, 5)), difference)
    half = T_975[4] * math.sqrt(2.5 / 5)
    assert (found.interval.low, found.interval.high) == pytest.approx((3 - half, 3 + half), rel=1e-5)


def test_an_effect_without_spread_is_certain_and_one_seed_has_an_interval_over_the_pairs_alone() -> None:
    certain = seeded_effect(np.zeros((3, 4)), np.ones((3, 4)))
    assert (certain.interval.low, certain.interval.high) == (1, 1)
    difference = np.random.default_rng(4).normal(1, 2, (1, 400))
    alone = seeded_effect(np.zeros((1, 400)), difference)
    assert alone.effect == pytest.approx(difference.mean())
    half = T_975[1e9] * difference.std() / 20
    assert alone.interval.low == pytest.approx(difference.mean() - half, abs=0.02)
    assert alone.interval.high == pytest.approx(difference.mean() + half, abs=0.02)


@pytest.mark.parametrize(("a", "b", "e"), [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0)])
def test_the_interval_holds_the_truth_in_95_of_100_repetitions(a: float, b: float, e: float) -> None:
    rng, held = np.random.default_rng(2), 0
    for _ in range(300):
        found = seeded_effect(np.zeros((3, 100)), drawn(3, 100, a, b, e, rng))
        held += found.interval.low <= 0 <= found.interval.high
    assert 0.92 <= held / 300 < 1
