"""The card of a small base model, made by its run: what made it, in a file, and its figures in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from idc.atomic import write_json, write_text
from idc.data.manifest import complete_manifest
from idc.data.rendered.captions import ATTRIBUTES
from idc.training.artifact import CARD
from idc.training.base import full_hash
from idc.vlm.base import find_base
from idc.vlm.config import BaseConfig
from idc.vlm.pretrain_config import TASKS, PretrainVlmJob

RECIPE = "pretraining.json"
"""File in the folder of a base: the settings of its trainings, the first one first, with the fingerprint of the pairs
and the figures of validation; and the hash of the model (:func:`idc.training.base.full_hash`)."""
_LIMITS = (
    "An ordinary folder of transformers. It knows rendered scenes of coloured cubes, spheres and cylinders, in CLEVR's "
    "words, and nothing else. Figures are of validation pairs, those of captions without any tuning."
)
_HEAD = (
    "| steps | share of the steps: tasks | objects listed with all attributes right | size | colour | material | shape "
    "| captions: CIDEr | right type |"
)


def write_card(job: PretrainVlmJob, model: Any, metrics: Mapping[str, float], folder: Path) -> None:
    """Write :data:`RECIPE` and the card into the folder of a model that a run has made."""
    trainings: list[dict[str, Any]] = []
    if job.start is not None and (path := find_base(BaseConfig(source=job.start)).folder / RECIPE).is_file():
        trainings = json.loads(path.read_text(encoding="utf-8"))["trainings"]
    settings = job.model_dump(mode="json", exclude={"name", "runs", "pairs", "start"}, exclude_defaults=True)
    pairs = complete_manifest(job.pairs).fingerprint
    trainings.append({"settings": settings, "pairs": pairs, "validation": dict(metrics)})
    write_json(folder / RECIPE, {"trainings": trainings, "sha256": full_hash(folder)})
    weights = sum(parameter.numel() for parameter in model.parameters())
    write_text(folder / CARD, card_of(f"{job.name}: {weights:,} weights, {model.config.model_type}", trainings))


def card_of(title: str, trainings: Sequence[Mapping[str, Any]]) -> str:
    """The card of a base with the trainings of its :data:`RECIPE`."""
    lines = [
        f"# {title}",
        "",
        f"A small vision-language base, from random weights by `jobs/pretrain_vlm.py`. {_LIMITS}",
        "",
        _HEAD,
        "|---" * 9 + "|",
        *map(_row, trainings),
        "",
        f"`{RECIPE}` has the settings of each training, and the fingerprint of its pairs.",
    ]
    return "\n".join(lines) + "\n"


def _row(training: Mapping[str, Any]) -> str:
    job = PretrainVlmJob.model_validate({**training["settings"], "pairs": training["pairs"]})
    taught = []
    for stage in job.stages:
        weights = zip(TASKS, stage.weights, strict=True)
        taught.append(f"{stage.share:.0%}: " + ", ".join(f"{task} {weight:g}" for task, weight in weights if weight))
    figures = training["validation"]
    shares = [f"{figures[f'listed_{name}']:.1%}" for name in ("object", *ATTRIBUTES)]
    captions = ["", ""]
    if any(stage.compare for stage in job.stages):
        right_type = f"{figures['right_type']:.1%}" if "right_type" in figures else "not known"
        captions = [f"{100 * figures['CIDEr']:.1f}", right_type]
    steps = f"{job.train.steps:,} of {job.train.batch_size}"
    return f"| {' | '.join([steps, '; '.join(taught), *shares, *captions])} |"
