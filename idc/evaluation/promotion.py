"""Decides whether a candidate may replace the champion: requirements on its evaluation, and the test for "not worse".

The rule is one of non-inferiority: a candidate is promoted if the lower end of the paired 95 % interval of its
difference to the champion (:mod:`idc.evaluation.significance`) is at least ``-margin`` times the champion's score. The
candidate has to show that it loses no more than the margin. The opposite rule, to promote unless a loss is shown, would
accept anything on a small enough set, since a wide interval shows nothing; here a set that is too small keeps the
champion.

The rule does not guard against two things: every promotion may lose up to the margin, and candidates that are compared
on the same pairs again and again eventually pass by chance.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from idc.evaluation.record import load_evaluation, load_predictions
from idc.evaluation.significance import ScoreDifference, SystemComparison
from idc.training.artifact import captioning_identity

Verdict = Literal["better", "within the margin", "undecided", "worse"]


class ScoredVersion(BaseModel):
    """Summary of an evaluation, as stored in the registry; scores are fractions, without those that are not defined."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    data_set: str
    data: str
    """Fingerprint of the folder of pairs."""
    split: str
    pairs: int
    protocol: str
    scores: dict[str, float]
    folder: str
    """Folder of pairs at the time of the evaluation."""
    at: datetime
    """When it was registered."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Properties that two evaluations must share to be compared."""
        return self.data, self.split, self.pairs, self.protocol

    def __str__(self) -> str:
        return f"{self.pairs} pairs of {self.split} of {self.folder} ({self.data_set}, {self.data}), {self.protocol}"


def checked_evaluation(folder: str | Path, artifact: str | Path) -> ScoredVersion:
    """Summary of an artifact's evaluation, after checking that it is valid for a comparison.

    Raises:
        ValueError: it belongs to another artifact, to altered or training pairs, or has no scores; with advice.
    """
    evaluation = load_evaluation(folder)
    again = (
        f"evaluate it again: python jobs/evaluate.py --overwrite artifact={artifact} "
        f"pairs={evaluation.protocol.get('pairs')} split={evaluation.split} out={folder}"
    )
    if evaluation.artifact is None:
        raise ValueError(f"evaluation: {folder} does not say which artifact it is of; {again}")
    if evaluation.artifact != captioning_identity(artifact):
        of = evaluation.protocol.get("captioner")
        raise ValueError(f"evaluation: {folder} is of another artifact ({of}, as it was then); {again}")
    if not evaluation.scores or not load_predictions(folder)[0].statistics:
        raise ValueError(f"evaluation: {folder} has no scores that can be compared sentence by sentence; {again}")
    if evaluation.split == "train":
        raise ValueError(f"evaluation: {folder} is of training pairs; take a split that was held out")
    data = evaluation.protocol["data"]
    if data.get("variant") is not None:
        raise ValueError(f"evaluation: {folder} is of altered pairs ({data['variant']}); take the pairs as they are")
    return ScoredVersion(
        data_set=data["data_set"],
        data=data["fingerprint"],
        split=evaluation.split,
        pairs=evaluation.pairs,
        protocol=evaluation.protocol["name"],
        scores={name: round(value, 6) for name, value in evaluation.scores.items() if not math.isnan(value)},
        folder=evaluation.protocol["pairs"],
        at=datetime.now(UTC),
    )


class Decision(BaseModel):
    """A candidate (b) held against the champion (a) in one metric; fractions."""

    model_config = ConfigDict(extra="forbid")
    metric: str
    margin: float
    """As a share of the champion's score."""
    pairs: int
    protocol: str
    difference: ScoreDifference
    verdict: Verdict

    @property
    def not_worse(self) -> bool:
        """Whether the candidate may be promoted."""
        return self.verdict in ("better", "within the margin")

    def text(self) -> str:
        """The decision in words; scores times 100."""
        difference, limit = self.difference, self.margin * self.difference.a
        low, high = difference.interval.low, difference.interval.high
        numbers = (
            f"{self.metric} {100 * difference.b:.2f} against {100 * difference.a:.2f} on {self.pairs} pairs "
            f"({self.protocol}): {100 * difference.difference:+.2f}, 95 % interval {100 * low:+.2f} to "
            f"{100 * high:+.2f}"
        )
        edge = f"{100 * self.margin:g} % of the champion's score ({100 * limit:.2f})"
        why = {
            "better": "the whole interval is above 0",
            "within the margin": f"its lower end is no loss of more than {edge}",
            "worse": f"a loss is shown, and one of more than {edge} is not ruled out",
            "undecided": f"these pairs neither show a loss nor rule out one of more than {edge}",
        }[self.verdict]
        return f"{self.verdict}: {numbers}; {why}"


def decide(comparison: SystemComparison, metric: str, margin: float) -> Decision:
    """Hold a candidate (``b``) against the champion (``a``).

    Args:
        margin: the loss that is allowed, as a share of the champion's score; with 0 no loss is.

    Raises:
        ValueError: they were not scored by the metric.
    """
    if metric not in comparison.metrics:
        raise ValueError(f"metric: {metric!r} was not scored; there are {', '.join(comparison.metrics)}")
    difference = comparison.metrics[metric]
    verdict: Verdict
    if difference.interval.low > 0:
        verdict = "better"
    elif difference.interval.low >= -margin * difference.a:
        verdict = "within the margin"
    elif difference.interval.high < 0:
        verdict = "worse"
    else:
        verdict = "undecided"
    return Decision(
        metric=metric,
        margin=margin,
        pairs=comparison.pairs,
        protocol=comparison.protocol,
        difference=difference,
        verdict=verdict,
    )
