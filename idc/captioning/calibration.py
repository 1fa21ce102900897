"""The probability that anything changed at all: a logistic regression on what a captioner tells of a pair, fitted on
held-out pairs and kept in the artifact. Of any system; imports no torch. The job also fits the familiarity of pairs
(:mod:`idc.captioning.familiarity`).

Inputs of the regression, each standardised on the pairs it is fitted on: whether the best caption says that something
changed (:func:`idc.metrics.changes.says_no_change`), its mean log-probability, that with the sign of what it says, and
the system's own evidence (:attr:`idc.captioning.contract.Description.evidence`).
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from idc.captioning.contract import FAMILIAR_FROM, Describer, Description
from idc.captioning.familiarity import Familiarity
from idc.captioning.familiarity import fit as fit_familiarity
from idc.config import ConfigModel, missing
from idc.data.files import Reader
from idc.data.images import ImageError, cell_bytes, decode_image
from idc.data.rows import open_rows
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.data.validation.checks import is_changed
from idc.metrics.changes import says_no_change
from idc.training.artifact import CALIBRATION, add_file, captioning_identity, read_artifact

BINS = 10
"""Bins of the expected calibration error."""
_OF_ANY = ("says_change", "log_probability", "signed_log_probability")
"""Inputs that every captioner gives."""


class CalibrateJob(ConfigModel):
    """Fit the probability that anything changed and the familiarity of pairs, and keep both in an artifact."""

    artifact: str = Field(min_length=1)
    """Artifact of a captioner; `calibration.json` is added to it, or replaced."""
    pairs: str = Field(min_length=1)
    """Folder of pairs, some changed and some not."""
    split: Literal["train", "val", "test"] = "val"
    """The split that is fitted on."""
    report_split: Literal["val", "test"] | None = None
    """Another split, on which the quality of the probabilities is measured."""
    max_pairs: int | None = Field(None, ge=1)
    """Only the first this many pairs of a split; all of them if not given."""
    batch_size: int = Field(32, ge=1)
    """Pairs captioned at a time."""
    familiarity: bool = True
    """Also fit how much a pair looks like the training images, on the training pairs of `pairs`, and calibrate that on
    `split`: pairs that do not get a warning. Off: what the artifact has of it stays as it is."""
    max_training_pairs: int = Field(5000, ge=100)
    """Familiarity is fitted on the first this many training pairs at most."""
    outside: tuple[str, ...] = ()
    """Inputs of other domains, on which the share of warnings is measured: what `--input` of jobs/caption.py takes."""
    device: str = "cpu"
    """Where to caption, e.g. cuda."""

    def faults(self) -> Iterator[str]:
        if self.split == "train":
            yield (
                "split: the captioner learnt the training pairs, and is surer of them than of any others; calibrate on "
                "val"
            )
        if self.report_split == self.split:
            yield f"report_split: {self.split} is what is fitted on; report on another split"
        if self.outside and not self.familiarity:
            yield "outside: measures familiarity, which is off; set familiarity=true"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.artifact, "artifact")
        yield from missing(self.pairs, "pairs")
        for path in self.outside:
            yield from missing(path, "outside")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quality(_Record):
    """How good probabilities are on pairs of which it is known."""

    pairs: int
    changed: int
    """Those of them that changed."""
    auc: float
    """Share of couples of a changed and an unchanged pair that the probability puts in the right order."""
    brier: float
    """Mean squared error of the probability; 0.25 for always saying one half."""
    ece: float
    """Expected calibration error: the mean distance of the mean probability from the share that changed, in bins of
    about equally many pairs."""


class Unfamiliar(_Record):
    """How many pairs do not look like the training images."""

    pairs: int
    warned: int
    """Pairs with a familiarity below :data:`idc.captioning.contract.FAMILIAR_FROM`, which get a warning."""
    lowest: float
    """The lowest familiarity of the pairs."""
    median: float
    """The median of their familiarities."""


class Calibration(_Record):
    """The regression: probability = 1 / (1 + exp(-(bias + sum of weight * (input - mean) / deviation)))."""

    fingerprint: str
    """Of the weights, the pairs and the settings it was fitted with."""
    source: dict[str, Any]
    """Folder of pairs, split and how many of them."""
    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    quality: dict[str, Quality]
    """Split -> quality; of the split it was fitted on, too."""
    unfamiliar: dict[str, Unfamiliar] = {}
    """Split or input of another domain -> how many of its pairs get a warning; empty if familiarity was not fitted."""

    def __call__(self, description: Description) -> float:
        """The probability that anything changed, in (0, 1)."""
        return self.probability(inputs_of(description))

    def probability(self, inputs: Mapping[str, float]) -> float:
        """The same from :func:`inputs_of` a description."""
        rows = zip(self.inputs, self.mean, self.deviation, self.weights, strict=True)
        total = self.bias + sum(weight * (inputs[name] - mean) / spread for name, mean, spread, weight in rows)
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))

    @classmethod
    def read(cls, artifact: Path | str) -> Calibration | None:
        """That of an artifact, or None if it was never calibrated.

        Raises:
            ValueError: the file is damaged.
        """
        path = Path(artifact) / CALIBRATION
        if not path.exists():
            return None
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ValueError(f"{path} is no calibration; run jobs/calibrate.py again: {error}") from None

    @classmethod
    def load(cls, artifact: Path | str, evidence: Sequence[str] = ()) -> Calibration | None:
        """The same for a captioner: None, with a warning, if it was fitted on other inputs than there are.

        Args:
            evidence: names of the system's own evidence.
        """
        found = cls.read(artifact)
        if found is not None and set(found.inputs) != {*_OF_ANY, *evidence}:
            warnings.warn(
                f"{Path(artifact) / CALIBRATION} has other inputs and is left out; run jobs/calibrate.py again",
                stacklevel=2,
            )
            return None
        return found


def inputs_of(description: Description) -> dict[str, float]:
    """What the regression reads, by name."""
    best = description.best
    says = 0.0 if says_no_change(best.caption) else 1.0
    signed = (2 * says - 1) * best.log_probability
    return dict(zip(_OF_ANY, (says, best.log_probability, signed), strict=True)) | dict(description.evidence)


def fit(rows: Sequence[Mapping[str, float]], changed: Sequence[bool]) -> dict[str, Any]:
    """The regression's fields of :class:`Calibration`; scikit-learn's, with its default L2 penalty.

    Args:
        rows: :func:`inputs_of` each pair.
        changed: whether it did.
    """
    from sklearn.linear_model import LogisticRegression

    inputs = tuple(rows[0])
    values = np.array([[row[name] for name in inputs] for row in rows], dtype=np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation == 0] = 1.0  # an input that is always the same says nothing, and gets no weight
    found = LogisticRegression().fit((values - mean) / deviation, np.array(changed))
    return {
        "inputs": inputs,
        "mean": tuple(mean.tolist()),
        "deviation": tuple(deviation.tolist()),
        "weights": tuple(found.coef_[0].tolist()),
        "bias": float(found.intercept_[0]),
    }


def quality(probabilities: Sequence[float], changed: Sequence[bool], bins: int = BINS) -> Quality:
    """AUC, Brier score and expected calibration error of probabilities of pairs of both kinds."""
    from sklearn.metrics import roc_auc_score

    given, truth = np.array(probabilities, dtype=np.float64), np.array(changed, dtype=np.float64)
    edges = np.unique(np.quantile(given, np.arange(1, bins) / bins))
    which = np.searchsorted(edges, given, side="right")  # equal probabilities stay together
    gaps = [abs((given - truth)[which == place].sum()) for place in range(len(edges) + 1)]
    return Quality(
        pairs=len(given),
        changed=int(truth.sum()),
        auc=float(roc_auc_score(truth, given)),
        brier=float(((given - truth) ** 2).mean()),
        ece=float(sum(gaps) / len(given)),
    )


def finished(job: CalibrateJob) -> Calibration | None:
    """The calibration that is in the artifact, if it was made of these weights, pairs and settings.

    Raises:
        ValueError: the folder is no artifact, or has no pairs.
    """
    read_artifact(job.artifact)
    found = Calibration.read(job.artifact)
    if job.familiarity and Familiarity.read(job.artifact) is None:
        return None
    return found if found is not None and found.fingerprint == _mark(job) else None


def calibrate(job: CalibrateJob, load: Callable[[], Describer]) -> Calibration:
    """Describe the pairs, fit, measure, and add the files to the artifact.

    Args:
        load: loads the captioner of ``job.artifact``.

    Raises:
        ValueError: a split has no pairs of one of the kinds, there are no training pairs for the familiarity, or an
            image cannot be read.
    """
    captioner = load()
    rows, changed = _told(job, captioner, job.split)
    made = Calibration(
        fingerprint=_mark(job),
        source={"pairs": job.pairs, "split": job.split, "count": len(rows)},
        quality={},
        **fit(rows, changed),
    )
    measured = {job.split: (rows, changed)}
    if job.report_split is not None:
        measured[job.report_split] = _told(job, captioner, job.report_split)
    found = {name: quality([made.probability(row) for row in told], truth) for name, (told, truth) in measured.items()}
    made = made.model_copy(update={"quality": found})
    if job.familiarity:
        familiarity = _fit_familiarity(job)
        made = made.model_copy(update={"unfamiliar": _unfamiliar(job, familiarity)})
        familiarity.save(job.artifact)
    add_file(job.artifact, CALIBRATION, made.model_dump_json(indent=1) + "\n")
    return made


def table(found: Calibration) -> str:
    """The quality, as plain text."""
    lines = [
        f"fitted on {found.source['count']} pairs of {found.source['split']}: "
        + ", ".join(f"{name} {weight:+.2f}" for name, weight in zip(found.inputs, found.weights, strict=True)),
        f"{'':8}{'pairs':>7}{'changed':>9}{'AUC':>8}{'Brier':>8}{'ECE':>8}",
    ]
    for split, one in found.quality.items():
        lines.append(f"{split:8}{one.pairs:7d}{one.changed:9d}{one.auc:8.4f}{one.brier:8.4f}{one.ece:8.4f}")
    if found.unfamiliar:
        lines.append(f"pairs that do not look like the training images (familiarity below {FAMILIAR_FROM}):")
        lines += [
            f"  {name}: {one.warned} of {one.pairs} ({100 * one.warned / one.pairs:.1f} %); "
            f"lowest familiarity {one.lowest:.3f}, median {one.median:.3f}"
            for name, one in found.unfamiliar.items()
        ]
    return "\n".join(lines)


def _fit_familiarity(job: CalibrateJob) -> Familiarity:
    training = itertools.islice(_split_images(job, "train"), job.max_training_pairs)
    first = next(training, None)
    if first is None:
        raise ValueError(
            f"{job.pairs} has no training pairs, on which familiarity is fitted; give the folder that the captioner "
            "was trained on, or set familiarity=false"
        )
    images = itertools.chain(first, itertools.chain.from_iterable(training))
    return fit_familiarity(images, itertools.islice(_split_images(job, job.split), job.max_pairs))


def _unfamiliar(job: CalibrateJob, familiarity: Familiarity) -> dict[str, Unfamiliar]:
    splits = [job.split] if job.report_split is None else [job.split, job.report_split]
    measured: dict[str, Iterator[tuple[np.ndarray, np.ndarray]]] = {}
    for split in splits:
        measured[split] = itertools.islice(_split_images(job, split), job.max_pairs)
    for path in job.outside:
        measured[path] = _input_images(path)
    found: dict[str, Unfamiliar] = {}
    for name, pairs in measured.items():
        values = [familiarity(before, after) for before, after in pairs]
        if not values:
            raise ValueError(f"{name} has no pairs to measure familiarity on")
        found[name] = Unfamiliar(
            pairs=len(values),
            warned=sum(value < FAMILIAR_FROM for value in values),
            lowest=min(values),
            median=float(np.median(values)),
        )
    return found


def _split_images(job: CalibrateJob, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for row in iter_rows(job.pairs, ["pair_id", "before", "after"], split):
        yield _decoded(row, "before"), _decoded(row, "after")


def _input_images(path: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs of an input of any layout that jobs/caption.py takes."""
    source = open_rows(path)
    for chunk in range(source.num_chunks):
        batch = source.read(chunk)
        columns = (batch[name] for name in ("pair_id", "before", "after", "error"))
        for pair_id, before, after, error in zip(*columns, strict=True):
            if error is not None:
                raise ValueError(f"{path}: {pair_id}: {error}")
            row = {"pair_id": pair_id, "before": before, "after": after}
            yield _decoded(row, "before", source.reader), _decoded(row, "after", source.reader)


def _mark(job: CalibrateJob) -> str:
    settings = job.model_dump(mode="json", exclude={"artifact", "pairs", "device", "outside"})
    outside = [open_rows(path).fingerprint for path in job.outside]
    return fingerprint(captioning_identity(job.artifact), read_manifest(job.pairs).fingerprint, settings, outside)


def _told(job: CalibrateJob, captioner: Describer, split: str) -> tuple[list[dict[str, float]], list[bool]]:
    """The inputs of a split's pairs, and whether they changed; pairs of which it is not known are left out."""
    columns = ["pair_id", "before", "after", "change_type", "meta"]
    every = (
        (row, is_changed(row["change_type"], json.loads(row["meta"] or "{}")))
        for row in iter_rows(job.pairs, columns, split)
    )
    known = itertools.islice(((row, changed) for row, changed in every if changed is not None), job.max_pairs)
    rows: list[dict[str, float]] = []
    truth: list[bool] = []
    while batch := list(itertools.islice(known, job.batch_size)):
        images = [[_decoded(row, name) for row, _ in batch] for name in ("before", "after")]
        rows += map(inputs_of, captioner.describe(*images))
        truth += [changed for _, changed in batch]
    if len(set(truth)) < 2:
        kinds = "none that is known to have changed or not" if not truth else (
            "only pairs that changed" if truth[0] else "only pairs that did not change"
        )  # fmt: skip
        raise ValueError(f"{job.pairs}: {split} has {kinds}; a probability of a change needs pairs of both kinds")
    return rows, truth


def _decoded(row: Mapping[str, Any], name: str, reader: Reader | None = None) -> np.ndarray:
    try:
        return decode_image(row[name] if reader is None else cell_bytes(row[name], reader))
    except ImageError as error:
        raise ValueError(f"{row['pair_id']}: {name}: {error}") from None
