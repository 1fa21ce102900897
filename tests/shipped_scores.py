"""Whether the scores that the shipped weights have in ``scores.json`` come out again: on the first pairs of its render
settings, rendered anew.

Another processor rounds differently, in rendering and in the model: single pixels by one grey level, and an answer
where two are about equally probable. Tolerated are as many pairs with another answer as one in 40, but at least one.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from idc.config import load
from idc.data.pipeline import run_local
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from idc.metrics.classification import BINARY, COUNT
from idc.rendered.config import RenderConfig, RenderJob
from idc.rendered.render import open_rendering
from idc.systems.changevg.config import ScoreGuideJob
from idc.systems.changevg.guide_scores import score_guide


def stored_scores(folder: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return scores


def render_settings(folder: Path, scenes: int) -> RenderConfig:
    """The first scenes that the stored scores are of."""
    job = load(RenderJob, None, {"out": "pairs", "render": stored_scores(folder)["render"]})
    return job.render.model_copy(update={"num_scenes": scenes})


def flips(pairs: int) -> int:
    return max(1, round(pairs / 40))


def caption_differences(folder: Path, artifact: Path, which: int) -> list[str]:
    """What differs of a stored check of captions, with these weights."""
    stored = stored_scores(folder)["checks"][which]
    with tempfile.TemporaryDirectory() as work:
        job = RenderJob(out=f"{work}/pairs", render=render_settings(folder, stored["scenes"]))
        run_local(*open_rendering(job), max_reject_share=0.0, progress=False)
        evaluation = run_evaluation(
            EvaluateJob(
                artifact=str(artifact), pairs=f"{work}/pairs", out=f"{work}/evaluation", split="all",
                metrics=("CIDEr",), spice=False, resamples=0, constant_candidates=0, nearest_train_pairs=0,
            )
        )  # fmt: skip
    claims, cider, most = evaluation.hallucination, evaluation.scores["CIDEr"], flips(stored["pairs"])
    lines = [] if evaluation.pairs == stored["pairs"] else [f"{evaluation.pairs} pairs"]
    for name, rate in (("right_type", claims.change_type), ("right_object", claims.object)):
        if rate.total != stored[name]["of"] or abs(rate.right - stored[name]["right"]) > most:
            lines.append(f"{name}: {rate.right} of {rate.total}, stored {stored[name]['right']}")
    # A single pair may count three times the mean.
    if abs(cider - stored["cider"]) > 3 * stored["cider"] * most / stored["pairs"]:
        lines.append(f"CIDEr: {cider:.4f}, stored {stored['cider']:.4f}")
    return lines


def guide_differences(folder: Path, artifact: Path, which: int) -> list[str]:
    """What differs of a stored check of a guide's notes, with these weights."""
    stored = stored_scores(folder)["checks"][which]
    with tempfile.TemporaryDirectory() as work:
        job = RenderJob(out=f"{work}/pairs", render=render_settings(folder, stored["pairs"]))
        run_local(*open_rendering(job), max_reject_share=0.0, progress=False)
        scores = score_guide(ScoreGuideJob(pairs=f"{work}/pairs", guide=str(artifact), out=work))["train"]
    measures = {(answer["type"], answer["of"]): answer for answer in scores["answers"]}
    binary, count = measures[BINARY, ""], measures[COUNT, "building"]
    most, right = flips(stored["pairs"]), round(binary["scores"]["Accuracy"] * binary["questions"])
    lines = [] if scores["pairs"] == stored["pairs"] else [f"{scores['pairs']} pairs"]
    if abs(right - stored["right"]) > most:
        lines.append(f"changed or not: {right} right, stored {stored['right']}")
    if abs(count["scores"]["MAE"] - stored["building_error"]) * stored["pairs"] > most + 1e-6:
        lines.append(f"error of the buildings: {count['scores']['MAE']:.4f}, stored {stored['building_error']:.4f}")
    if abs(scores["map"]["mIoU"] - stored["miou"]) > 0.01:
        lines.append(f"mIoU: {scores['map']['mIoU']:.4f}, stored {stored['miou']:.4f}")
    return lines
