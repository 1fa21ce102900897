"""The trained baseline: another captioner's evaluation of the same pairs, shown among the baselines.

The other baselines need no training, so they show what the data give away. A captioner trained on the same pairs in a
known time shows what any reasonable network learns from them. It is read from its evaluation, which
``jobs/evaluate.py`` wrote; any evaluation may be one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from idc.data.files import Location, locate
from idc.evaluation.record import Baseline, Evaluation, Training, load_evaluation, load_predictions
from idc.systems import supervision_of


def training_of(artifact: str) -> Training | None:
    """How an artifact was trained, from the files in and next to it; None if it has no ``config.json``."""
    config, result = _json(locate(artifact) / "config.json"), _json(locate(artifact).parent / "result.json")
    if config is None:
        return None
    training = result or {}
    return Training(
        system=config["system"],
        samples=training.get("training_samples"),
        seconds=training.get("seconds"),
        cores=training.get("cores"),
        supervision=supervision_of(config["system"], config.get("config", {})),
    )


def read_trained_baseline(
    folder: str, references: Mapping[str, Sequence[str]], split: str, protocol: str, metrics: Sequence[str]
) -> Baseline:
    """The evaluation in ``folder`` as a baseline; arguments and errors as of :func:`load_comparable`."""
    evaluation = load_comparable(folder, references, split, protocol, metrics, "trained_baseline")
    shared = Baseline.model_fields.keys() & Evaluation.model_fields.keys()
    captioner = evaluation.protocol.get("captioner", "captions made elsewhere")
    trained = f" ({evaluation.training})" if evaluation.training else ""
    what = f"the captions of another captioner, {captioner}{trained}"
    return Baseline(what=what, **{name: getattr(evaluation, name) for name in shared})


def load_comparable(
    folder: str, references: Mapping[str, Sequence[str]], split: str, protocol: str, metrics: Sequence[str], field: str
) -> Evaluation:
    """The evaluation in ``folder``, after checking that it may be compared with another one.

    Args:
        references, split, protocol: of the other evaluation's pairs, by id.
        metrics: names of the scores that it must have.
        field: the setting that names the folder, for the error.

    Raises:
        ValueError: it is no evaluation, or one of other pairs, references, split, protocol or metrics.
    """
    evaluation = load_evaluation(folder)
    again = "evaluate that captioner on the same pairs with the same settings, or name another evaluation"

    def refuse(what: str, here: object, there: object) -> ValueError:
        return ValueError(f"{field}: not the same {what}: here {here}, in {folder} {there}; {again}")

    if evaluation.split != split:
        raise refuse("split", split, evaluation.split)
    if (other := evaluation.protocol.get("name")) != protocol:
        raise refuse("protocol", protocol, other)
    if lost := [name for name in metrics if name not in evaluation.scores]:
        raise refuse("metrics", ", ".join(metrics), f"no {', '.join(lost)}")
    there = {row.pair_id: row.references for row in load_predictions(folder)}
    if only := sorted(references.keys() ^ there.keys()):
        raise refuse("pairs", f"{len(references)} pairs", f"{len(there)}; {only[0]!r} is only in one of them")
    if unlike := [name for name in references if list(references[name]) != there[name]]:
        raise refuse("references", repr(list(references[unlike[0]])), f"{there[unlike[0]]!r} for {unlike[0]!r}")
    return evaluation


def _json(file: Location) -> dict[str, Any] | None:
    return json.loads(file.read()) if file.is_file() else None
