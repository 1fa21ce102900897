"""Inputs of a comparison of measures: evaluations of the same rendered pairs, the truth, and planted errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idc.atomic import write_text
from idc.data.store import iter_rows
from idc.evaluation.baselines import CONSTANT, NEAREST
from idc.evaluation.config import CompareMeasuresJob
from idc.evaluation.planted_captions import ERRORS, planted_pairs
from idc.evaluation.record import Evaluation, ScoredCaption, load_evaluation, load_predictions
from idc.metrics.difference_lists import TrueDifferences, true_differences
from idc.progress import tracked

MEASURES = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr")
"""Measures that every evaluation must have."""


@dataclass(frozen=True)
class Inputs:
    """Evaluations of the same pairs.

    Attributes:
        evaluations: system -> evaluation; ``rows``: system -> pair -> caption with its scores.
        references: pair -> references.
        truths: pair -> true differences.
    """

    evaluations: dict[str, Evaluation]
    rows: dict[str, dict[str, ScoredCaption]]
    references: dict[str, list[str]]
    truths: dict[str, TrueDifferences]

    @property
    def ids(self) -> list[str]:
        return list(self.references)


def read_inputs(job: CompareMeasuresJob) -> Inputs:
    """The evaluations, and the truth of their pairs.

    Raises:
        ValueError: names the folder that is of other pairs or another protocol, lacks scores, or has no truth.
    """
    evaluations = {name: load_evaluation(folder) for name, folder in job.evaluations.items()}
    rows = {name: {row.pair_id: row for row in load_predictions(folder)} for name, folder in job.evaluations.items()}
    first = next(iter(evaluations))
    references = {pair: row.references for pair, row in rows[first].items()}
    for name, folder in job.evaluations.items():
        protocol = evaluations[name].protocol
        if protocol.get("name") != "coco":
            raise ValueError(f"{folder} follows the protocol {protocol.get('name')!r}; evaluate with protocol=coco")
        if lacking := [metric for metric in MEASURES if metric not in evaluations[name].scores]:
            raise ValueError(f"{folder} has no {', '.join(lacking)}; evaluate with all metrics")
        if rows[name].keys() != references.keys():
            raise ValueError(f"{folder} is not of the same pairs as {job.evaluations[first]}")
        if other := [pair for pair, row in rows[name].items() if row.references != references[pair]]:
            raise ValueError(
                f"{folder} has other references of {len(other)} pairs than {job.evaluations[first]}: {other[0]}"
            )
    truths: dict[str, TrueDifferences] = {}
    for row in iter_rows(job.pairs, ["pair_id", "captions", "change_type", "meta"]):
        if (pair := row["pair_id"]) in references:
            if list(row["captions"]) != references[pair]:
                raise ValueError(f"{job.pairs} has other references of {pair} than {job.evaluations[first]}")
            truth = true_differences(row["change_type"], json.loads(row["meta"] or "{}"))
            if truth is None or truth.views is None:
                raise ValueError(
                    f"{job.pairs} has no truth: the objects and cameras of {pair} are not known; give a folder of "
                    "`jobs/render.py`"
                )
            truths[pair] = truth
    if lost := [pair for pair in references if pair not in truths]:
        raise ValueError(f"{job.pairs} lacks {len(lost)} evaluated pairs: {', '.join(lost[:5])}")
    return Inputs(evaluations, rows, references, truths)


# ------------------------------------------------------------------------------------------------------------ captions


def captions_of_systems(inputs: Inputs, baselines: bool) -> dict[str, dict[str, str]]:
    """System -> pair -> caption; the baselines, if all pairs have them, last."""
    captions = {name: {pair: rows[pair].caption for pair in inputs.ids} for name, rows in inputs.rows.items()}
    first = next(iter(inputs.evaluations))
    evaluation, rows = inputs.evaluations[first], inputs.rows[first]
    if baselines and CONSTANT in evaluation.baselines:
        captions[CONSTANT] = dict.fromkeys(inputs.ids, evaluation.baselines[CONSTANT].caption or "")
    nearest = {pair: row.nearest for pair in inputs.ids if (row := rows[pair]).nearest is not None}
    if baselines and len(nearest) == len(inputs.ids):
        captions[NEAREST] = {pair: str(caption) for pair, caption in nearest.items()}
    return captions


@dataclass(frozen=True)
class PlantedCaptions:
    """True captions and the same with an error: pair -> caption each, of the pairs in which the error is possible."""

    true: dict[str, str]
    wrong: dict[str, str]


def plant(inputs: Inputs, seed: int) -> dict[str, PlantedCaptions]:
    """Error -> captions; errors that no pair can have are left out."""
    planted = {error: PlantedCaptions({}, {}) for error in ERRORS}
    for pair, truth in tracked(inputs.truths.items(), len(inputs.truths), "planted errors", "pair"):
        for error, texts in planted_pairs(pair, truth, inputs.references[pair], seed).items():
            planted[error].true[pair], planted[error].wrong[pair] = texts
    return {error: captions for error, captions in planted.items() if captions.true}


def write_planted(folder: Path, errors: Mapping[str, PlantedCaptions], references: Mapping[str, Sequence[str]]) -> None:
    """Write for every error ``ERROR.true.jsonl``, ``ERROR.wrong.jsonl`` and ``ERROR.references.jsonl``, of the pairs in
    which it is possible, as ``jobs/evaluate.py`` takes them."""
    for error, captions in errors.items():
        texts: dict[str, Mapping[str, Any]] = {
            "true": {pair: {"caption": text} for pair, text in captions.true.items()},
            "wrong": {pair: {"caption": text} for pair, text in captions.wrong.items()},
            "references": {pair: {"captions": references[pair]} for pair in captions.true},
        }
        for name, rows in texts.items():
            lines = (json.dumps({"pair_id": pair, **row}) + "\n" for pair, row in rows.items())
            write_text(folder / f"{error.replace(' ', '_')}.{name}.jsonl", "".join(lines))
