"""The effect of a change to a system over seeds and pairs: its 95 % interval, and how many of both an effect takes.

Of seed s and pair i the difference of a metric, treatment minus control, is

    d_si = effect + a_s + b_i + e_si

with the variances A over seeds, B over pairs and E of the rest: two trainings differ by their draw (A), pairs by what
the change does to them (B). With S seeds and N pairs the mean of all d has the variance A / S + B / N + E / (S N). The
mean squares of the two-way analysis of variance estimate them:

    M_seeds = N sum_s (d_s. - d..)^2 / (S - 1)        A = (M_seeds - M_rest) / N
    M_pairs = S sum_i (d_.i - d..)^2 / (N - 1)        B = (M_pairs - M_rest) / S
    M_rest = sum_si (d_si - d_s. - d_.i + d..)^2 / ((S - 1) (N - 1))        E = M_rest

The interval is d.. +- h, with t(f) the 97.5 % quantile of Student's distribution with f degrees of freedom:

    h^2 = (t(S - 1)^2 M_seeds + t(N - 1)^2 max(0, M_pairs - M_rest)) / (S N)

Each part of the variance has the quantile of its own sample, so that three seeds count as three: it holds the truth in
95 to 98 % of repetitions, whichever part is the larger (one t with Satterthwaite's degrees of freedom: in 92 to 97 %).
An interval over pairs alone answers for these trainings and no others; one over seeds alone for these pairs.

An effect D is seen in about 80 % of repetitions (the interval is above 0) if, with q(f) = t_.975(f) + t_.80(f),

    D^2 >= q(S - 1)^2 (A / S + E / (S N)) + q(N - 1)^2 B / N

from which :func:`pairs_needed` finds the smallest N for S seeds. Where A / S alone is too large, no N suffices.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.evaluation.record import Interval
from idc.evaluation.significance import LEVEL, POWER, SEED, bootstrap, percentiles

_RESAMPLES = 1000


class Components(BaseModel):
    """Variances of the difference of a metric, in its unit squared; none is below 0."""

    model_config = ConfigDict(extra="forbid")
    seeds: float
    """A: between seeds."""
    pairs: float
    """B: between pairs."""
    rest: float
    """E: of a seed and a pair together."""


class SeededEffect(BaseModel):
    """The effect of a change on a metric, as fractions.

    Attributes:
        control, treatment: means over seeds and pairs.
        effect: treatment - control.
        interval: of the effect, 95 %; None with one seed.
        components: likewise.
        of_pairs: with one seed, the 95 % bootstrap interval over the pairs alone, which answers for these trainings.
    """

    model_config = ConfigDict(extra="forbid")
    seeds: int
    pairs: int
    control: float
    treatment: float
    effect: float
    interval: Interval | None = None
    components: Components | None = None
    of_pairs: Interval | None = None


def seeded_effect(control_SN: np.ndarray, treatment_SN: np.ndarray) -> SeededEffect:
    """The effect of the module's text.

    Args:
        control_SN: a metric of each pair, for each seed.
        treatment_SN: the same pairs and seeds, in the same order.
    """
    assert control_SN.shape == treatment_SN.shape, (control_SN.shape, treatment_SN.shape)
    difference_SN = treatment_SN - control_SN
    seeds, pairs = difference_SN.shape
    effect = SeededEffect(
        seeds=seeds,
        pairs=pairs,
        control=float(control_SN.mean()),
        treatment=float(treatment_SN.mean()),
        effect=float(difference_SN.mean()),
    )
    if seeds == 1:
        drawn = np.concatenate([weights @ difference_SN[0] / pairs for weights in bootstrap(pairs, _RESAMPLES, SEED)])
        return effect.model_copy(update={"of_pairs": percentiles(drawn)})
    of_seeds, of_pairs, of_rest = _mean_squares(difference_SN)
    components = Components(
        seeds=max(0.0, (of_seeds - of_rest) / pairs), pairs=max(0.0, (of_pairs - of_rest) / seeds), rest=of_rest
    )
    half = _half(components, seeds, pairs, _inside(seeds - 1), _inside(pairs - 1))
    interval = Interval(low=effect.effect - half, high=effect.effect + half)
    return effect.model_copy(update={"interval": interval, "components": components})


def pairs_needed(components: Components, effect: float, seeds: int, most: int = 10_000_000) -> int | None:
    """The smallest number of pairs with which an effect is seen, by the module's text; None if it is above ``most``."""

    def both(freedom: int) -> float:
        return _inside(freedom) + _quantile(POWER, freedom)

    def seen(pairs: int) -> bool:
        return effect >= _half(components, seeds, pairs, of_seeds, both(pairs - 1))

    of_seeds = both(seeds - 1)
    if not seen(most):
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def _mean_squares(d_SN: np.ndarray) -> tuple[float, float, float]:
    """Of seeds, of pairs and of the rest."""
    seeds, pairs = d_SN.shape
    mean, by_seed, by_pair = d_SN.mean(), d_SN.mean(axis=1), d_SN.mean(axis=0)
    rest = d_SN - by_seed[:, None] - by_pair[None] + mean
    return (
        float(pairs * ((by_seed - mean) ** 2).sum() / (seeds - 1)),
        float(seeds * ((by_pair - mean) ** 2).sum() / (pairs - 1)),
        float((rest**2).sum() / ((seeds - 1) * (pairs - 1))),
    )


def _half(components: Components, seeds: int, pairs: int, of_seeds: float, of_pairs: float) -> float:
    """h of the module's text with these quantiles."""
    squares = of_seeds**2 * (components.seeds / seeds + components.rest / (seeds * pairs))
    return math.sqrt(squares + of_pairs**2 * components.pairs / pairs)


def _inside(freedom: int) -> float:
    """The quantile of the interval."""
    return _quantile(0.5 + LEVEL / 2, freedom)


def _quantile(share: float, freedom: int) -> float:
    from scipy.stats import t  # slow to import

    return float(t.ppf(share, freedom))
