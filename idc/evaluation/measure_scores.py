"""Scores of single captions by the measures that are compared: metrics of word overlap, judges, the number of words."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from idc.data.files import locate
from idc.evaluation.baselines import NEAREST
from idc.evaluation.config import CompareMeasuresJob
from idc.evaluation.judge import RESULT as COVERAGE
from idc.evaluation.judge import JudgeResult
from idc.evaluation.judged_differences import RESULT as DIFFERENCES
from idc.evaluation.judged_differences import is_judged, load_judged
from idc.evaluation.kept import Kept
from idc.evaluation.measure_inputs import MEASURES, Inputs
from idc.evaluation.measured import WORDS
from idc.evaluation.record import load_evaluation, load_predictions
from idc.evaluation.score import running_meteor
from idc.metrics.coco import METRICS, CocoScorer
from idc.metrics.difference_lists import F1
from idc.metrics.java import java_version
from idc.metrics.protocols import protocol
from idc.progress import tracked

_VERSION = 1
"""Incremented when the same captions would get other scores."""

Said = tuple[str, str]
"""A pair's id, and a caption of it."""


class Scorer:
    """Scores of single captions by every measure.

    Attributes:
        judges: names of the judges; ``measures``: of all measures.
    """

    def __init__(self, job: CompareMeasuresJob, inputs: Inputs) -> None:
        self._inputs = inputs
        self._known = {(pair, row.caption): row.scores for rows in inputs.rows.values() for pair, row in rows.items()}
        self._judges = read_judges(job, inputs)
        self.judges = tuple(self._judges)
        self.measures = (*MEASURES, *self.judges, WORDS)
        local = locate(job.pairs).local
        folder = job.kept or (None if local is None else str(Path(local).with_name(f"{Path(local).name}.scoring")))
        self._kept = Kept(folder, _VERSION)

    def add(self, captions: Sequence[Said]) -> None:
        """Score captions that the evaluations have no scores of; kept for the next run."""
        new = list(dict.fromkeys(said for said in captions if said not in self._known))
        programs = [importlib.metadata.version("pycocoevalcap"), java_version()]
        depends_on = [programs, list(self._inputs.references.items()), new]
        rows = self._kept.get("measured-captions", depends_on, lambda: self._scored(new))
        self._known |= {(pair, caption): scores for pair, caption, scores in rows}

    def _scored(self, captions: Sequence[Said]) -> list[tuple[str, str, dict[str, float]]]:
        """(Pair, caption, scores); the document frequencies are those of all references."""
        rounds: list[dict[str, str]] = []  # a scorer takes one caption a pair at a time
        for pair, caption in captions:
            free = next((texts for texts in rounds if pair not in texts), None)
            if free is None:
                rounds.append(free := {})
            free[pair] = caption
        references, by = self._inputs.references, protocol("coco")
        sentences = {by.name: [text for of_pair in references.values() for text in of_pair]}
        texts = {str(number): caption for number, (_, caption) in enumerate(captions)}
        rows = []
        with (
            running_meteor(True, [by], sentences, texts, (), self._kept) as meteor,
            CocoScorer(references, METRICS, by.tokens, meteor) as scorer,
        ):
            for batch in tracked(rounds, len(rounds), "scoring captions", "set"):
                # The first reference in place of captions that are not scored in this round.
                filled = {pair: batch.get(pair, references[pair][0]) for pair in references}
                scores = scorer.score(filled, allow_empty=True).per_id
                rows += [
                    (pair, text, {measure: scores[pair][measure] for measure in MEASURES})
                    for pair, text in batch.items()
                ]
        return rows

    def values(self, measure: str, captions: Sequence[Said]) -> np.ndarray | None:
        """Scores of (pair, caption) pairs by a measure ``(N,)``; None if a judge has not judged some of them."""
        if measure == WORDS:
            return np.array([len(caption.split()) for _, caption in captions], dtype=float)
        if measure in self._judges:
            judged = self._judges[measure]
            return np.array([judged[said] for said in captions]) if all(said in judged for said in captions) else None
        return np.array([self._known[said][measure] for said in captions])


def read_judges(job: CompareMeasuresJob, inputs: Inputs) -> dict[str, dict[Said, float]]:
    """Judge and criteria -> (pair, caption) -> its score, of the judges of all systems' captions.

    Raises:
        ValueError: a folder is no judgement, or of pairs with other references; a judge has not judged some captions.
    """
    judges: dict[str, dict[Said, float]] = {}
    ways: dict[str, tuple[str, str]] = {}
    for folder in job.judged:
        name, way, scores = _judgements(Path(folder), inputs)
        earlier, first = ways.setdefault(name, (way, folder))
        if earlier != way:
            raise ValueError(f"judged: {folder} is by {name} with other settings than {first}; give one of the two")
        judges.setdefault(name, {}).update(scores)
    for name, scores in judges.items():
        for system, rows in inputs.rows.items():
            if lost := [pair for pair, row in rows.items() if (pair, row.caption) not in scores]:
                raise ValueError(
                    f"judged: {name} has not judged {len(lost)} captions of {job.evaluations[system]} "
                    f"({', '.join(lost[:3])}); give its results for all evaluations"
                )
    return judges


def _judgements(folder: Path, inputs: Inputs) -> tuple[str, str, dict[Said, float]]:
    """Judge and criteria, all that it was asked with, and its scores."""
    if is_judged(folder):
        judged = load_judged(folder)
        return (
            f"{judged.protocol['judge']}, differences",
            json.dumps(judged.protocol),
            {
                (pair, judged_caption.caption): judged_caption.scores(len(judged.true[pair]))[F1]
                for system in judged.systems.values()
                for pair, judged_caption in system.pairs.items()
            },
        )
    if not (folder / COVERAGE).exists():
        raise ValueError(f"judged: {folder} has neither {COVERAGE} nor {DIFFERENCES}; `jobs/judge.py` writes one")
    result = JudgeResult.model_validate_json((folder / COVERAGE).read_text(encoding="utf-8"))
    if result.unreadable:
        raise ValueError(f"judged: {folder} lacks {len(result.unreadable)} captions, whose answers were unusable")
    matching = [
        name
        for name, evaluation in inputs.evaluations.items()
        if evaluation.fingerprint == result.evaluation_fingerprint
    ]
    rows = inputs.rows[matching[0]] if matching else {row.pair_id: row for row in load_predictions(result.evaluation)}
    evaluation = inputs.evaluations[matching[0]] if matching else load_evaluation(result.evaluation)
    scores = {(pair, rows[pair].caption): score / 100 for pair, score in result.per_pair.items()}
    for name, of_pair in result.baselines_per_pair.items():
        for pair, score in of_pair.items():
            caption = rows[pair].nearest if name == NEAREST else evaluation.baselines[name].caption
            scores[pair, caption or ""] = score / 100
    way = json.dumps([result.endpoint, result.prompt_sha256, result.temperature, result.references])
    return f"{result.judge}, coverage", way, scores
