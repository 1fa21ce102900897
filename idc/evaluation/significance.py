"""Uncertainty of scores and of their differences: bootstrap over the pairs.

Every metric is a function of sums over the sentences (:mod:`idc.metrics.ngrams`), so a resampled set costs one row
of a matrix product: BLEU and METEOR are computed from the resampled sums, ROUGE-L, CIDEr-D and SPICE are means.
CIDEr's document frequencies stay those of the full set.

The effect of a change to a system over seeds and pairs (:func:`seeded_effect`), with its 95 % interval:

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
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.evaluation.config import CompareJob
from idc.evaluation.record import Interval, ScoredCaption, load_evaluation, load_predictions, with_mean
from idc.metrics.coco import BLEU_ORDERS, metrics_of_sums
from idc.metrics.ngrams import BLEU_COLUMNS

SEED = 0
LEVEL = 0.95
_RESAMPLES = 1000
_BLOCK = 250
"""Number of resampled sets in memory at a time."""


class ScoreMatrix:
    """A matrix with the numbers of every sentence, and the metrics of their sums. A score that is not defined (NaN) is
    left out.

    Args:
        scores, statistics: of every sentence, as saved in a ``ScoredCaption``.

    Attributes:
        values: ``(N, columns)``.
        metrics: names of the metrics that :meth:`score` returns.
    """

    def __init__(
        self, scores: Sequence[Mapping[str, float]], statistics: Sequence[Mapping[str, Sequence[float]]]
    ) -> None:
        self._summed = [name for name in ("BLEU", "METEOR") if name in statistics[0]]
        self._means = [
            name for name in scores[0] if name not in (*BLEU_ORDERS, "METEOR") and not math.isnan(scores[0][name])
        ]
        blocks = [np.array([row[name] for row in statistics], dtype=float) for name in self._summed]
        blocks += [np.array([[row[name] for name in self._means] for row in scores], dtype=float)]
        self.values = np.concatenate(blocks, axis=1)
        self.metrics = tuple(self.score(self.values.sum(axis=0), len(scores)))

    def score(self, sums: np.ndarray, count: int) -> dict[str, np.ndarray]:
        """Metric -> its value for sums over ``count`` sentences, ``(..., columns)`` to ``(...)``."""
        out: dict[str, np.ndarray] = {}
        start = 0
        for name in self._summed:
            width = BLEU_COLUMNS if name == "BLEU" else sums.shape[-1] - start - len(self._means)
            part = sums[..., start : start + width]
            start += width
            out |= metrics_of_sums(name, part)
        out |= {name: sums[..., start + i] / count for i, name in enumerate(self._means)}
        return with_mean(out)


def intervals(
    scores: Sequence[Mapping[str, float]], statistics: Sequence[Mapping[str, Sequence[float]]], resamples: int
) -> dict[str, Interval]:
    """Metric -> percentile interval of its score over ``resamples`` sets of as many pairs, drawn with replacement."""
    table = ScoreMatrix(scores, statistics)
    drawn = _gather(
        table.score(weights @ table.values, len(scores)) for weights in bootstrap(len(scores), resamples, SEED)
    )
    return {name: percentiles(values) for name, values in drawn.items()}


class ScoreDifference(BaseModel):
    """One metric of two systems on the same pairs; fractions. Further fields are ignored: registries keep promotions
    of before, with p values."""

    a: float
    b: float
    difference: float
    """b - a."""
    interval: Interval
    """95 % percentile interval of the difference, paired bootstrap."""


class SystemComparison(BaseModel):
    """Two systems on the same pairs and references, by the same protocol."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    protocol: str
    resamples: int
    seed: int
    metrics: dict[str, ScoreDifference]


def compare_systems(
    a: Sequence[ScoredCaption],
    b: Sequence[ScoredCaption],
    protocol: str,
    resamples: int = 1000,
    seed: int = SEED,
) -> SystemComparison:
    """Paired bootstrap for every metric that both were scored by, difference lists included.

    Args:
        a, b: the sentences of two evaluations by one protocol.
        resamples: sets of pairs drawn for the intervals.

    Raises:
        ValueError: the pairs, their references or the metrics are not the same, or the evaluations are of a version
            that did not keep the statistics.
    """
    other = {row.pair_id: row for row in b}
    if lost := [row.pair_id for row in a if row.pair_id not in other] + sorted(other.keys() - {r.pair_id for r in a}):
        raise ValueError(f"not the same pairs: {len(lost)} are in one of the two alone, {lost[0]!r} for one")
    if unlike := [row.pair_id for row in a if row.references != other[row.pair_id].references]:
        raise ValueError(f"not the same references: {len(unlike)} pairs have others, {unlike[0]!r} for one")
    paired = [other[row.pair_id] for row in a]
    if not a[0].scores or not paired[0].scores:
        raise ValueError("the pairs have no references, so there are no scores to compare")
    if a[0].scores.keys() != paired[0].scores.keys():
        raise ValueError(f"not the same metrics: {', '.join(a[0].scores)} and {', '.join(paired[0].scores)}")
    listed = all(row.differences is not None for row in (*a, *paired))
    first, second = (
        ScoreMatrix([_scores(r, listed) for r in rows], [r.statistics for r in rows]) for rows in (a, paired)
    )
    count = len(first.values)
    of_a, of_b = (system.score(system.values.sum(axis=0), count) for system in (first, second))
    drawn_a, drawn_b = (
        _gather(system.score(weights @ system.values, count) for weights in bootstrap(count, resamples, seed))
        for system in (first, second)
    )
    metrics = {
        name: ScoreDifference(
            a=float(of_a[name]),
            b=float(of_b[name]),
            difference=float(of_b[name] - of_a[name]),
            interval=percentiles(drawn_b[name] - drawn_a[name]),
        )
        for name in first.metrics
    }
    return SystemComparison(pairs=count, protocol=protocol, resamples=resamples, seed=seed, metrics=metrics)


def _scores(row: ScoredCaption, listed: bool) -> dict[str, float]:
    """The scores of a sentence, with those of its difference list if both systems have them."""
    return {**row.scores, **(row.differences.scores if listed and row.differences is not None else {})}


def compare_evaluations(job: CompareJob) -> SystemComparison:
    """Two evaluations on disk.

    Raises:
        ValueError: as :func:`compare_systems`, or a folder is not an evaluation, or they follow different protocols.
    """
    first, second = load_evaluation(job.a), load_evaluation(job.b)
    for rule in ("name", "tokenizer", "vocabulary", "references", "METEOR", "CIDEr", "pycocoevalcap"):
        here, there = first.protocol.get(rule), second.protocol.get(rule)
        if here != there:
            raise ValueError(f"not the same protocol: {rule} is {here!r} and {there!r}")
    lists = {evaluation.differences.protocol for evaluation in (first, second) if evaluation.differences is not None}
    if len(lists) > 1:
        raise ValueError(f"not the same rules for differences: {' and '.join(sorted(lists))}; evaluate again")
    rows = load_predictions(job.a), load_predictions(job.b)
    return compare_systems(*rows, first.protocol["name"], job.resamples, job.seed)


def comparison_table(comparison: SystemComparison) -> str:
    """The comparison as plain text; scores times 100."""
    width = max(10, *(len(name) + 1 for name in comparison.metrics))
    lines = [
        f"{comparison.pairs} pairs, protocol {comparison.protocol}, x100. Intervals: 95 %, paired bootstrap, "
        f"{comparison.resamples} resamples, seed {comparison.seed}; CIDEr with the full set's document frequencies",
        f"{'':{width}}{'a':>9}{'b':>9}{'b - a':>9}{'interval':>20}",
    ]
    for name, row in comparison.metrics.items():
        interval = f"{100 * row.interval.low:+.2f} to {100 * row.interval.high:+.2f}"
        lines.append(f"{name:{width}}{100 * row.a:9.2f}{100 * row.b:9.2f}{100 * row.difference:+9.2f}{interval:>20}")
    return "\n".join(lines)


def bootstrap(count: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each pair is drawn, ``(block, count)``, block after block."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, _BLOCK):
        rows = min(_BLOCK, resamples - start)
        drawn = rng.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(float)


def _gather(blocks: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    parts = list(blocks)
    return {name: np.concatenate([block[name] for block in parts]) for name in parts[0]}


def percentiles(values: np.ndarray) -> Interval:
    """The 95 % interval of resampled values."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high))


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
