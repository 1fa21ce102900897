"""One evaluation: captions of a split, their scores beside two floors, subset by subset, and the protocol they follow.

On disk an evaluation is a folder: ``evaluation.json`` (:class:`Evaluation`) and ``predictions.jsonl`` (one
:class:`ScoredCaption` a line, with the references and the scores of the sentence).

Subsets (changed pairs, unchanged pairs, each change type) are scored alone, as the official code of the field does it:
CIDEr's document frequencies then come from the references of the subset, so subset values do not average to the whole.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from idc.metrics import changes, floors
from idc.metrics.coco import METRICS, CocoScorer, java_version, spice_missing
from idc.metrics.hallucination import Hallucination
from idc.metrics.hallucination import table as claims_table
from idc.schema import CHANGE_TYPES, NO_CHANGE

EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.jsonl"

CHANGE, NO_CHANGE_SUBSET = "change", "no change"
"""Names of the subsets of changed and of unchanged pairs; the others are called by their change type."""

_NAMED = 5


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Prediction(_Record):
    """A caption that was predicted for a pair, and what is known about the pair."""

    pair_id: str
    caption: str
    references: list[str] = []
    change_type: str | None = None
    split: str = "test"


class ScoredCaption(Prediction):
    """A prediction as it is saved."""

    named_type: str | None = None
    """The change type its words name."""
    scores: dict[str, float] = {}
    """Scores of this sentence; empty if the pair has no references."""
    nearest: str | None = None
    """The caption of the nearest training pair."""


class Subset(_Record):
    """Scores of a part of the split, scored alone."""

    pairs: int
    scores: dict[str, float]


class Floor(_Record):
    """A floor, or the ceiling, on the same pairs, by the same protocol."""

    what: str
    """How it was made."""
    caption: str | None = None
    """The caption, if it is one for all."""
    scores: dict[str, float]
    subsets: dict[str, Subset]
    types: changes.TypeAgreement | None = None


class Evaluation(_Record):
    """All numbers of one evaluation; scores are fractions (papers print them times 100)."""

    fingerprint: str = ""
    """Of what was evaluated, on what, and how: equal fingerprints mean equal numbers."""
    split: str
    pairs: int
    references: int
    distinct_captions: int
    empty_captions: int
    scores: dict[str, float]
    """Empty if the pairs have no references: then there are only ``types``."""
    subsets: dict[str, Subset]
    floors: dict[str, Floor]
    """``constant`` and ``nearest``, as far as they were asked for."""
    ceiling: Floor | None = None
    """What the truth itself scores; ``None`` where it is not known."""
    types: changes.TypeAgreement | None = None
    """``None`` if no pair has a known change type."""
    hallucination: Hallucination | None = None
    """What the captions claim, held against the truth; ``None`` where it is not known."""
    protocol: dict[str, Any]
    seconds: dict[str, float] = {}
    """How long captioning, floors and scoring took."""


def evaluate(
    predictions: Sequence[Prediction],
    *,
    constant_candidates: Sequence[str] = (),
    nearest: Mapping[str, str] | None = None,
    truth: Mapping[str, Sequence[str]] | None = None,
    metrics: Sequence[str] = METRICS,
    selection: str = "",
    allow_empty: bool = False,
) -> tuple[Evaluation, list[ScoredCaption]]:
    """Score predictions of one split.

    Args:
        predictions: one for each pair, all of the same split. Either all have references, or none has: then only the
            change types they name are counted.
        constant_candidates: training captions among which the best constant is sought; none, no such floor.
        nearest: pair id -> caption of the nearest training pair; ``None``, no such floor.
        truth: pair id -> the truth in several wordings, for the ceiling (:func:`idc.metrics.floors.best_wording`).
        metrics: as :func:`idc.metrics.coco.score`.
        selection: how the model was selected, for the protocol ("best validation CIDEr, ...").
        allow_empty: an empty caption scores 0 instead of being an error.

    Raises:
        ValueError: naming the ids: twice there, empty, without references, or of another split.
    """
    if not predictions:
        raise ValueError("nothing to evaluate: there are no predictions")
    ids = [p.pair_id for p in predictions]
    if twice := sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []:
        raise ValueError(f"predicted more than once: {_names(twice)}")
    splits = sorted({p.split for p in predictions})
    if len(splits) > 1:
        raise ValueError(f"predictions of several splits ({', '.join(splits)}); evaluate one split at a time")
    bare = [p.pair_id for p in predictions if not p.references]
    if bare and len(bare) < len(ids):
        raise ValueError(f"{len(bare)} of {len(ids)} pairs have no references: {_names(bare)}; leave them out")

    captions = {p.pair_id: p.caption for p in predictions}
    kinds = {p.pair_id: p.change_type for p in predictions}
    overall: dict[str, float] = {}
    subsets: dict[str, Subset] = {}
    made: dict[str, Floor] = {}
    ceiling = None
    per_id: dict[str, dict[str, float]] = {}
    if not bare:
        references = {p.pair_id: p.references for p in predictions}
        with CocoScorer(references, metrics) as scorer:
            parts = _subsets(kinds)

            def scored(texts: Mapping[str, str], empty: bool) -> tuple[dict[str, float], dict[str, Subset]]:
                whole = scorer.score(texts, allow_empty=empty)
                if texts is captions:
                    per_id.update(whole.per_id)
                return whole.overall, {
                    name: Subset(
                        pairs=len(part),
                        scores=scorer.score({i: texts[i] for i in part}, part, allow_empty=empty).overall,
                    )
                    for name, part in parts.items()
                }

            overall, subsets = scored(captions, allow_empty)
            if constant_candidates:
                best, _ = floors.best_constant(references, constant_candidates)
                made[floors.CONSTANT] = _floor(floors.CONSTANT, dict.fromkeys(ids, best), scored, kinds, best)
            if nearest is not None:
                made[floors.NEAREST] = _floor(floors.NEAREST, {name: nearest[name] for name in ids}, scored, kinds)
            if truth is not None:
                ceiling = _floor(floors.TRUTH, floors.best_wording(references, truth, kinds), scored, kinds)
    evaluation = Evaluation(
        split=splits[0],
        pairs=len(ids),
        references=sum(len(p.references) for p in predictions),
        distinct_captions=len(set(captions.values())),
        empty_captions=sum(not caption.split() for caption in captions.values()),
        scores=overall,
        subsets=subsets,
        floors=made,
        ceiling=ceiling,
        types=changes.agreement((p.change_type, p.caption) for p in predictions),
        protocol=_protocol(metrics, selection, scored=not bare),
    )
    rows = [
        ScoredCaption(
            **p.model_dump(),
            named_type=changes.named_type(p.caption),
            scores=per_id.get(p.pair_id, {}),
            nearest=nearest.get(p.pair_id) if nearest is not None else None,
        )
        for p in predictions
    ]
    return evaluation, rows


def _subsets(kinds: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Name -> ids. Pairs of unknown type are in none; a subset that is the whole set is left out."""
    known = {name: kind for name, kind in kinds.items() if kind is not None}
    parts = {
        CHANGE: [name for name, kind in known.items() if kind != NO_CHANGE],
        NO_CHANGE_SUBSET: [name for name, kind in known.items() if kind == NO_CHANGE],
    }
    others = sorted(set(known.values()) - set(CHANGE_TYPES))
    for kind in (*CHANGE_TYPES, *others):
        if kind != NO_CHANGE:
            parts[kind] = [name for name, own in known.items() if own == kind]
    return {name: part for name, part in parts.items() if 0 < len(part) < len(kinds)}


def _floor(
    name: str, texts: dict[str, str], scored: Any, kinds: Mapping[str, str | None], one: str | None = None
) -> Floor:
    overall, subsets = scored(texts, True)
    return Floor(
        what=floors.WHAT[name],
        caption=one,
        scores=overall,
        subsets=subsets,
        types=changes.agreement((kinds[pair], text) for pair, text in texts.items()),
    )


def _protocol(metrics: Sequence[str], selection: str, scored: bool) -> dict[str, Any]:
    """What the numbers mean, in words and versions."""
    protocol: dict[str, Any] = {
        "name": "coco",
        "selection": selection or "not stated",
        "change type": "keyword rules of idc.metrics.changes on the predicted caption",
    }
    if not scored:
        return {**protocol, "name": "change types only: the pairs have no reference captions"}
    return {
        **protocol,
        "tokenizer": "PTB (Stanford CoreNLP 3.4.1), lower-cased, punctuation dropped",
        "references": "all references of a pair",
        "metrics": list(metrics),
        "BLEU": "corpus level, closest reference length",
        "METEOR": "METEOR 1.5, -l en -norm",
        "ROUGE-L": "beta 1.2, mean over the pairs",
        "CIDEr": "CIDEr-D, sigma 6, document frequencies of the scored pairs",
        "SPICE": "SPICE 1.0"
        if "SPICE" in metrics
        else spice_missing() or "its jars are here, but it was not asked for",
        "subsets": "scored alone, document frequencies of the subset",
        "pycocoevalcap": importlib.metadata.version("pycocoevalcap"),
        "java": java_version(),
    }


# ---------------------------------------------------------------------------------------------------------- on disk


def save(folder: str | os.PathLike[str], evaluation: Evaluation, rows: Iterable[ScoredCaption]) -> Path:
    """Write both files, ``evaluation.json`` last: where it is, the folder is complete. Returns its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / EVALUATION
    target.unlink(missing_ok=True)
    _write(folder / PREDICTIONS, "".join(row.model_dump_json() + "\n" for row in rows))
    _write(target, evaluation.model_dump_json(indent=1) + "\n")
    return target


def load(folder: str | os.PathLike[str]) -> Evaluation:
    """Read ``evaluation.json``.

    Raises:
        ValueError: it is missing or not one.
    """
    path = Path(folder) / EVALUATION
    if not path.exists():
        raise ValueError(f"{folder} holds no evaluation (no {EVALUATION}); `python jobs/evaluate.py` writes one")
    try:
        return Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ValueError(f"{path} is not an evaluation of this version: {error}") from None


def load_predictions(folder: str | os.PathLike[str]) -> list[ScoredCaption]:
    """Read ``predictions.jsonl``."""
    text = (Path(folder) / PREDICTIONS).read_text(encoding="utf-8")
    return [ScoredCaption.model_validate_json(line) for line in text.split("\n") if line]


def read_captions(path: str | os.PathLike[str]) -> dict[str, str]:
    """Captions made elsewhere: JSONL with ``pair_id`` and ``caption`` (further keys are ignored).

    Raises:
        ValueError: naming the line that is not of that form, or an id that is there twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name, caption = row["pair_id"], row["caption"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f'{path}, line {number}: not of the form {{"pair_id": ..., "caption": ...}}') from None
        if not isinstance(name, str) or not isinstance(caption, str):
            raise ValueError(f"{path}, line {number}: pair_id and caption have to be text")
        if name in found:
            raise ValueError(f"{path}, line {number}: pair {name!r} is there twice")
        found[name] = caption
    return found


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


# ------------------------------------------------------------------------------------------------------------ seeds


class Spread(_Record):
    """One number over several runs."""

    mean: float
    std: float
    """Standard deviation of the sample (n - 1); 0 for one run."""
    values: list[float]


class SeedSummary(_Record):
    """Several evaluations that differ in the seed alone."""

    runs: int
    scores: dict[str, Spread]
    subsets: dict[str, dict[str, Spread]]
    type_accuracy: Spread | None
    floors: dict[str, dict[str, Spread]]
    """Floor -> metric. The floors do not depend on a model, so their spread is 0 unless the data differ."""


def aggregate(evaluations: Sequence[Evaluation]) -> SeedSummary:
    """Mean and standard deviation over evaluations of the same split.

    Raises:
        ValueError: they are not of the same split, number of pairs or metrics.
    """
    if not evaluations:
        raise ValueError("there are no evaluations to take a mean of")
    first = evaluations[0]
    for other in evaluations[1:]:
        if (other.split, other.pairs, other.references) != (first.split, first.pairs, first.references):
            raise ValueError(
                f"evaluations of different data have no mean: {first.pairs} pairs of {first.split} with "
                f"{first.references} references, and {other.pairs} of {other.split} with {other.references}"
            )
        if other.scores.keys() != first.scores.keys():
            raise ValueError(f"evaluations with different metrics: {list(first.scores)} and {list(other.scores)}")
    agreed = [e.types.accuracy for e in evaluations if e.types is not None]
    shared = [name for name in first.floors if all(name in e.floors for e in evaluations)]
    return SeedSummary(
        runs=len(evaluations),
        scores=_spreads([e.scores for e in evaluations]),
        subsets={name: _spreads([e.subsets[name].scores for e in evaluations]) for name in first.subsets},
        type_accuracy=spread(agreed) if len(agreed) == len(evaluations) else None,
        floors={name: _spreads([e.floors[name].scores for e in evaluations]) for name in shared},
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation of some numbers."""
    return Spread(
        mean=statistics.fmean(values), std=statistics.stdev(values) if len(values) > 1 else 0.0, values=list(values)
    )


def _spreads(rows: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {name: spread([row[name] for row in rows]) for name in rows[0]}


# -------------------------------------------------------------------------------------------------------- as a table


def table(evaluation: Evaluation) -> str:
    """Scores beside the floors, and the change types, as plain text; numbers times 100."""
    lines = [f"{evaluation.pairs} pairs of {evaluation.split}, {evaluation.references} references, x100"]
    metrics = list(evaluation.scores)
    if metrics:
        lines.append(f"{'':22}{'pairs':>7}" + "".join(f"{name:>9}" for name in metrics))
        rows: list[tuple[str, int, dict[str, float]]] = [("model", evaluation.pairs, evaluation.scores)]
        rows += [(f"floor: {name}", evaluation.pairs, floor.scores) for name, floor in evaluation.floors.items()]
        if evaluation.ceiling is not None:
            rows.append(("ceiling: the truth", evaluation.pairs, evaluation.ceiling.scores))
        for name, subset in evaluation.subsets.items():
            rows.append((f"  {name}", subset.pairs, subset.scores))
        for label, pairs, scores in rows:
            lines.append(f"{label:22}{pairs:7d}" + "".join(f"{100 * scores[name]:9.2f}" for name in metrics))
    if constant := evaluation.floors.get(floors.CONSTANT):
        lines.append(f"the constant: {constant.caption!r}")
    if types := evaluation.types:
        lines.append(
            f"names the right change type: {types.accuracy:.1%} (always {types.most_frequent!r}: "
            f"{types.chance_most_frequent:.1%}, guessing by frequency: {types.chance_matched:.1%})"
        )
    if evaluation.hallucination is not None:
        lines.append(claims_table(evaluation.hallucination))
    return "\n".join(lines)


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(repr(name) for name in ids[:_NAMED]) + more
