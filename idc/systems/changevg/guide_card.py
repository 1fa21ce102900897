"""A guide in one folder with its figures (``scores.json``) and a card (``README.md``) that states them: how
``idc/weights/satellite_guide`` is made, by ``jobs/make_guide_card.py``.

The figures are those of an evaluation and of notes of this artifact, and of a check that is repeated in seconds: pairs
rendered anew from stored settings, and the notes on them scored (:func:`check_guide`, :meth:`GuideCheck.differences`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from idc.captioning.calibration import Calibration
from idc.config import load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderConfig, RenderJob
from idc.data.rendered.render import open_rendering
from idc.data.store import read_manifest
from idc.evaluation.card import SCORES, calibrated, evaluation_of, write_folder
from idc.metrics.classification import BINARY, COUNT, LOCATION, Measures
from idc.provenance import commit
from idc.systems.changevg.config import RunGuideJob
from idc.systems.changevg.guide_card_config import GuideCardJob
from idc.systems.changevg.notes_job import SCORES as NOTES_SCORES
from idc.systems.changevg.notes_job import open_notes, score_notes
from idc.training.artifact import (
    Artifact,
    artifact_identity,
    captioning_identity,
)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NotesFigures(_Record):
    """The scores of a guide's notes on the pairs of a split, as :func:`idc.systems.changevg.notes_job.score_notes`
    returns them."""

    pairs: int
    map: dict[str, float]
    map_unchanged: dict[str, float]
    answers: list[Measures]

    def answer(self, kind: str, of: str = "") -> Measures:
        """The measures of a type of question, of a class."""
        return next(measures for measures in self.answers if (measures.type, measures.of) == (kind, of))

    @property
    def right(self) -> int:
        """Pairs whose notes are right about whether anything changed."""
        binary = self.answer(BINARY)
        return round(binary.scores["Accuracy"] * binary.questions)


class GuideCheck(_Record):
    """Scores on the first pairs of the render settings, rendered anew."""

    pairs: int
    right: int
    """Pairs whose notes are right about whether anything changed."""
    miou: float
    building_error: float
    """Mean absolute error of the number of buildings."""

    def differences(self, recomputed: GuideCheck) -> list[str]:
        """Differences of ``recomputed`` from this beyond what another processor's rounding explains; one line each.

        Another processor rounds differently, in rendering and in the model, so that single pixels change their class.
        Tolerated are as many pairs with another answer as one in 40, but at least one; the same number of buildings
        counted otherwise; and 1 % in mIoU.
        """
        if self.pairs != recomputed.pairs:
            return [f"{recomputed.pairs} pairs, not {self.pairs}"]
        flips = max(1, round(self.pairs / 40))
        lines = []
        if abs(self.right - recomputed.right) > flips:
            lines.append(f"changed or not: {recomputed.right} right of {self.pairs}, stored {self.right}")
        if abs(self.building_error - recomputed.building_error) * self.pairs > flips + 1e-6:
            lines.append(f"error of the buildings: {recomputed.building_error:.4f}, stored {self.building_error:.4f}")
        if abs(self.miou - recomputed.miou) > 0.01:
            lines.append(f"mIoU: {recomputed.miou:.4f}, stored {self.miou:.4f}")
        return lines


class GuideScores(_Record):
    """The figures of the weights of a guide."""

    artifact: str
    """:func:`idc.training.artifact.captioning_identity` of the artifact that was evaluated."""
    commit: str
    recipe: tuple[str, ...]
    captions: dict[str, float]
    """Metric -> score of the captions of the test pairs."""
    intervals: dict[str, tuple[float, float]]
    """Metric -> 95 % bootstrap interval."""
    baselines: dict[str, dict[str, float]]
    """Baseline -> metric -> score."""
    notes: NotesFigures
    """On the same pairs."""
    real: NotesFigures
    """On real pairs."""
    render: RenderConfig
    checks: tuple[GuideCheck, ...]

    @classmethod
    def read(cls, artifact: Path | str) -> GuideScores:
        """Of an artifact that has them."""
        return cls.model_validate_json((Path(artifact) / SCORES).read_text(encoding="utf-8"))


def make_guide_card(job: GuideCardJob) -> Path:
    """Check the inputs, run the check, and write the folder. Returns it.

    Raises:
        ValueError: evaluation or notes are of another artifact; the artifact is no guide, or not calibrated.
    """
    artifact, calibration = calibrated(job.artifact, system="changevg")
    identity = captioning_identity(job.artifact)
    evaluation = evaluation_of(job.evaluation, identity)
    render = load(
        RenderJob, job.scenes, {"out": "pairs", "render.seed": job.seed, "render.val_share": 0, "render.test_share": 0}
    ).render
    scores = GuideScores(
        artifact=identity,
        commit=commit(),
        recipe=job.recipe,
        captions=evaluation.scores,
        intervals={name: (interval.low, interval.high) for name, interval in evaluation.intervals.items()},
        baselines={name: baseline.scores for name, baseline in evaluation.baselines.items()},
        notes=notes_figures(job.notes, job.artifact),
        real=notes_figures(job.real, job.artifact),
        render=render,
        checks=tuple(check_guide(job.artifact, render, pairs) for pairs in sorted(job.check_pairs)),
    )
    return write_folder(job, artifact, scores, lambda copied: guide_card(job, scores, calibration, copied))


def notes_figures(folder: str, artifact: str) -> NotesFigures:
    """The scores of the notes of this artifact on the test split of a folder.

    Raises:
        ValueError: the notes are of another artifact, or on no test pairs with masks.
    """
    if read_manifest(folder).extra.get("guide") != [artifact_identity(artifact)]:
        raise ValueError(f"{folder} has notes of another artifact; run jobs/run_guide.py again with --overwrite")
    of_splits = json.loads((Path(folder) / NOTES_SCORES).read_text(encoding="utf-8"))
    if "map" not in of_splits.get("test", {}):
        raise ValueError(f"{folder} has no notes on pairs of split test with masks; give such a folder")
    return NotesFigures.model_validate(of_splits["test"])


def check_guide(artifact: str, render: RenderConfig, pairs: int) -> GuideCheck:
    """Render the first pairs, all as training pairs, take the notes of the artifact on them, and score these. Leaves no
    file."""
    with tempfile.TemporaryDirectory() as folder:
        rendered, noted = f"{folder}/pairs", f"{folder}/noted"
        job = RenderJob(out=rendered, render=render.model_copy(update={"num_scenes": pairs}))
        run_local(*open_rendering(job), max_reject_share=0.0, name="rendering", progress=False)
        notes = RunGuideJob(pairs=rendered, guide=artifact, out=noted)
        run_local(*open_notes(notes), max_reject_share=0.0, name="notes", progress=False)
        scores = NotesFigures.model_validate(score_notes(noted, notes.regions)["train"])
    return GuideCheck(
        pairs=scores.pairs,
        right=scores.right,
        miou=scores.map["mIoU"],
        building_error=scores.answer(COUNT, "building").scores["MAE"],
    )


def guide_card(job: GuideCardJob, scores: GuideScores, calibration: Calibration, artifact: Artifact) -> str:
    """The card, Markdown."""
    parameters = sum(tensor.numel() for tensor in artifact.state_dict().values())
    low, high = scores.intervals["CIDEr"]
    captions, baselines = scores.captions, scores.baselines
    best_baseline = max(baselines, key=lambda name: baselines[name]["CIDEr"])
    lines = [
        f"# {job.title}", "",
        "Of two satellite images: where roads and buildings changed, how many of each, and a sentence. "
        f"{parameters:,} weights.", "",
        f"Trained on {artifact.trained_on}, which this program draws; one seed.", "",
        "```", "python jobs/caption.py before.tif after.tif",
        "python jobs/caption_scene.py before.tif after.tif --out FOLDER --local",
        "python jobs/caption.py --artifact shipped-satellite before.png after.png", "```", "",
        "The first two use these weights for images with a georeference if no captioner is named. "
        f"`{SCORES}` has all figures.", "",
        "## Scores", "",
        f"{scores.notes.pairs} rendered test pairs, half of them unchanged; shares times 100, errors of counts as they "
        "are.", "",
        "| | the guide | baseline |", "|---|---|---|",
        *_notes_rows(scores.notes),
        f"| caption: CIDEr (95 %, bootstrap) | {_share(captions['CIDEr'])} ({_share(low)} to {_share(high)}) "
        f"| {_share(baselines[best_baseline]['CIDEr'])} ({best_baseline}) |",
        f"| caption: BLEU-4 | {_share(captions['BLEU-4'])} | {_share(baselines[best_baseline]['BLEU-4'])} "
        f"({best_baseline}) |", "",
        "## On real pairs", "",
        f"{scores.real.pairs} real pairs with masks, none of which it has learned. Their masks are of one class, which "
        "counts as buildings here:", "",
        "| | the guide | baseline |", "|---|---|---|",
        *_notes_rows(scores.real, classes=("building",)), "",
        *(part for sentence in job.looked_at for part in (sentence, "")),
    ]  # fmt: skip
    if calibration.unfamiliar:
        lines += [
            "## What it does not know", "",
            "Pairs unlike the training images get a warning; how many did:", "",
            "| pairs | with a warning |", "|---|---|",
            *(
                f"| {Path(name).stem} | {counts.warned} of {counts.pairs} ({_share(counts.warned / counts.pairs)} %) |"
                for name, counts in calibration.unfamiliar.items()
            ), "",
        ]  # fmt: skip
    lines += ["## Limits", "", *(f"- {line}" for line in job.limits), ""]
    lines += ["## Made with", "", "```", *scores.recipe, "```", ""]
    return "\n".join(lines)


def _notes_rows(figures: NotesFigures, classes: tuple[str, ...] = ("building", "road")) -> list[str]:
    binary = figures.answer(BINARY)
    rows = [
        f"| changed or not, by the map: accuracy | {_share(binary.scores['Accuracy'])} ({figures.right} of "
        f'{binary.questions}) | {_share(binary.baseline["Accuracy"])} ("{binary.baseline_answer}") |',
        f"| map: mIoU | {_share(figures.map['mIoU'])} | {_share(figures.map_unchanged['mIoU'])} (no change anywhere) |",
        *(_iou_row(name, figures.map) for name in classes),
    ]
    for name in classes:
        count, position = figures.answer(COUNT, name), figures.answer(LOCATION, name)
        rows += [
            f"| {name}s: mean absolute error of the count | {count.scores['MAE']:.3f} | {count.baseline['MAE']:.3f} "
            f'("{count.baseline_answer}") |',
            f"| {name}s: positions, micro F1 | {_share(position.scores['Micro F1'])} "
            f'| {_share(position.baseline["Micro F1"])} ("{position.baseline_answer}") |',
        ]
    return rows


def _iou_row(name: str, scores: Mapping[str, Any]) -> str:
    return f"| map: IoU of {name}s | {_share(scores[f'IoU of {name}'])} | 0.0 |"


def _share(value: float) -> str:
    return f"{100 * value:.1f}"
