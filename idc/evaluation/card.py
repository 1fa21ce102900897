"""The card of weights that come with the program: an artifact with its figures, in a file and in words.

The figures are those of evaluations made before (``jobs/evaluate.py``, ``jobs/robustness.py``), and of a check that is
repeated in seconds: pairs rendered anew from stored settings, captioned and scored (:func:`check`,
:meth:`Check.differences`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from idc.atomic import write_text
from idc.captioning.calibration import Calibration
from idc.config import load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderConfig, RenderJob
from idc.data.rendered.render import open_rendering
from idc.evaluation import job as evaluation_job
from idc.evaluation.card_config import CardJob, CardSettings
from idc.evaluation.config import EvaluateJob
from idc.evaluation.record import EVALUATION, Evaluation
from idc.evaluation.record import load_evaluation as load_evaluation
from idc.metrics.hallucination import Rate
from idc.provenance import commit
from idc.training.artifact import (
    CALIBRATION,
    CARD,
    CONFIG,
    Artifact,
    add_file,
    captioning_identity,
    put_in_place,
    read_artifact,
)

SCORES = "scores.json"
"""File of the figures in the artifact."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figures(_Record):
    """The figures of one evaluation."""

    pairs: int
    split: str
    right_type: Rate
    """Captions that name the pair's change type, of all pairs."""
    right_object: Rate
    """Captions all of whose words about the changed object are true, of the changed pairs."""
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """Metric -> 95 % bootstrap interval."""
    baselines: dict[str, dict[str, float]]
    """Baseline (or ``upper bound``) -> metric -> score."""


class Check(_Record):
    """Scores on the first scenes of the render settings, rendered anew."""

    scenes: int
    pairs: int
    right_type: Rate
    right_object: Rate
    cider: float

    def differences(self, recomputed: Check) -> list[str]:
        """Differences of ``recomputed`` from this beyond what another processor's rounding explains; one line each.

        Another processor rounds differently, in rendering and in the model: single pixels by one grey level, and a
        caption where two words are about equally probable. Tolerated are as many pairs with another caption as one in
        40, but at least one; in CIDEr a single pair may count three times the mean.
        """
        if (self.scenes, self.pairs) != (recomputed.scenes, recomputed.pairs):
            return [f"{recomputed.pairs} pairs of {recomputed.scenes} scenes, not {self.pairs} of {self.scenes}"]
        flips = max(1, round(self.pairs / 40))
        lines = []
        for name in ("right_type", "right_object"):
            stored, new = getattr(self, name), getattr(recomputed, name)
            if stored.of != new.of or abs(stored.right - new.right) > flips:
                lines.append(f"{name}: {new.right} of {new.of}, stored {stored.right} of {stored.of}")
        if abs(self.cider - recomputed.cider) > (most := 3 * self.cider * flips / self.pairs):
            lines.append(f"CIDEr: {recomputed.cider:.4f}, stored {self.cider:.4f}, tolerated are {most:.4f}")
        return lines


class ShippedScores(_Record):
    """The figures of the weights of an artifact."""

    artifact: str
    """:func:`idc.training.artifact.captioning_identity` of the artifact that was evaluated."""
    commit: str
    recipe: tuple[str, ...]
    evaluations: dict[str, Figures]
    robustness: dict[str, Figures] = {}
    """Corruption and severity, or ``clean`` -> figures."""
    render: RenderConfig
    checks: tuple[Check, ...]

    @classmethod
    def read(cls, artifact: Path | str) -> ShippedScores:
        """Of an artifact that has them."""
        return cls.model_validate_json((Path(artifact) / SCORES).read_text(encoding="utf-8"))


def make_card(job: CardJob) -> Path:
    """Check the evaluations, run the check, and write the folder. Returns it.

    Raises:
        ValueError: an evaluation is of another artifact, or of pairs whose truth is not known; the artifact is not
            calibrated.
    """
    artifact, calibration = calibrated(job.artifact)
    identity = captioning_identity(job.artifact)
    render = load(
        RenderJob, job.scenes, {"out": "pairs", "render.seed": job.seed, "render.ordered_pairs": False}
    ).render
    conditions = sorted(Path(job.robustness).glob(f"*/{EVALUATION}")) if job.robustness is not None else []
    scores = ShippedScores(
        artifact=identity,
        commit=commit(),
        recipe=job.recipe,
        evaluations={name: card_figures(folder, identity) for name, folder in job.evaluations.items()},
        robustness={path.parent.name: card_figures(path.parent, identity) for path in conditions},
        render=render,
        checks=tuple(check(job.artifact, render, scenes) for scenes in sorted(job.check_scenes)),
    )
    return write_folder(job, artifact, scores, lambda copied: card(job, scores, calibration, copied))


def calibrated(folder: str, system: str | None = None) -> tuple[Artifact, Calibration]:
    """An artifact and its calibration.

    Raises:
        ValueError: it is none, is of another system, or not calibrated.
    """
    artifact, calibration = read_artifact(folder, system=system), Calibration.read(folder)
    if calibration is None:
        raise ValueError(f"{folder} is not calibrated; run jobs/calibrate.py artifact={folder} pairs=...")
    return artifact, calibration


def write_folder(job: CardSettings, artifact: Artifact, scores: BaseModel, text: Callable[[Artifact], str]) -> Path:
    """The folder of a card: a portable copy of the artifact, its scores, and the card.

    Args:
        text: of the card, from the copy.
    """
    out = Path(job.out)
    partial = portable_copy(artifact, out, job.trained_on)
    add_file(partial, SCORES, scores.model_dump_json(indent=1) + "\n")
    add_file(partial, CARD, text(read_artifact(partial)))
    put_in_place(partial, out)
    return out


def portable_copy(artifact: Artifact, out: Path, trained_on: str | None) -> Path:
    """A copy of a calibrated artifact next to ``out``, without paths of this machine; to be completed, and then
    :func:`put_in_place`.

    Args:
        trained_on: training data in words; by default as in the artifact.
    """
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in (CONFIG, *artifact.files):
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.path / name, partial / name)
    new = {} if trained_on is None else {"trained_on": trained_on}
    for name, changes in ((CONFIG, new), (CALIBRATION, {})):
        value = _portable(json.loads((partial / name).read_text(encoding="utf-8"))) | changes
        write_text(partial / name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    return partial


def evaluation_of(folder: Path | str, identity: str) -> Evaluation:
    """An evaluation of the artifact with this identity.

    Raises:
        ValueError: it is one of another.
    """
    evaluation = load_evaluation(folder)
    if evaluation.artifact != identity:
        raise ValueError(f"{folder} is an evaluation of another artifact; run jobs/evaluate.py again with --overwrite")
    return evaluation


def card_figures(folder: Path | str, identity: str) -> Figures:
    """The figures of an evaluation of the artifact with this identity."""
    evaluation = evaluation_of(folder, identity)
    if evaluation.hallucination is None:
        raise ValueError(f"{folder}: the truth about its pairs is not known; give evaluations on rendered pairs")
    baselines = {name: baseline.scores for name, baseline in evaluation.baselines.items()}
    if evaluation.ceiling is not None:
        baselines["upper bound"] = evaluation.ceiling.scores
    return Figures(
        pairs=evaluation.pairs,
        split=evaluation.split,
        right_type=evaluation.hallucination.change_type,
        right_object=evaluation.hallucination.object,
        scores=evaluation.scores,
        intervals={name: (interval.low, interval.high) for name, interval in evaluation.intervals.items()},
        baselines=baselines,
    )


def check(artifact: str, render: RenderConfig, scenes: int) -> Check:
    """Render the first scenes, caption their pairs with the artifact, and score them. Needs no Java beyond that of the
    tokens; leaves no file."""
    with tempfile.TemporaryDirectory() as folder:
        pairs, out = f"{folder}/pairs", f"{folder}/evaluation"
        job = RenderJob(out=pairs, render=render.model_copy(update={"num_scenes": scenes}))
        run_local(*open_rendering(job), max_reject_share=0.0, name="rendering", progress=False)
        evaluation = evaluation_job.run_evaluation(
            EvaluateJob(
                artifact=artifact, pairs=pairs, out=out, split="all", metrics=("CIDEr",), spice=False, resamples=0,
                constant_candidates=0, nearest_train_pairs=0,
            )
        )  # fmt: skip
    assert evaluation.hallucination is not None
    return Check(
        scenes=scenes,
        pairs=evaluation.pairs,
        right_type=evaluation.hallucination.change_type,
        right_object=evaluation.hallucination.object,
        cider=evaluation.scores["CIDEr"],
    )


def card(job: CardJob, scores: ShippedScores, calibration: Calibration, artifact: Artifact) -> str:
    """The card, Markdown."""
    parameters = sum(tensor.numel() for tensor in artifact.state_dict().values())
    lines = [
        f"# {job.title}", "",
        f"Describes in words what changed between two images. {parameters:,} weights.", "",
        f"Trained on {artifact.trained_on}.", "",
        "```", "python jobs/caption.py before.png after.png", "make serve", "```", "",
        "Both use these weights where no other captioner was trained. `" + SCORES + "` has all figures.", "",
        "## Scores", "",
        "Right type: the caption names the kind of change, of all pairs. Right object: all that it says about the "
        "changed object is true, of the changed pairs. With 95 % intervals (Wilson; of CIDEr: bootstrap).", "",
        "| pairs | right type | right object | CIDEr |", "|---|---|---|---|",
        *(_score_row(name, evaluation) for name, evaluation in scores.evaluations.items()), "",
        "CIDEr of the baselines on the same pairs:", "",
        *_baseline_rows(scores.evaluations), "",
    ]  # fmt: skip
    if scores.robustness:
        lines += ["## Robustness", "", *_robustness_rows(scores.robustness), ""]
    if calibration.unfamiliar:
        lines += [
            "## What it does not know", "",
            "Pairs unlike the training images get a warning; how many did:", "",
            "| pairs | with a warning | AUC against held-out pairs |", "|---|---|---|",
            *(
                f"| {Path(name).stem} | {counts.warned} of {counts.pairs} ({100 * counts.warned / counts.pairs:.1f} %) "
                f"| {'' if counts.auc is None else f'{counts.auc:.4f}'} |"
                for name, counts in calibration.unfamiliar.items()
            ), "",
        ]  # fmt: skip
    if job.limits:
        lines += ["## Limits", "", *(f"- {line}" for line in job.limits), ""]
    lines += ["## Made with", "", "```", *scores.recipe, "```", ""]
    return "\n".join(lines)


def _portable(value: Any) -> Any:
    """A JSON value in which absolute paths, which mean nothing on another machine, are replaced by their names."""
    if isinstance(value, dict):
        return {_portable(key): _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _rate(rate: Rate) -> str:
    """In percent, with its 95 % interval (Wilson) and the chance."""
    low, high = rate.interval(rate.of)
    interval = f"{100 * low:.1f} to {100 * high:.1f}"
    return f"{100 * rate.rate:.1f} % ({rate.right} of {rate.of}; {interval}; chance {100 * rate.chance:.0f} %)"


def _score_row(name: str, evaluation: Figures) -> str:
    cider = f"{100 * evaluation.scores['CIDEr']:.1f}"
    if "CIDEr" in evaluation.intervals:
        low, high = evaluation.intervals["CIDEr"]
        cider += f" ({100 * low:.1f} to {100 * high:.1f})"
    return (
        f"| {name}, {evaluation.pairs} | {_rate(evaluation.right_type)} | {_rate(evaluation.right_object)} | {cider} |"
    )


def _baseline_rows(evaluations: Mapping[str, Figures]) -> list[str]:
    columns = list(dict.fromkeys(name for evaluation in evaluations.values() for name in evaluation.baselines))
    rows = [f"| pairs | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name, evaluation in evaluations.items():
        cells: list[Any] = [evaluation.baselines.get(column, {}).get("CIDEr") for column in columns]
        rows.append(f"| {name} | {' | '.join('' if cell is None else f'{100 * cell:.1f}' for cell in cells)} |")
    return rows


def _robustness_rows(conditions: Mapping[str, Figures]) -> list[str]:
    clean = conditions.get("clean")
    rows = ["| corruption | right type | right object | CIDEr | of clean |", "|---|---|---|---|---|"]
    for name, evaluation in conditions.items():
        cider = evaluation.scores["CIDEr"]
        share = "" if clean is None or not clean.scores["CIDEr"] else f"{100 * cider / clean.scores['CIDEr']:.0f} %"
        rates = f"{100 * evaluation.right_type.rate:.1f} % | {100 * evaluation.right_object.rate:.1f} %"
        rows.append(f"| {name} | {rates} | {100 * cider:.1f} | {share} |")
    return rows
