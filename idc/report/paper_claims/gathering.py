"""Claims of papers, tested by the evaluations that sweeps have left: control, effect with its interval, verdict.

=================== ==================================================================================================
a claim is          if, with the 95 % interval of treatment minus control (:mod:`idc.evaluation.effects`),
=================== ==================================================================================================
seen                the interval is above 0
contradicted        it is below 0
not seen            it holds 0 and is below the smallest effect of interest: that much is ruled out
not testable here   it holds both, so the test is too small; or neither row is better than the caption of the nearest
                    training pair, so the model does not see what the claim is about; or a row is not trained
=================== ==================================================================================================
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.atomic import read_object
from idc.data.store import iter_rows
from idc.evaluation.baselines import NEAREST
from idc.evaluation.effects import SeededEffect, pairs_needed, seeded_effect
from idc.evaluation.record import EVALUATION, Baseline, Evaluation, ScoredCaption, load_evaluation, load_predictions
from idc.evaluation.rendered_truth import rendered_truth
from idc.metrics.difference_lists import F1
from idc.metrics.hallucination import Truth, hallucination
from idc.report.paper_claims.config import SEED_MARK, ClaimMetric, ClaimsJob, PaperClaim
from idc.schema import NO_CHANGE
from idc.sweep.progress import PLAN, TRIALS
from idc.sweep.summary import TrialResult
from idc.systems import SYSTEMS

ClaimVerdict = Literal["seen", "not seen", "contradicted", "not testable here"]
SEEN: ClaimVerdict = "seen"
NOT_SEEN: ClaimVerdict = "not seen"
CONTRADICTED: ClaimVerdict = "contradicted"
NOT_TESTABLE: ClaimVerdict = "not testable here"

_MOST_SEEDS = 30


class ClaimResult(BaseModel):
    """One metric of a claim.

    Attributes:
        least: smallest effect of interest, as a fraction.
        nearest: the metric of the nearest training pair's captions, if it was evaluated.
        effect: None if a row is missing.
        seeds: those of both rows.
        why: the verdict's reason.
    """

    model_config = ConfigDict(extra="forbid")
    claim: PaperClaim
    metric: ClaimMetric
    least: float
    verdict: ClaimVerdict
    why: str
    effect: SeededEffect | None = None
    nearest: float | None = None
    seeds: list[str] = []


class _Row(NamedTuple):
    """The evaluations of a row by seed ("" where the sweep has one), and how many trials it has."""

    evaluations: dict[str, Path]
    trials: int


class _MissingError(Exception):
    """What a test needs is not there; with the reason."""


def gather_claims(job: ClaimsJob) -> list[ClaimResult]:
    """Test all claims, metric by metric."""
    return [_tested(claim, metric, job.sweeps) for claim in job.claims for metric in claim.least]


def verdict_of(effect: SeededEffect, least: float, nearest: float | None = None) -> tuple[ClaimVerdict, str]:
    """The verdict of the module's text and its reason; arguments as of :class:`ClaimResult`."""
    if nearest is not None and max(effect.control, effect.treatment) <= nearest:
        return NOT_TESTABLE, f"neither row is better than the nearest training pair's caption ({_points(nearest)})"
    if effect.interval is None or effect.components is None:
        alone = effect.of_pairs
        these = "" if alone is None else f"; over the pairs alone {100 * alone.low:+.1f} to {100 * alone.high:+.1f}"
        return NOT_TESTABLE, f"one seed has no spread over seeds{these}"
    low, high = effect.interval.low, effect.interval.high
    if low > 0:
        small = f", which is below the smallest effect of interest, {_points(least)}" * (high < least)
        return SEEN, f"at least {_points(low)} and at most {_points(high)}{small}"
    if high < 0:
        return CONTRADICTED, f"it costs at least {_points(-high)} and at most {_points(-low)}"
    if high < least:
        return NOT_SEEN, f"an effect of {_points(least)} is ruled out"
    return NOT_TESTABLE, f"the interval holds 0 and {_points(least)}; {_what_it_takes(effect, least)}"


def _what_it_takes(effect: SeededEffect, least: float) -> str:
    """The seeds and pairs with which an effect would be seen, in words."""
    assert effect.components is not None
    for seeds in range(effect.seeds, _MOST_SEEDS + 1):
        if (pairs := pairs_needed(effect.components, least, seeds)) is not None:
            return f"by this spread {_points(least)} takes {seeds} seeds and {pairs:,} pairs"
    return f"by this spread {_points(least)} takes more than {_MOST_SEEDS} seeds"


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _tested(claim: PaperClaim, metric: ClaimMetric, folders: Sequence[str]) -> ClaimResult:
    least = claim.least[metric] / 100
    try:
        rows = _rows(claim, folders)
        seeds = sorted(rows[0].keys() & rows[1].keys())
        if not seeds:
            raise _MissingError(f"not trained yet: {claim.control!r} and {claim.treatment!r} have no seed in common")
        records = [[load_evaluation(row[seed]) for seed in seeds] for row in rows]
        _check(claim, records)
        values = [[_values(metric, record, row[seed]) for record, seed in zip(of_row, seeds, strict=True)]
                  for of_row, row in zip(records, rows, strict=True)]  # fmt: skip
        pairs = list(values[0][0])
        if len(pairs) < 2:
            raise _MissingError(f"{len(pairs)} of the evaluated pairs have the metric")
        if any(of_seed.keys() != set(pairs) for of_row in values for of_seed in of_row):
            raise _MissingError("the rows were evaluated on different pairs")
        control, treatment = (
            np.array([[of_seed[pair] for pair in pairs] for of_seed in of_row], float) for of_row in values
        )
    except (_MissingError, ValueError) as error:
        return ClaimResult(claim=claim, metric=metric, least=least, verdict=NOT_TESTABLE, why=str(error))
    effect = seeded_effect(control, treatment)
    nearest = _of_baseline(metric, records[0][0].baselines.get(NEAREST))
    verdict, why = verdict_of(effect, least, nearest)
    return ClaimResult(
        claim=claim, metric=metric, least=least, verdict=verdict, why=why, effect=effect, nearest=nearest, seeds=seeds
    )


def _rows(claim: PaperClaim, folders: Sequence[str]) -> tuple[dict[str, Path], dict[str, Path]]:
    """The evaluations of control and treatment by seed."""
    if claim.system not in SYSTEMS:
        raise _MissingError(f"not trained yet: this program has no system {claim.system!r}")
    if claim.sweep is None:
        rows = _by_seed(claim.control), _by_seed(claim.treatment)
        for evaluations, folder in zip(rows, (claim.control, claim.treatment), strict=True):
            if not evaluations:
                raise _MissingError(f"not trained yet: there is no evaluation {folder}")
        return rows
    plans = [path for folder in folders if (path := Path(folder) / claim.sweep / PLAN).exists()]
    if not plans:
        raise _MissingError(f"not trained yet: no sweep {claim.sweep!r} in {', '.join(folders)}")
    reasons = []
    for plan in plans:
        control, treatment = (_row(plan, label) for label in (claim.control, claim.treatment))
        if control.evaluations and treatment.evaluations:
            return control.evaluations, treatment.evaluations
        missing = [
            f"{label!r} has {len(row.evaluations)} of {row.trials} trials"
            for label, row in ((claim.control, control), (claim.treatment, treatment))
            if not row.evaluations
        ]
        reasons.append(f"not trained yet: in {plan.parent} {' and '.join(missing)}")
    raise _MissingError(reasons[0])


def _by_seed(pattern: str) -> dict[str, Path]:
    """The evaluations whose path has a number for the seed."""
    before, after = pattern.split(SEED_MARK)
    paths = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}")
    folders = {path[len(before) : len(path) - len(after)]: Path(path) for path in paths}
    return {seed: path for seed, path in folders.items() if seed.isdigit() and (path / EVALUATION).exists()}


def _row(plan: Path, label: str) -> _Row:
    """The finished trials of a row."""
    contents = read_object(plan) or {}
    row = _Row({}, 0)
    for trial in contents.get("trials", []):
        name, mark, seed = trial["label"].rpartition(", seed ")
        if (name if mark else seed) != label:
            continue
        row = row._replace(trials=row.trials + 1)
        result = read_object(plan.parent / TRIALS / f"{trial['key']}.json")
        if result is not None:
            evaluation = Path(TrialResult.model_validate(result).evaluation)
            # As the sweep saw it, from its working directory; its folder may be elsewhere now.
            beside = plan.parent / contents["store"] / evaluation.name
            row.evaluations[seed if mark else ""] = evaluation if evaluation.exists() else beside
    return row


def _check(claim: PaperClaim, records: Sequence[Sequence[Evaluation]]) -> None:
    """Whether the evaluations are of the claim's system, on the same pairs, by the same protocol."""
    every = [record for of_row in records for record in of_row]
    for record in every:
        if record.training is not None and record.training.system != claim.system:
            raise _MissingError(f"the evaluated system is {record.training.system}, not {claim.system}")
    for rule in ("name", "data", "references", "CIDEr"):
        if any(record.protocol.get(rule) != every[0].protocol.get(rule) for record in every):
            raise _MissingError(f"the rows were evaluated by other rules or on other data ({rule})")


def _values(metric: ClaimMetric, record: Evaluation, folder: Path) -> dict[str, float]:
    """The metric of each pair that has it."""
    rows = load_predictions(folder)
    if metric == "CIDEr":
        return {row.pair_id: row.scores["CIDEr"] for row in rows if "CIDEr" in row.scores}
    if metric == "right_type":
        return {row.pair_id: float(row.named_type == row.change_type) for row in rows if row.change_type is not None}
    if metric == "difference_f1":
        if any(row.differences is None for row in rows):
            raise _MissingError("the true lists of differences are not known for every pair")
        return {row.pair_id: row.differences.scores[F1] for row in rows if row.differences is not None}
    return _right_objects(rows, _truths(str(record.protocol.get("pairs")), record.split))


def _right_objects(rows: Sequence[ScoredCaption], truths: Mapping[str, Truth]) -> dict[str, float]:
    """Whether the caption of each changed pair names the right object."""
    changed = {name: truth for name, truth in truths.items() if truth.kind != NO_CHANGE}
    return {
        row.pair_id: hallucination([(row.caption, changed[row.pair_id])]).object.rate
        for row in rows
        if row.pair_id in changed
    }


@lru_cache
def _truths(pairs: str, split: str) -> Mapping[str, Truth]:
    """The single change or none of each pair."""
    if not Path(pairs).is_dir():
        raise _MissingError(f"right_object needs the pairs, and {pairs} does not exist")
    truth = rendered_truth(iter_rows(pairs, ["pair_id", "change_type", "source", "meta"], split))
    if truth is None or not truth.changes:
        raise _MissingError(f"right_object needs rendered pairs of a single change, which {pairs} does not hold")
    return truth.changes


def _of_baseline(metric: ClaimMetric, baseline: Baseline | None) -> float | None:
    if baseline is None:
        return None
    match metric:
        case "CIDEr":
            return baseline.scores.get("CIDEr")
        case "right_type":
            return baseline.types.accuracy if baseline.types is not None else None
        case "right_object":
            return baseline.hallucination.object.rate if baseline.hallucination is not None else None
        case "difference_f1":
            return baseline.differences.f1 if baseline.differences is not None else None
