"""The job that fits the probability that anything changed (:mod:`idc.captioning.calibration`) and the familiarity of
pairs (:mod:`idc.captioning.familiarity`) and stores both in the artifact."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from idc.captioning.apply import Fault, Pixels, decode_pair, describe_rows
from idc.captioning.calibration import Calibration, Unfamiliar, fit_calibration, inputs_of, quality
from idc.captioning.contract import FAMILIAR_FROM, Captioner
from idc.captioning.familiarity import Familiarity, fit_familiarity, pair_statistics, statistics
from idc.captioning.loading import LOADING, CaptionerLoader, LoadCaptioner, LoadConfig
from idc.config import missing
from idc.data.augmentation import AugmentationConfig, augment
from idc.data.images import ImageError, decode_image
from idc.data.rows import open_rows
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.data.validation.checks import is_changed
from idc.metrics.change_types import says_no_change
from idc.training.artifact import CALIBRATION, add_file, captioning_identity, read_artifact
from idc.training.base import HUB
from idc.util import logs
from idc.util.option_values import DiskPath


class CalibrateJob(LoadConfig):
    """Fit the probability that anything changed and the familiarity of pairs, and store both in an artifact."""

    artifact: DiskPath = Field(min_length=1)
    """Artifact of a captioner; `calibration.json` is added to it, or replaced."""
    pairs: str = Field(min_length=1)
    """Folder of pairs, changed and unchanged ones."""
    more_pairs: tuple[str, ...] = ()
    """Further folders of pairs that the captioner was trained on; their splits count with those of `pairs`."""
    split: Literal["train", "val", "test"] = "val"
    """Split to fit on."""
    report_split: Literal["val", "test"] | None = None
    """Further split on which the quality of the probabilities is measured."""
    max_pairs: int | None = Field(None, ge=1)
    """Number of pairs with a known change flag per folder and split, from the first on. Default: all."""
    batch_size: int = Field(32, ge=1)
    """Pairs per batch of the captioner."""
    familiarity: bool = True
    """Also fit how much a pair resembles the training images, on the training pairs, and calibrate that on `split`:
    pairs that do not resemble them get a warning. Off: the artifact's own stays unchanged."""
    max_training_pairs: int = Field(5000, ge=100)
    """Maximum number of training pairs per folder, from the first on, on which familiarity is fitted."""
    augmented: bool = False
    """Fit familiarity also on an augmented copy of every training pair (the default amounts of
    idc/data/augmentation.py): for a captioner that was trained with such images, so that other light, slight noise and
    small shifts bring no warning."""
    ask_change: bool = True
    """Also ask a vision-language model whether anything changed, and read how much more probable "yes" is than "no",
    which depends less on the captions' wording. Costs a short second prompt for each pair, now and in use; the images
    are encoded once."""
    outside: tuple[str, ...] = ()
    """Inputs of other domains (as `--input` of jobs/caption.py), on which the share of warnings is measured."""
    unlike: tuple[str, ...] = ()
    """Inputs of another domain, as `outside`, that must get the warning although their statistics resemble those of the
    training images, such as real pairs of a captioner of rendered ones: familiarity is fitted to tell them apart. Keep
    others for `outside`, which show whether that holds for new ones."""

    def errors(self) -> Iterator[str]:
        if self.split == "train":
            yield "split: the captioner learnt the training pairs and is overconfident on them; calibrate on val"
        if self.report_split == self.split:
            yield f"report_split: {self.split} is the split to fit on; report on another one"
        for name in ("outside", "unlike", "augmented"):
            if getattr(self, name) and not self.familiarity:
                yield f"{name}: concerns familiarity, which is off; set familiarity=true"

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders of pairs."""
        return (self.pairs, *self.more_pairs)

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if self.artifact.startswith(HUB):
            yield (
                f"artifact: {self.artifact} is made where it is used; make one that keeps its calibration: python "
                f"jobs/wrap_vlm.py base.source={self.artifact.removeprefix(HUB).partition('@')[0]} out=FOLDER"
            )
        else:
            for fault in missing(self.artifact, "artifact"):
                yield f"{fault}; the calibration is written into the artifact, so give its folder, not another name"
        yield from missing(self.pairs, "pairs")
        for name in ("more_pairs", "outside", "unlike"):
            for path in getattr(self, name):
                yield from missing(path, name)


def finished_calibration(job: CalibrateJob) -> Calibration | None:
    """The calibration in the artifact, if it was fitted with these weights, pairs and settings; else None.

    Raises:
        ValueError: the folder is not an artifact, or there are no pairs.
    """
    read_artifact(job.artifact)
    calibration = Calibration.read(job.artifact)
    if job.familiarity and Familiarity.read(job.artifact) is None:
        return None
    return calibration if calibration is not None and calibration.fingerprint == _mark(job) else None


def calibrate(job: CalibrateJob, load: LoadCaptioner | None = None) -> Calibration | None:
    """Describe the pairs, fit, measure, and add the files to the artifact. Returns None if ``job.split`` lacks changed
    or unchanged pairs and only the familiarity could be fitted; a ValueError says what else is missing. ``load``: loads
    the captioner; by default that of ``job.artifact``."""
    captioner = (load or CaptionerLoader(job.artifact, job))()
    captioner.asks_change = job.ask_change
    splits: list[str] = [job.split] if job.report_split is None else [job.split, job.report_split]
    measured = {split: _measure(job, captioner, split) for split in splits}
    fitted_on = measured[job.split]
    for split, measurement in measured.items():
        if fault := _one_kind(job, split, measurement.changed):
            if split != job.split or not fitted_on.statistics:
                raise ValueError(fault)
            logs.event("no_probability", f"{fault}; only the familiarity is fitted", "warning")
            _fit_familiarity(job, fitted_on.statistics).save(job.artifact)
            return None
    regression = fit_calibration(fitted_on.inputs, fitted_on.changed)
    unfamiliar: dict[str, Unfamiliar] = {}
    if job.familiarity:
        familiarity = _fit_familiarity(job, fitted_on.statistics)
        inside = {split: list(map(familiarity.distance, part.statistics)) for split, part in measured.items()}
        outside = {
            path: list(map(familiarity.distance, _input_statistics(path))) for path in (*job.unlike, *job.outside)
        }
        for name, distances in (inside | outside).items():
            held_out = inside[splits[-1]] if name in outside else None
            unfamiliar[name] = _unfamiliar(name, familiarity, distances, held_out)
        familiarity.save(job.artifact)
    calibration = Calibration(
        fingerprint=_mark(job),
        source={"pairs": ", ".join(job.folders), "split": job.split, "count": len(fitted_on.changed)},
        quality={},
        unfamiliar=unfamiliar,
        **regression,
    )
    for split, measurement in measured.items():
        calibration.quality[split] = quality(map(calibration.probability, measurement.inputs), measurement.changed)
    add_file(job.artifact, CALIBRATION, calibration.model_dump_json(indent=1) + "\n")
    return calibration


def _fit_familiarity(job: CalibrateJob, held_out: Sequence[np.ndarray]) -> Familiarity:
    unlike = itertools.chain.from_iterable(map(_input_statistics, job.unlike))
    return fit_familiarity(_training_statistics(job), held_out, unlike)


def _training_statistics(job: CalibrateJob) -> Iterator[np.ndarray]:
    """The statistics of the training pairs for the familiarity, and of their augmented copies."""
    rows = itertools.chain.from_iterable(
        itertools.islice(iter_rows(path, ["pair_id", "before", "after"], "train"), job.max_training_pairs)
        for path in job.folders
    )
    first = next(rows, None)
    if first is None:
        raise ValueError(
            f"{', '.join(job.folders)} has no training pairs, on which familiarity is fitted; give the folder that the "
            "captioner was trained on, or set familiarity=false"
        )
    statistics_of = functools.lru_cache(maxsize=2)(lambda data: statistics(decode_image(data)))  # pairs share images
    for number, row in enumerate(itertools.chain([first], rows)):
        try:
            yield np.stack([statistics_of(row["before"]), statistics_of(row["after"])])
            if job.augmented:
                images = decode_image(row["before"]), decode_image(row["after"])
                changed = augment(*images, AugmentationConfig(), np.random.default_rng((0, number)))
                yield pair_statistics(*changed.images)
        except ImageError as error:
            raise ValueError(f"{row['pair_id']}: {error}") from None


def _unfamiliar(
    name: str, familiarity: Familiarity, distances: Sequence[np.ndarray], held_out: Sequence[np.ndarray] | None = None
) -> Unfamiliar:
    """``held_out``: distances with which those of an input of another domain are compared (AUC)."""
    if not distances:
        raise ValueError(f"{name} has no pairs to measure familiarity on")
    auc = None
    if held_out is not None:
        from sklearn.metrics import roc_auc_score

        outside = np.repeat([0, 1], [len(held_out), len(distances)])
        auc = float(roc_auc_score(outside, [farther for _, farther in (*held_out, *distances)]))
    values = [familiarity.share(distance) for distance in distances]
    return Unfamiliar(
        pairs=len(values),
        warned=sum(value < FAMILIAR_FROM for value in values),
        lowest=min(values),
        median=float(np.median(values)),
        auc=auc,
    )


def _input_statistics(path: str) -> Iterator[np.ndarray]:
    """The statistics of the pairs of an input in any layout that jobs/caption.py takes."""
    source = open_rows(path)
    for chunk in range(source.num_chunks):
        batch = source.read(chunk)
        columns = (batch[name] for name in ("pair_id", "before", "after", "error"))
        for pair_id, before, after, error in zip(*columns, strict=True):
            if error is not None:
                raise ValueError(f"{path}: {pair_id}: {error}")
            yield pair_statistics(*_readable(pair_id, decode_pair(before, after, source.reader)).images)


def _mark(job: CalibrateJob) -> str:
    settings = (
        job.model_dump(mode="json", exclude={"artifact", "pairs", "more_pairs", "outside", "unlike", *LOADING})
        | job.loading_identity()
    )
    outside, unlike = ([open_rows(path).fingerprint for path in paths] for paths in (job.outside, job.unlike))
    pairs = [read_manifest(path).fingerprint for path in job.folders]
    return fingerprint(captioning_identity(job.artifact), pairs, settings, outside, unlike)


class _Measured(NamedTuple):
    """The measurements of a split's pairs with a change flag or captions; others are left out."""

    inputs: list[dict[str, float]]
    """:func:`inputs_of` each pair."""
    changed: list[bool]
    statistics: list[np.ndarray]
    """:func:`idc.captioning.familiarity.pair_statistics` of each pair; empty without familiarity."""


def _measure(job: CalibrateJob, captioner: Captioner, split: str) -> _Measured:
    columns = ["pair_id", "before", "after", "change_type", "meta", "captions"]
    every = (((row, _changed(row)) for row in iter_rows(path, columns, split)) for path in job.folders)
    flagged = itertools.chain.from_iterable(
        itertools.islice(((row, changed) for row, changed in rows if changed is not None), job.max_pairs)
        for rows in every
    )
    measured = _Measured([], [], [])
    with ThreadPoolExecutor(2) as pool:
        decode = lambda item: decode_pair(item[0]["before"], item[0]["after"])  # noqa: E731
        for (row, changed), result in describe_rows(captioner, flagged, decode, pool, job.batch_size):
            pixels = _readable(row["pair_id"], result.pixels)
            assert result.description is not None
            measured.inputs.append(inputs_of(result.description))
            measured.changed.append(changed)
            if job.familiarity:
                measured.statistics.append(pair_statistics(*pixels.images))
    return measured


def _one_kind(job: CalibrateJob, split: str, changed: Sequence[bool]) -> str | None:
    """Why no probability can be fitted or measured on pairs with these flags; None if it can."""
    if len(set(changed)) == 2:
        return None
    kinds = "no pairs with captions or a known change flag" if not changed else (
        "only pairs that changed" if changed[0] else "only pairs that did not change"
    )  # fmt: skip
    return f"{', '.join(job.folders)}: {split} has {kinds}; a probability of a change needs pairs of both kinds"


def _changed(row: Mapping[str, Any]) -> bool | None:
    """The annotated change flag of a pair; if absent, whether most of its captions name a change; None without any."""
    flag = is_changed(row["change_type"], json.loads(row["meta"] or "{}"))
    if flag is None and (captions := row["captions"]):
        flag = 2 * sum(map(says_no_change, captions)) < len(captions)
    return flag


def _readable(pair_id: str, images: Pixels | Fault) -> Pixels:
    if isinstance(images, Fault):
        raise ValueError(f"{pair_id}: {images}")
    return images
