"""The calibrated probability that anything changed: a logistic regression on a captioner's description of a pair,
fitted on held-out pairs (:mod:`idc.captioning.calibration_job`) and stored in the artifact. For any system; imports no
torch.

Inputs of the regression, each standardised on the pairs it is fitted on: whether the best caption states a change
(:func:`idc.metrics.change_types.says_no_change`), its mean log-probability, the same signed by that statement, and the
system's own evidence (:attr:`idc.captioning.contract.Description.evidence`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from idc.captioning.contract import FAMILIAR_FROM, Candidate, Captioner, Description
from idc.captioning.familiarity import Familiarity
from idc.data.remote_copies import local_folder
from idc.metrics.change_types import says_no_change
from idc.training.artifact import CALIBRATION

BINS = 10
"""Number of bins of the expected calibration error."""
_OF_ANY = ("says_change", "log_probability", "signed_log_probability")
"""Inputs that every captioner has."""
YES = "yes"
"""Input of captioners that are asked whether anything changed: the log-odds of "yes"."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quality(_Record):
    """Quality of the probabilities on pairs with a known change flag."""

    pairs: int
    changed: int
    """Number of changed pairs."""
    auc: float
    """Share of the combinations of a changed and an unchanged pair that the probability orders correctly."""
    brier: float
    """Mean squared error of the probability; 0.25 for a constant one half."""
    ece: float
    """Expected calibration error: mean distance of the mean probability from the share of changed pairs, in bins of
    about equal size."""


class Unfamiliar(_Record):
    """How many pairs do not resemble the training images."""

    pairs: int
    warned: int
    """Number of pairs with a familiarity below :data:`idc.captioning.contract.FAMILIAR_FROM`, which get a warning."""
    lowest: float
    """Lowest familiarity."""
    median: float
    """Median familiarity."""
    auc: float | None = None
    """Of an input of another domain: share of the combinations of a held-out pair (of the report split if there
    is one) and a pair of this input in which the latter is farther from the training images."""


class Calibration(_Record):
    """The regression: probability = 1 / (1 + exp(-(bias + sum of weight * (input - mean) / deviation)))."""

    fingerprint: str
    """Of the weights, the pairs and the settings of the fit."""
    source: dict[str, Any]
    """Folder of pairs, split, and number of pairs."""
    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    quality: dict[str, Quality]
    """Split -> quality, that of the fit included."""
    unfamiliar: dict[str, Unfamiliar] = {}
    """Split or input of another domain -> number of warnings; empty if familiarity was not fitted."""

    def __call__(self, description: Description) -> float:
        """The probability that anything changed, in (0, 1)."""
        return self.probability(inputs_of(description))

    def probability(self, inputs: Mapping[str, float]) -> float:
        """The probability from the :func:`inputs_of` a description."""
        rows = zip(self.inputs, self.mean, self.deviation, self.weights, strict=True)
        total = self.bias + sum(weight * (inputs[name] - mean) / spread for name, mean, spread, weight in rows)
        # Limited to +-30: far outside, exp overflows or the result is rounded to 1.
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))

    @classmethod
    def read(cls, artifact: Path | str) -> Calibration | None:
        """The calibration of an artifact, or None if it has none; a damaged file is a ValueError."""
        path = local_folder(artifact) / CALIBRATION
        if not path.exists():
            return None
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ValueError(f"{path} is not a calibration; run jobs/calibrate.py again: {error}") from None

    @classmethod
    def load(cls, artifact: Path | str, evidence: Sequence[str] = ()) -> Calibration | None:
        """As :meth:`read`, for a captioner whose own evidence has these names, without :data:`YES`: None, with a
        warning, if it was fitted on other inputs."""
        calibration = cls.read(artifact)
        if calibration is not None and set(calibration.inputs) - {YES} != {*_OF_ANY, *evidence}:
            warnings.warn(
                f"{Path(artifact) / CALIBRATION} has other inputs and is ignored; run jobs/calibrate.py again",
                stacklevel=2,
            )
            return None
        return calibration


class AssessedCaptioner(Captioner):
    """A captioner that says how far its descriptions can be trusted.

    Args:
        path: folder of the artifact, whose calibration and familiarity are read if it has them.
        trained_on: as in :class:`idc.captioning.contract.Captioner`.
        evidence: names of the captioner's evidence of a change.
    """

    def __init__(self, path: Path | None, trained_on: str | None, evidence: Sequence[str]) -> None:
        self.trained_on = trained_on
        self.calibration = None if path is None else Calibration.load(path, evidence)
        self.familiarity = None if path is None else Familiarity.read(path)

    def _description(
        self, before: np.ndarray, after: np.ndarray, candidates: Iterable[Candidate], most: int, **fields: Any
    ) -> Description:
        """Of the candidates, best first, the first ``most`` with texts of their own that are possible at all."""
        texts: dict[str, Candidate] = {}
        for candidate in candidates:
            if not texts or math.isfinite(candidate.log_probability):
                texts.setdefault(candidate.caption, candidate)
        familiarity = None if self.familiarity is None else self.familiarity(before, after)
        best = tuple(texts.values())[:most]
        description = Description(best, familiarity=familiarity, trained_on=self.trained_on, **fields)
        return description if self.calibration is None else replace(description, changed=self.calibration(description))


def inputs_of(description: Description) -> dict[str, float]:
    """Inputs of the regression, by name."""
    best = description.best
    says = 0.0 if says_no_change(best.caption) else 1.0
    signed = (2 * says - 1) * best.log_probability
    return dict(zip(_OF_ANY, (says, best.log_probability, signed), strict=True)) | dict(description.evidence)


def fit_calibration(rows: Sequence[Mapping[str, float]], changed: Sequence[bool]) -> dict[str, Any]:
    """Fit the regression (scikit-learn's, with its default L2 penalty) on the :func:`inputs_of` pairs. Returns its
    fields of :class:`Calibration`."""
    from sklearn.linear_model import LogisticRegression

    inputs = tuple(rows[0])
    values = np.array([[row[name] for name in inputs] for row in rows], dtype=np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation == 0] = 1.0  # a constant input carries no information and gets no weight
    regression = LogisticRegression().fit((values - mean) / deviation, np.array(changed))
    return {
        "inputs": inputs,
        "mean": tuple(mean.tolist()),
        "deviation": tuple(deviation.tolist()),
        "weights": tuple(regression.coef_[0].tolist()),
        "bias": float(regression.intercept_[0]),
    }


def quality(probabilities: Iterable[float], changed: Sequence[bool], bins: int = BINS) -> Quality:
    """AUC, Brier score and expected calibration error of probabilities, on changed and unchanged pairs."""
    from sklearn.metrics import roc_auc_score

    predicted, truth = np.array([*probabilities], dtype=np.float64), np.array(changed, dtype=np.float64)
    edges = np.unique(np.quantile(predicted, np.arange(1, bins) / bins))
    which = np.searchsorted(edges, predicted, side="right")  # equal probabilities stay together
    gaps = [abs((predicted - truth)[which == group].sum()) for group in range(len(edges) + 1)]
    return Quality(
        pairs=len(predicted),
        changed=int(truth.sum()),
        auc=float(roc_auc_score(truth, predicted)),
        brier=float(((predicted - truth) ** 2).mean()),
        ece=float(sum(gaps) / len(predicted)),
    )


def table(calibration: Calibration) -> str:
    """The quality as plain text."""
    lines = [
        f"fitted on {calibration.source['count']} pairs of {calibration.source['split']}: "
        + ", ".join(
            f"{name} {weight:+.2f}" for name, weight in zip(calibration.inputs, calibration.weights, strict=True)
        ),
        f"{'':8}{'pairs':>7}{'changed':>9}{'AUC':>8}{'Brier':>8}{'ECE':>8}",
    ]
    for split, scores in calibration.quality.items():
        lines.append(
            f"{split:8}{scores.pairs:7d}{scores.changed:9d}{scores.auc:8.4f}{scores.brier:8.4f}{scores.ece:8.4f}"
        )
    if calibration.unfamiliar:
        lines.append(f"pairs that do not resemble the training images (familiarity below {FAMILIAR_FROM}):")
        lines += [
            f"  {name}: {counts.warned} of {counts.pairs} ({100 * counts.warned / counts.pairs:.1f} %); "
            f"lowest familiarity {counts.lowest:.3f}, median {counts.median:.3f}"
            + (f"; AUC {counts.auc:.4f}" if counts.auc is not None else "")
            for name, counts in calibration.unfamiliar.items()
        ]
    return "\n".join(lines)
