"""The effect of a change to a system over seeds and pairs, with its 95 % interval.

Of seed s and pair i the difference of a metric, treatment minus control, is

    d_si = effect + a_s + b_i + e_si

with the variances A over seeds, B over pairs and E of the rest: two trainings differ by their draw (A), pairs by what
the change does to them (B). With S seeds and N pairs the mean of all d has the variance A / S + B / N + E / (S N). The
mean squares of the two-way analysis of variance estimate them:

    M_seeds = N sum_s (d_s. - d..)^2 / (S - 1)                                  estimates N A + E
    M_pairs = S sum_i (d_.i - d..)^2 / (N - 1)                                  estimates S B + E
    M_rest = sum_si (d_si - d_s. - d_.i + d..)^2 / ((S - 1) (N - 1))            estimates E

The interval is d.. +- h, with t(f) the 97.5 % quantile of Student's distribution with f degrees of freedom:

    h^2 = (t(S - 1)^2 max(M_seeds, M_rest) + t(N - 1)^2 max(0, M_pairs - M_rest)) / (S N)

Each part of the variance has the quantile of its own sample, so that three seeds count as three: it holds the truth in
95 to 98 % of repetitions, whichever part is the larger (one t with Satterthwaite's degrees of freedom: in 92 to 97 %).
An interval over pairs alone answers for these trainings and no others; one over seeds alone for these pairs.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.evaluation.record import Interval
from idc.evaluation.significance import LEVEL, SEED, bootstrap, percentiles

_RESAMPLES = 1000


class SeededEffect(BaseModel):
    """The mean of treatment - control over seeds and pairs, a fraction, with its 95 % interval; with one seed that is
    the bootstrap interval over the pairs alone, which answers for these trainings."""

    model_config = ConfigDict(extra="forbid")
    seeds: int
    pairs: int
    effect: float
    interval: Interval


def seeded_effect(control_SN: np.ndarray, treatment_SN: np.ndarray) -> SeededEffect:
    """The effect of the module's text.

    Args:
        control_SN: a metric of each pair, for each seed.
        treatment_SN: the same pairs and seeds, in the same order.
    """
    assert control_SN.shape == treatment_SN.shape, (control_SN.shape, treatment_SN.shape)
    difference_SN = treatment_SN - control_SN
    seeds, pairs = difference_SN.shape
    effect = float(difference_SN.mean())
    if seeds == 1:
        drawn = np.concatenate([weights @ difference_SN[0] / pairs for weights in bootstrap(pairs, _RESAMPLES, SEED)])
        interval = percentiles(drawn)
    else:
        half = _half(difference_SN)
        interval = Interval(low=effect - half, high=effect + half)
    return SeededEffect(seeds=seeds, pairs=pairs, effect=effect, interval=interval)


def _half(d_SN: np.ndarray) -> float:
    """h of the module's text."""
    from scipy.stats import t  # slow to import

    seeds, pairs = d_SN.shape
    mean, by_seed, by_pair = d_SN.mean(), d_SN.mean(axis=1), d_SN.mean(axis=0)
    of_seeds = pairs * ((by_seed - mean) ** 2).sum() / (seeds - 1)
    of_pairs = seeds * ((by_pair - mean) ** 2).sum() / (pairs - 1)
    of_rest = ((d_SN - by_seed[:, None] - by_pair + mean) ** 2).sum() / ((seeds - 1) * (pairs - 1))
    inside_seeds, inside_pairs = (float(t.ppf(0.5 + LEVEL / 2, number - 1)) for number in (seeds, pairs))
    squares = inside_seeds**2 * max(of_seeds, of_rest) + inside_pairs**2 * max(0.0, of_pairs - of_rest)
    return math.sqrt(squares / (seeds * pairs))
