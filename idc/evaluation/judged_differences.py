"""Judgements of differences (:mod:`idc.evaluation.difference_judge`): on disk, as numbers, compared."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from idc.evaluation.config import CompareJob
from idc.evaluation.judge import MODEL
from idc.evaluation.record import Interval
from idc.evaluation.significance import ScoreMatrix, SystemComparison, intervals, paired_test
from idc.metrics.difference_lists import F1, INVENTED, PRECISION, RECALL

RESULT = "judged_differences.json"


class JudgedClaim(BaseModel):
    """A difference that a caption claims."""

    model_config = ConfigDict(extra="forbid")
    claim: str
    """In the judge's words."""
    number: int | None
    """Of the true difference that it states, from 1 on; ``None`` if it states none."""


class JudgedCaption(BaseModel):
    """A caption with the claims that the judge found in it."""

    model_config = ConfigDict(extra="forbid")
    caption: str
    claims: list[JudgedClaim]

    def scores(self, truths: int) -> dict[str, float]:
        """Precision, recall, F1 and invented share, as :mod:`idc.metrics.difference_lists` defines them for a pair: a
        claim is right if it states a true difference, else invented.

        A caption with words that claims nothing counts as one that says that nothing changed.

        Args:
            truths: number of true differences.
        """
        right = sum(claim.number is not None for claim in self.claims)
        claims = len(self.claims)
        if not truths:
            scores = dict.fromkeys((PRECISION, RECALL, F1), float(not claims and bool(self.caption.split())))
        else:
            scores = {
                PRECISION: right / claims if claims else 0.0,
                RECALL: right / truths,
                F1: 2 * right / (claims + truths),
            }
        return {**scores, INVENTED: (claims - right) / claims if claims else 0.0}


class JudgedSystem(BaseModel):
    """The captions of the model, or of a baseline."""

    model_config = ConfigDict(extra="forbid")
    scores: dict[str, float]
    """Precision, recall, F1 and the invented share: means over the pairs."""
    intervals: dict[str, Interval] = {}
    """95 % percentile bootstrap over the pairs."""
    pairs: dict[str, JudgedCaption]
    """Pair -> its caption."""


class DifferencesJudged(BaseModel):
    """The result of a judge that matches differences."""

    model_config = ConfigDict(extra="forbid")
    protocol: dict[str, Any]
    """Name of the protocol, its deviations, judge, endpoint, temperature, prompts' SHA-256."""
    answered_by: list[str]
    """Names of the model in the endpoint's answers."""
    evaluation: str
    evaluation_fingerprint: str
    split: str
    from_record: int
    """Number of pairs whose true differences are the list in their ``meta``; of the others they are the judge's."""
    true: dict[str, list[str]]
    """Pair -> its true differences in words."""
    systems: dict[str, JudgedSystem]
    """``model`` and the baselines."""
    unusable: dict[str, str]
    """Pair and system -> the fault and the text of an unusable answer. If there are any, the result lacks these
    captions, and the job fails."""
    asked: int
    """Number of questions of this run; the others were answered before."""


# ------------------------------------------------------------------------------------------------------------ scores


def system_of(pairs: dict[str, JudgedCaption], true: Mapping[str, Sequence[str]], resamples: int) -> JudgedSystem:
    """The scores of the captions of one system, with intervals if there are resamples."""
    rows = [caption.scores(len(true[pair])) for pair, caption in pairs.items()]
    return JudgedSystem(
        scores={name: statistics.fmean(row[name] for row in rows) for name in rows[0]},
        intervals=intervals(rows, [{}] * len(rows), resamples) if resamples else {},
        pairs=pairs,
    )


def load_judged(folder: str | os.PathLike[str]) -> DifferencesJudged:
    """Read ``judged_differences.json``.

    Raises:
        ValueError: it is missing, of another version, or lacks captions because of unusable answers.
    """
    path = Path(folder) / RESULT
    if not path.exists():
        raise ValueError(f"{folder} has no {RESULT}; `python jobs/judge.py criteria=differences` writes one")
    try:
        judgement = DifferencesJudged.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ValueError(f"{path} is not a judgement of this version: {error}") from None
    if judgement.unusable:
        raise ValueError(f"{path} lacks {len(judgement.unusable)} captions, whose answers were unusable; judge again")
    return judgement


def is_judged(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is the result of a judge of differences."""
    return (Path(folder) / RESULT).exists()


def compare_judged(job: CompareJob) -> SystemComparison:
    """Paired tests between the judged captions of two evaluations.

    Raises:
        ValueError: the judges, the pairs or their true differences are not the same.
    """
    a, b = load_judged(job.a), load_judged(job.b)
    for rule in (*a.protocol.keys(), *b.protocol.keys()):
        if a.protocol.get(rule) != b.protocol.get(rule):
            raise ValueError(f"not the same judge: {rule} is {a.protocol.get(rule)!r} and {b.protocol.get(rule)!r}")
    if lost := sorted(a.true.keys() ^ b.true.keys()):
        raise ValueError(f"not the same pairs: {len(lost)} are in one of the two alone, {lost[0]!r} for one")
    if other := [pair for pair, true in a.true.items() if true != b.true[pair]]:
        raise ValueError(
            f"not the same true differences: the judge took others from the references of {len(other)} pairs, "
            f"{other[0]!r} for one; judge both evaluations with the same file answers=FILE"
        )
    rows = [
        [judgement.systems[MODEL].pairs[pair].scores(len(true)) for pair, true in a.true.items()]
        for judgement in (a, b)
    ]
    first, second = (ScoreMatrix(scores, [{}] * len(scores)) for scores in rows)
    return paired_test(first, second, str(a.protocol["name"]), job.resamples, job.exchanges, job.seed)


def judged_differences_table(result: DifferencesJudged) -> str:
    """The scores as plain text."""
    by = ", ".join(result.answered_by) or result.protocol["judge"]
    recorded = f"{result.from_record} of {len(result.true)} pairs with a list of true differences in their record"
    lines = [f"judged by {by}, protocol {result.protocol['name']} ({result.protocol['after']}), x100; {recorded}"]
    names = list(result.systems[MODEL].scores) if MODEL in result.systems else []
    lines.append(f"{'':22}{'pairs':>7}" + "".join(f"{name:>24}" for name in names))
    for system, judged in result.systems.items():
        label = system if system == MODEL else f"baseline: {system}"
        cells = []
        for name in names:
            between = f" ({100 * i.low:.1f} to {100 * i.high:.1f})" if (i := judged.intervals.get(name)) else ""
            cells.append(f"{100 * judged.scores[name]:.1f}{between}")
        lines.append(f"{label:22}{len(judged.pairs):7d}" + "".join(f"{cell:>24}" for cell in cells))
    lines += [f"deviation: {text}" for text in result.protocol["deviations"]]
    return "\n".join(lines)
