"""How well a measure agrees with the truth: rank correlations and preferences, with bootstrap intervals over pairs.

Values are matrices of systems and pairs: ``values[s, p]`` is what a measure gives the caption of system ``s`` for pair
``p``. Captions of one pair are not independent, so the bootstrap draws pairs, each with the captions of all systems.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import stats

from idc.evaluation.record import Interval
from idc.evaluation.significance import SEED, bootstrap, percentiles

_EQUAL = 1e-9
"""Values that are closer are a tie."""


class Estimate(BaseModel):
    """A number with its 95 % percentile bootstrap interval, ``None`` without resamples."""

    model_config = ConfigDict(extra="forbid")
    value: float
    interval: Interval | None = None


class Preferences:
    """Decisions between two captions: right 1, tie 1/2, wrong 0.

    Args:
        right: sum of the decisions of every pair ``(P,)``.
        total: their number ``(P,)``.
    """

    def __init__(self, right: np.ndarray, total: np.ndarray) -> None:
        self.right, self.total = right, total

    def share(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Share of right decisions, with pairs weighted by ``weights`` (..., P)."""
        weights = np.ones(len(self.total)) if weights is None else weights
        return (weights @ self.right) / np.maximum(weights @ self.total, 1)


def estimate(value: float, draw: Callable[[np.ndarray], np.ndarray], pairs: int, resamples: int) -> Estimate:
    """A number and its interval.

    Args:
        draw: weights of the pairs (R, P), how often each was drawn -> the number of each resample (R,).
    """
    if not resamples:
        return Estimate(value=value)
    return Estimate(
        value=value, interval=percentiles(np.concatenate([draw(w) for w in bootstrap(pairs, resamples, SEED)]))
    )


def pairwise(values: np.ndarray, truth: np.ndarray) -> Preferences:
    """Of two captions of a pair that differ in truth, whether the measure prefers the better one.

    Args:
        values, truth: (S, P).
    """
    first, second = np.triu_indices(len(values), 1)
    measured, true = _signs(values[first] - values[second]), _signs(truth[first] - truth[second])
    right = np.where(measured == 0, 0.5, measured == true)
    return Preferences((right * (true != 0)).sum(axis=0), (true != 0).sum(axis=0).astype(float))


def preferred(better: np.ndarray, worse: np.ndarray) -> Preferences:
    """Whether the measure prefers the better caption of every pair; ``better``, ``worse``: (P,)."""
    return Preferences((_signs(better - worse) + 1) / 2, np.ones(len(better)))


def spearman(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the first axis: (N, ...) to (...); 0 if one of the two is constant.

    Ties have their mean rank.
    """
    # Rounded, so that values which differ only by the order of their sums are tied, as in _signs.
    ranks = [stats.rankdata(np.round(vector / _EQUAL), axis=0) for vector in (values, truth)]
    first, second = (rank - rank.mean(axis=0) for rank in ranks)
    scale = np.sqrt((first**2).sum(axis=0) * (second**2).sum(axis=0))
    return np.divide((first * second).sum(axis=0), scale, out=np.zeros_like(scale), where=scale > 0)


def kendall(values: np.ndarray, truth: np.ndarray) -> float:
    """Kendall's tau-b of two vectors (N,); 0 if one of them is constant."""
    tau = stats.kendalltau(np.round(values / _EQUAL), np.round(truth / _EQUAL)).statistic
    return 0.0 if np.isnan(tau) else float(tau)


def kendall_by_pair(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Kendall's tau-b over the captions of every pair: (S, P) to (P,); 0 if one of the two is constant."""
    first, second = np.triu_indices(len(values), 1)
    measured, true = _signs(values[first] - values[second]), _signs(truth[first] - truth[second])
    scale = np.sqrt((measured != 0).sum(axis=0) * (true != 0).sum(axis=0).astype(float))
    return np.divide((measured * true).sum(axis=0), scale, out=np.zeros_like(scale), where=scale > 0)


def pooled(
    values: np.ndarray,
    truth: np.ndarray,
    correlation: Callable[[np.ndarray, np.ndarray], float | np.ndarray],
    resamples: int,
) -> Estimate:
    """A correlation over the captions of all systems and pairs, (S, P) each, with its interval."""

    def draw(weights: np.ndarray) -> np.ndarray:
        drawn = (np.repeat(np.arange(len(row)), row.astype(int)) for row in weights)
        return np.array([correlation(values[:, pairs].ravel(), truth[:, pairs].ravel()) for pairs in drawn])

    return estimate(float(correlation(values.ravel(), truth.ravel())), draw, values.shape[1], resamples)


def mean_over(by_pair: np.ndarray, counted: np.ndarray, resamples: int) -> Estimate:
    """The mean of a number of every pair (P,) over the pairs that count, a mask (P,); 0 if none does."""
    preferences = Preferences(np.where(counted, by_pair, 0.0), counted.astype(float))
    return estimate(float(preferences.share()), preferences.share, len(by_pair), resamples)


def _signs(differences: np.ndarray) -> np.ndarray:
    return np.sign(np.where(np.abs(differences) < _EQUAL, 0.0, differences))
