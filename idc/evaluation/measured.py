"""The record of how well measures of captions agree with the truth (:mod:`idc.evaluation.measures`), and its words."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from idc.evaluation.agreement import Estimate

RESULT = "measures.json"
WORDS = "words"
"""A measure that reads nothing: the number of words of a caption. What does not agree better with the truth than this
has no use."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Agreement(_Record):
    """Agreement of a measure with the true F1 of the captions of all systems."""

    accuracy: Estimate
    """Of two captions of a pair that differ in true F1, how often the measure prefers the better one; ties 1/2."""
    lead: Estimate | None = None
    """Accuracy of the most accurate measure minus that of this one; ``None`` of the most accurate one."""
    spearman: Estimate
    """Rank correlation over the captions of all systems and pairs."""
    kendall: Estimate
    """The same, tau-b."""
    spearman_in_pair: Estimate
    """Rank correlation over the captions of one pair, mean over the pairs whose captions differ in true F1; a measure
    that gives all of them the same has 0."""
    kendall_in_pair: Estimate
    """The same, tau-b."""
    with_precision: float
    """Spearman's rank correlation over all captions with the true precision."""
    with_recall: float
    """With the true recall."""
    with_invented: float
    """With the true share of invented claims: to be negative."""
    systems: float
    """Kendall's tau-b over the systems: their scores of the set with their mean true F1."""


class Planted(_Record):
    """Effect of one kind of error in true captions on a measure."""

    preferred: Estimate
    """How often the true caption has the higher score; ties 1/2."""
    fall: Estimate
    """Mean of the true caption's score minus that of the caption with the error, in standard deviations of the measure
    over the captions of all systems."""


class PlantedError(_Record):
    """One kind of error: the same captions with and without it."""

    pairs: int
    """Pairs in which the error is possible."""
    example: tuple[str, str]
    """A true caption, and the same with the error."""
    true_f1: tuple[float, float]
    """Mean true F1 of the captions without and with the error: rules see the error if the second is lower."""
    measures: dict[str, Planted]
    """Measure -> what it makes of it; without judges that have not judged these captions."""


class MeasuresRecord(_Record):
    """The result of ``jobs/compare_measures.py``."""

    pairs: str
    split: str
    count: int
    """Number of pairs."""
    comparisons: int
    """Number of comparisons of two captions of a pair that differ in true F1."""
    systems: dict[str, dict[str, float]]
    """System -> mean true scores, then its score of the set by every measure."""
    baselines: list[str]
    """Names of the systems that are baselines."""
    agreement: dict[str, Agreement]
    errors: dict[str, PlantedError]
    sentences: list[str]
    """Which measure to trust, and what it does not see, in words."""
    limits: list[str]
    protocol: dict[str, str]


LIMITS = (
    "The truth is what rules read in a caption ({protocol}): they know the words of the rendered pairs and some more, "
    "so a caption in other words may be worth more than its true F1.",
    "The pairs are rendered, and their references and the captions with planted errors are in one restricted language; "
    "on photographs, with longer and freer texts, measures may agree otherwise.",
    "Systems that were trained on such references write like them. A measure of word overlap has it easier with them "
    "than with a model that describes in words of its own.",
)


def sentences(agreement: dict[str, Agreement], errors: dict[str, PlantedError], comparisons: int) -> list[str]:
    """Which measure to trust: that with the highest pairwise accuracy, those that are not distinguishable from it,
    whether it is better than chance and than the number of words, and the errors that it does not see."""
    best = max((name for name in agreement if name != WORDS), key=lambda name: agreement[name].accuracy.value)
    accuracy, words = agreement[best].accuracy, agreement[WORDS]
    by_chance = accuracy.interval is not None and accuracy.interval.low <= 0.5
    by_length = words.lead is not None and words.lead.interval is not None and words.lead.interval.low <= 0
    if by_chance or by_length:
        as_well = "chance (50 %)" if by_chance else f"the longer caption ({_percent(words.accuracy.value)})"
        return [
            f"No measure here is to be trusted: the best one, {best}, prefers the better of two captions in "
            f"{_share(accuracy)} of {comparisons:,} comparisons, not distinguishable from {as_well}."
        ]
    rest = [name for name in agreement if name not in (best, WORDS)]
    as_good = [name for name in rest if (lead := agreement[name].lead) and lead.interval and lead.interval.low <= 0]
    others = f" (or {', '.join(as_good)}, not distinguishable from it on these pairs)" if as_good else ""
    lines = [
        f"Trust {best}{others}: of two captions of a pair that differ in true F1, {best} prefers the better one in "
        f"{_share(accuracy)} of {comparisons:,} comparisons (chance 50 %, the longer caption "
        f"{_percent(words.accuracy.value)})."
    ]
    if rest:
        lines.append(f"The others: {'; '.join(_behind(name, agreement[name]) for name in rest)}.")
    highest = max((name for name in agreement if name != WORDS), key=lambda name: agreement[name].spearman.value)
    if _above(agreement[highest].spearman, agreement[best].spearman):
        lines.append(
            f"Over the captions of all pairs together {highest} has the highest rank correlation with the truth "
            f"(Spearman {_correlation(highest, agreement)}; {best} {_correlation(best, agreement)}): to find the pairs "
            "that are captioned worst, sort by it."
        )
    seen = [
        f"{error} {_share(planted.measures[best].preferred)}"
        for error, planted in errors.items()
        if best in planted.measures
    ]
    if seen:
        lines.append(f"How often {best} prefers a true caption to the same with an error: {'; '.join(seen)}.")
    blind = [
        f"{name}: {error} {_share(planted.measures[name].preferred)}"
        for name in agreement
        for error, planted in errors.items()
        if name != WORDS and name in planted.measures and not _above(planted.measures[name].preferred, 0.5)
    ]
    if blind:
        listed = "; ".join(blind)
        lines.append(f"Errors that a measure does not see (not distinguishable from chance, or worse): {listed}.")
    return lines


def _above(estimate: Estimate, other: Estimate | float) -> bool:
    """Whether a number is above another one beyond their intervals."""
    low = estimate.value if estimate.interval is None else estimate.interval.low
    if isinstance(other, Estimate):
        other = other.value if other.interval is None else other.interval.high
    return low > other


def _behind(name: str, agreement: Agreement) -> str:
    if agreement.lead is None or agreement.lead.interval is None:
        return f"{name} {_percent(agreement.accuracy.value)}"
    low, high = 100 * agreement.lead.interval.low, 100 * agreement.lead.interval.high
    lead = f"{100 * agreement.lead.value:.1f} points less, {low:.1f} to {high:.1f}"
    return f"{name} {_percent(agreement.accuracy.value)} ({lead})"


def _correlation(name: str, agreement: dict[str, Agreement]) -> str:
    correlation = agreement[name].spearman
    between = (
        "" if correlation.interval is None else f" ({correlation.interval.low:.2f} to {correlation.interval.high:.2f})"
    )
    return f"{correlation.value:.2f}{between}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(estimate: Estimate) -> str:
    if estimate.interval is None:
        return _percent(estimate.value)
    return f"{_percent(estimate.value)} ({100 * estimate.interval.low:.1f} to {100 * estimate.interval.high:.1f})"
