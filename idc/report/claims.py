"""The table of what captions claim about the changed object, of every captioner and baseline of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from idc.evaluation.record import Evaluation, spread
from idc.metrics.hallucination import INVENTED, MISSED, Hallucination

ClaimsTable = tuple[list[str], list[list[str]]]
"""Names of the columns, and rows of cells."""


def claims_table(
    evaluations: Sequence[Evaluation], others: Mapping[str, Sequence[Evaluation]] | None = None
) -> ClaimsTable | None:
    """The rates of :mod:`idc.metrics.hallucination`, with intervals, or with deviations if there are several seeds.

    Args:
        evaluations: of the model, one per seed.
        others: name -> evaluations of another captioner.

    Returns:
        None if the truth of the model's pairs is not known.
    """
    model = _hallucinations(evaluations)
    if not model:
        return None
    named = {"model": model, **{name: _hallucinations(per_seed) for name, per_seed in (others or {}).items()}}
    for name, baseline in evaluations[0].baselines.items():
        named[name] = [baseline.hallucination] if baseline.hallucination is not None else []
    columns = list(model[0].rates())
    rows = [
        [name, *(_cell(hallucinations, column) for column in columns)]
        for name, hallucinations in named.items()
        if hallucinations
    ]
    chances = {name: rate.chance for name, rate in model[0].rates().items()}
    rows.append(["chance of the model's captions", *(f"{chances[column]:.1%}" for column in columns)])
    return ["", *(f"{name} (to be low)" if name in (INVENTED, MISSED) else name for name in columns)], rows


def _hallucinations(evaluations: Sequence[Evaluation]) -> list[Hallucination]:
    return [evaluation.hallucination for evaluation in evaluations if evaluation.hallucination is not None]


def _cell(hallucinations: Sequence[Hallucination], name: str) -> str:
    """The rate with its interval, or its mean over several seeds with their deviation."""
    rates = [hallucination.rates().get(name) for hallucination in hallucinations]
    values = [rate.rate for rate in rates if rate is not None and rate.of]
    if not values:
        return "–"  # nothing of the kind was claimed
    if len(values) > 1:
        over = spread(values)
        return f"{over.mean:.1%} ± {100 * over.std:.1f}"
    low, high = hallucinations[0].interval(name)
    return f"{values[0]:.1%} ({100 * low:.1f} to {100 * high:.1f})"
