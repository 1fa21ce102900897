"""Counts in proportion to weights, and a subset of samples with its share of every kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SUBSET = 20
"""Seed of the subset."""


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` cut in whole numbers that are proportional to ``weights``, by largest remainder."""
    if not all(0 <= weight < float("inf") for weight in weights) or not sum(weights):
        raise ValueError(f"the weights of a mixture must be positive numbers, they are {list(weights)}")
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def stratified_subset(strata: Sequence[str | None], number: int) -> list[int]:
    """Indices of ``number`` samples in rising order, drawn at random, of each stratum in proportion to its size.

    The draw is the same in every run, whatever its seed, so that runs are selected by the same samples. Evenly spaced
    ones would follow any period in the order of the rows: of pairs that alternate between changed and unchanged, every
    second one holds only one kind.

    Args:
        strata: the stratum of each sample; None, unknown, is one too.
    """
    members: dict[str | None, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    names = sorted(members, key=str)
    rng = np.random.default_rng(_SUBSET)
    chosen: list[int] = []
    for name, count in zip(names, apportion(number, [len(members[name]) for name in names]), strict=True):
        chosen += rng.permutation(members[name])[:count].tolist()
    return sorted(chosen)
