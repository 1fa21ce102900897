"""The record of an evaluation: captions of a split, scores of them and of two baselines, by subset, and the protocol.

:func:`idc.evaluation.score.evaluate_captions` makes it. On disk it is a folder: ``evaluation.json``
(:class:`Evaluation`) and ``predictions.jsonl`` (one :class:`ScoredCaption` a line, with the references and the scores
of the sentence).

Subsets (changed pairs, unchanged pairs, each change type) are scored alone, as in the official code of the field:
CIDEr's document frequencies then come from the references of the subset, so subset values do not average to the whole.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator

from idc.metrics import change_types
from idc.metrics.change_maps import ChangeMaps, change_map_table
from idc.metrics.reversal import Reversal
from idc.metrics.scene_scores import (
    INVENTED,
    INVENTED_CHANGE,
    MISSED_CHANGE,
    DifferenceScores,
    Hallucination,
    Matched,
    wilson,
)
from idc.util.atomic import write_text
from idc.util.model_faults import first_error
from idc.util.units import score_text

EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.jsonl"

CHANGE, NO_CHANGE_SUBSET = "change", "no change"
"""Names of the subsets of changed and of unchanged pairs; the others are called by their change type, or by the part of
the data set (``real``, ``render``)."""

CONSTANT, NEAREST, TRAINED, TRUTH = "constant", "nearest", "trained", "truth"
"""Names of the baselines, and of the upper bound."""

MEAN = "S_m*"
"""The mean of BLEU-4, METEOR, ROUGE-L and CIDEr-D (ChangeVG, eq. 16); there if all four are scored."""


Score = Annotated[
    float, WrapValidator(lambda value, check: math.nan if value is None or value != value else check(value))
]
"""A score as a fraction. One that is not defined (CIDEr of some sets) is NaN, null in JSON; ``protocol["undefined"]``
of the evaluation has the reason. It is always the object ``math.nan``, so that equal records compare equal."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Prediction(_Record):
    """A caption that was predicted for a pair, with the facts about the pair."""

    pair_id: str
    caption: str
    references: list[str] = []
    change_type: str | None = None
    split: str = "test"
    changed: bool | None = None
    """Whether anything changed, if known."""
    part: str | None = None
    """Part of the data set that the literature scores alone: ``real`` or ``render`` of OmniDiff."""


class CaptionDifferences(_Record):
    """The difference list of a caption (:mod:`idc.metrics.scene_scores`)."""

    scores: dict[str, float]
    """Precision, recall, F1 and invented share of the pair."""
    claims: list[str]
    """The claims of the caption, each with its verdict: "right: color of red cube: to blue"."""

    @classmethod
    def of(cls, matched: Matched) -> CaptionDifferences:
        """As it was matched."""
        claims = zip(matched.verdicts, matched.claims, strict=True)
        return cls(scores=matched.scores, claims=[f"{verdict}: {claim}" for verdict, claim in claims])


class ScoredCaption(Prediction):
    """A prediction as saved."""

    named_type: str | None = None
    """The change type that its words name."""
    scores: dict[str, Score] = {}
    """Scores of this sentence; empty for a pair without references."""
    statistics: dict[str, list[float]] = {}
    """Addends of this sentence to BLEU and METEOR of a set (:mod:`idc.metrics.ngrams`)."""
    nearest: str | None = None
    """The caption of the nearest training pair."""
    differences: CaptionDifferences | None = None
    """Its difference list; ``None`` if the true differences are not known for every pair of the split."""


class Subset(_Record):
    """Scores of a part of the split, scored alone."""

    pairs: int
    scores: dict[str, Score]


class Training(_Record):
    """How a captioner was trained, as far as the folder of its run records it."""

    system: str
    """Name of its system."""
    samples: int | None = None
    """Size of the training split: pairs, for the systems that caption pairs."""
    seconds: float | None = None
    """Time of the training steps, without validations; of the last training only, if it continued from another."""
    cores: int | None = None
    """Cores of all workers."""
    supervision: str | None = None
    """What the training was taught by besides images (:func:`idc.captioning.sources.supervision_of`)."""

    def __str__(self) -> str:
        trained = "" if self.samples is None else f", trained on {self.samples:,} pairs"
        cores = "" if self.cores is None else f" on {self.cores} core{'s' * (self.cores != 1)}"
        time = "" if self.seconds is None else f" in {self.seconds:.0f} s{cores}"
        taught = "" if self.supervision is None else f" (supervision: {self.supervision})"
        return self.system + trained + time + taught


class Baseline(_Record):
    """A baseline, or the upper bound, on the same pairs, by the same protocol."""

    what: str
    """How it was made."""
    caption: str | None = None
    """The caption, if it is the same for all pairs."""
    scores: dict[str, Score]
    subsets: dict[str, Subset]
    types: change_types.TypeAgreement | None = None
    change: change_types.ChangeTable | None = None
    hallucination: Hallucination | None = None
    """The claims of its captions; ``None`` if the truth is not known, and for the upper bound, which is the truth."""
    differences: DifferenceScores | None = None
    """Of its captions' difference lists, with the same exceptions."""
    training: Training | None = None
    """Of the trained baseline."""


class Interval(_Record):
    """A bootstrap confidence interval."""

    low: float
    high: float


class Evaluation(_Record):
    """All numbers of one evaluation; scores are fractions (papers print them times 100)."""

    fingerprint: str = ""
    """Of captioner, data and settings: equal fingerprints mean equal numbers."""
    artifact: str | None = None
    """:func:`idc.training.artifact.captioning_identity` of the captioner; ``None`` for captions made elsewhere."""
    split: str
    pairs: int
    references: int
    distinct_captions: int
    empty_captions: int
    scores: dict[str, Score]
    """Empty if the pairs have no references; then only ``types`` are computed."""
    subsets: dict[str, Subset]
    baselines: dict[str, Baseline]
    """``constant`` and ``nearest``, if requested, and ``trained``, if another captioner's evaluation is named."""
    upper_bound: Baseline | None = None
    """Upper bound: scores of the truth in one wording; ``None`` if the truth is not known."""
    types: change_types.TypeAgreement | None = None
    """``None`` if no pair has a known change type."""
    change: change_types.ChangeTable | None = None
    """Change against no change; ``None`` if it is not known for any pair."""
    extra_protocols: dict[str, dict[str, Score]] = {}
    """Protocol -> the same captions' scores by it, where papers mix protocols."""
    intervals: dict[str, Interval] = {}
    """Metric -> bootstrap interval of its score; ``protocol`` has the method."""
    hallucination: Hallucination | None = None
    """The claims of the captions compared with the truth; ``None`` if the truth is not known."""
    differences: DifferenceScores | None = None
    """The difference lists of the captions; ``None`` if the true differences are not known for every pair."""
    training: Training | None = None
    """How the captioner was trained; ``None`` for captions made elsewhere."""
    change_maps: ChangeMaps | None = None
    """Scores of the captioner's change maps against the masks; ``None`` if not requested, or without masks."""
    warned: int | None = None
    """Number of pairs with the warning that they are unlike the training data; ``None`` if the captioner has none to
    give (:mod:`idc.captioning.familiarity`)."""
    reversal: Reversal | None = None
    """How many captions turn round with the images; ``None`` if no pair was captioned swapped."""
    protocol: dict[str, Any]
    seconds: dict[str, float] = {}
    """Durations of captioning, baselines and scoring."""

    def warnings(self) -> str | None:
        """The share of warned pairs in words, with its 95 % interval (Wilson); None if it is not known."""
        if self.warned is None:
            return None
        low, high = wilson(share := self.warned / self.pairs, self.pairs)
        counts = f"{self.warned} of {self.pairs} pairs"
        return f"{counts} ({100 * share:.1f} %; 95 % interval {100 * low:.1f} to {100 * high:.1f})"


def with_mean(scores: dict[str, Any]) -> dict[str, Any]:
    """The scores, with :data:`MEAN` if all its parts exist."""
    parts = [scores[name] for name in ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr") if name in scores]
    return {**scores, MEAN: sum(parts) / 4} if len(parts) == 4 else scores


def save(folder: str | os.PathLike[str], evaluation: Evaluation, rows: Iterable[ScoredCaption]) -> Path:
    """Write both files, ``evaluation.json`` last: where it is, the folder is complete. Returns its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / EVALUATION
    target.unlink(missing_ok=True)
    write_text(folder / PREDICTIONS, "".join(row.model_dump_json() + "\n" for row in rows))
    write_text(target, evaluation.model_dump_json(indent=1) + "\n")
    return target


def load_evaluation(folder: str | os.PathLike[str]) -> Evaluation:
    """Read ``evaluation.json``; a ValueError if it is missing or not one of this version."""
    path = Path(folder) / EVALUATION
    if not path.exists():
        raise ValueError(f"{folder} holds no evaluation (no {EVALUATION}); `python jobs/evaluate.py` writes one")
    try:
        return Evaluation.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        fault = f"{path} is not an evaluation of this version ({first_error(error)})"
        raise ValueError(f"{fault}; evaluate again with --overwrite") from None


def load_predictions(folder: str | os.PathLike[str]) -> list[ScoredCaption]:
    """Read ``predictions.jsonl``."""
    text = (Path(folder) / PREDICTIONS).read_text(encoding="utf-8")
    return [ScoredCaption.model_validate_json(line) for line in text.split("\n") if line]


class Spread(_Record):
    """One number over several runs; the deviation is that of a sample (n - 1), 0 for one run."""

    mean: float
    std: float
    values: list[float]


class SeedSummary(_Record):
    """Several evaluations that differ in the seed alone."""

    scores: dict[str, Spread]
    subsets: dict[str, dict[str, Spread]]
    type_accuracy: Spread | None


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
    return SeedSummary(
        scores=_spreads([e.scores for e in evaluations]),
        subsets={name: _spreads([e.subsets[name].scores for e in evaluations]) for name in first.subsets},
        type_accuracy=spread(agreed) if len(agreed) == len(evaluations) else None,
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation of some numbers; NaN of those that are not defined."""
    mean = statistics.fmean(values)
    if math.isnan(mean):
        return Spread(mean=mean, std=mean, values=list(values))
    return Spread(mean=mean, std=statistics.stdev(values) if len(values) > 1 else 0.0, values=list(values))


def _spreads(rows: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {name: spread([row[name] for row in rows]) for name in rows[0]}


def evaluation_table(evaluation: Evaluation) -> str:
    """Scores, baselines and upper bound, by subset, the agreement on change, and the protocol; numbers times 100."""
    head = f"{evaluation.pairs} pairs of {evaluation.split}, {evaluation.references} references, x100"
    lines = [f"{head}, protocol {evaluation.protocol['name']}"]
    metrics = list(evaluation.scores)
    if metrics:
        width = {name: max(9, len(name) + 2) for name in metrics}
        rows: list[tuple[str, int, dict[str, float]]] = [("model", evaluation.pairs, evaluation.scores)]
        rows += [(f"model, {name}", evaluation.pairs, scores) for name, scores in evaluation.extra_protocols.items()]
        rows += [
            (f"baseline: {name}", evaluation.pairs, baseline.scores) for name, baseline in evaluation.baselines.items()
        ]
        if evaluation.upper_bound is not None:
            rows.append(("upper bound: the truth", evaluation.pairs, evaluation.upper_bound.scores))
        rows += [(f"  {name}", subset.pairs, subset.scores) for name, subset in evaluation.subsets.items()]
        label_width = max(22, *(len(label) + 1 for label, _, _ in rows))
        lines.append(f"{'':{label_width}}{'pairs':>7}" + "".join(f"{name:>{width[name]}}" for name in metrics))
        for label, pairs, scores in rows:
            # Further protocols have no SPICE.
            cells = [score_text(scores[name], 2) if name in scores else "" for name in metrics]
            row = "".join(f"{cell:>{width[name]}}" for cell, name in zip(cells, metrics, strict=True))
            lines.append(f"{label:{label_width}}{pairs:7d}" + row)
        if evaluation.intervals:
            ranges = [f"{name} {100 * i.low:.2f} to {100 * i.high:.2f}" for name, i in evaluation.intervals.items()]
            lines.append(f"intervals: {'; '.join(ranges)} ({evaluation.protocol['intervals']})")
    if constant := evaluation.baselines.get(CONSTANT):
        lines.append(f"the constant: {constant.caption!r}")
    if trained := evaluation.baselines.get(TRAINED):
        lines.append(f"the trained baseline: {trained.what}")
    for name in (
        "tokenizer", "vocabulary", "references", "empty references", "left out", "undefined", "few pairs", "no spaces",
    ):  # fmt: skip
        if name in evaluation.protocol:
            lines.append(f"{name}: {evaluation.protocol[name]}")
    if evaluation.change is not None:
        lines += _change(evaluation.change)
    if types := evaluation.types:
        lines.append(
            f"names the right change type: {types.accuracy:.1%} of {types.pairs} pairs "
            f"(always {types.most_frequent!r}: {types.chance_most_frequent:.1%})"
        )
    if evaluation.hallucination is not None:
        lines.append(hallucination_table(evaluation.hallucination))
        for name, baseline in evaluation.baselines.items():
            if (claims := baseline.hallucination) is not None:
                lines.append(
                    f"  baseline: {name}: object {claims.object.rate:.1%}, attribute {claims.attribute.rate:.1%}"
                )
    if evaluation.differences is not None:
        lines.append(difference_table(evaluation.differences))
        for name, baseline in evaluation.baselines.items():
            if (differences := baseline.differences) is not None:
                values = ", ".join(f"{what} {value:.1%}" for what, value in differences.means().items())
                lines.append(f"  baseline: {name}: {values}")
    if (warnings := evaluation.warnings()) is not None:
        lines.append(f"warned as unlike the training data: {warnings}")
    if evaluation.reversal is not None:
        lines.append(f"reversal: {evaluation.reversal}")
    if evaluation.change_maps is not None:
        lines.append(change_map_table(evaluation.change_maps))
    return "\n".join(lines)


def _change(change: change_types.ChangeTable) -> list[str]:
    lines = [f"says whether anything changed: {change.accuracy:.1%} right (always the same: "
             f"{change.chance_most_frequent:.1%}); {change.rule}"]  # fmt: skip
    said = list(next(iter(change.table.values())))
    lines.append(f"{'  pair, caption says':22}" + "".join(f"{name:>11}" for name in said))
    return lines + [
        f"  {actual:20}" + "".join(f"{row[name]:11d}" for name in said) for actual, row in change.table.items()
    ]


def hallucination_table(scores: Hallucination) -> str:
    """The rates as plain text."""
    lines = [f"claims of the captions, {scores.pairs} pairs, {scores.changed} of them changed; 95 % intervals (Wilson)"]
    for name, rate in scores.rates().items():
        low, high = scores.interval(name)
        counts, interval = f"({rate.right} of {rate.total})", f"{100 * low:.1f} to {100 * high:.1f}"
        wanted = ", to be low" if name in (INVENTED_CHANGE, MISSED_CHANGE) else ""
        lines.append(f"  {name:20}{rate.rate:7.1%} {counts:16} {interval:>15}  chance {rate.chance:.1%}{wanted}")
    return "\n".join(lines)


def difference_table(scores: DifferenceScores) -> str:
    """The scores as plain text."""
    lines = [
        f"differences, {scores.protocol}: {scores.pairs} pairs, {scores.truths} true differences, "
        f"{scores.claims} claimed: {scores.right} right, {scores.half} half right, {scores.surplus} said twice, "
        f"{scores.invented} invented"
    ]
    for name, value in scores.means().items():
        low_high = scores.intervals.get(name)
        interval = f"  {100 * low_high[0]:.1f} to {100 * low_high[1]:.1f}" if low_high else ""
        lines.append(f"  {name:16}{value:7.1%}{interval}" + (", to be low" if name == INVENTED else ""))
    if scores.unchanged.total:
        lines.append(
            f"  unchanged pairs of which the caption says so: {scores.unchanged.right} of {scores.unchanged.total}"
        )
    kinds = [f"{kind} {hits.right} of {hits.total}" for kind, hits in scores.by_kind.items()]
    lines.append(f"  found by kind: {', '.join(kinds) or 'none'}")
    numbers = [f"{number}: {means.f1:.1%} ({means.pairs} pairs)" for number, means in scores.by_number.items()]
    lines.append(f"  F1 by number of differences: {', '.join(numbers)}")
    return "\n".join(lines)
