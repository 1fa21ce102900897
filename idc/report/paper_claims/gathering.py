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

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from idc.atomic import read_object
from idc.evaluation.baselines import NEAREST
from idc.evaluation.effects import SeededEffect, pairs_needed, seeded_effect
from idc.evaluation.record import Evaluation
from idc.report.paper_claims.config import ClaimMetric, ClaimsJob, PaperClaim
from idc.report.paper_claims.pair_values import (
    MissingError,
    evaluations_by_seed,
    load_records,
    value_of_baseline,
    values_of_rows,
)
from idc.sweep.progress import PLAN, TRIALS
from idc.sweep.summary import TrialResult
from idc.systems import SYSTEMS

ClaimVerdict = Literal["seen", "not seen", "contradicted", "not testable here"]
SEEN: ClaimVerdict = "seen"
NOT_SEEN: ClaimVerdict = "not seen"
CONTRADICTED: ClaimVerdict = "contradicted"
NOT_TESTABLE: ClaimVerdict = "not testable here"

_MOST_SEEDS = 30
_UNTRAINED = "not trained yet"


class ClaimResult(BaseModel):
    """One metric of a claim.

    Attributes:
        least: smallest effect of interest, as a fraction.
        nearest: the metric of the nearest training pair's captions, if it was evaluated.
        effect: None if a row is missing.
        seeds: those of both rows.
        why: the verdict's reason.
        absent: why there is no effect, without names of files.
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
    absent: str = ""


class _Row(NamedTuple):
    """The evaluations of a row by seed ("" where the sweep has one), and how many trials it has."""

    evaluations: dict[str, Path]
    trials: int


def gather_claims(job: ClaimsJob) -> list[ClaimResult]:
    """Test all claims, metric by metric."""
    return [_tested(claim, metric, job.sweeps) for claim in job.claims for metric in claim.least]


def verdict_of(effect: SeededEffect, least: float, nearest: float | None = None) -> tuple[ClaimVerdict, str]:
    """The verdict of the module's text and its reason; arguments as of :class:`ClaimResult`."""
    if nearest is not None and is_blind(effect, nearest):
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


def is_blind(effect: SeededEffect, nearest: float | None) -> bool:
    """Whether neither row is better than the nearest training pair's caption."""
    return nearest is not None and max(effect.control, effect.treatment) <= nearest


def _tested(claim: PaperClaim, metric: ClaimMetric, folders: Sequence[str]) -> ClaimResult:
    least = claim.least[metric] / 100
    try:
        rows = _rows(claim, folders)
        seeds = sorted(rows[0].keys() & rows[1].keys())
        if not seeds:
            names = f"{claim.control!r} and {claim.treatment!r} have no seed in common"
            raise MissingError(claim.untrained or _UNTRAINED, names)
        records = load_records(rows, seeds)
        _check_system(claim, records[1])
        effect = seeded_effect(*values_of_rows(metric, records, rows, seeds))
    except MissingError as error:
        return ClaimResult(
            claim=claim, metric=metric, least=least, verdict=NOT_TESTABLE, why=str(error), absent=error.reason
        )
    except ValueError as error:
        absent = "an evaluation cannot be read"
        return ClaimResult(claim=claim, metric=metric, least=least, verdict=NOT_TESTABLE, why=str(error), absent=absent)
    baselines = (record.baselines.get(NEAREST) for of_row in records for record in of_row)
    nearest = next(
        (value for captions in baselines if (value := value_of_baseline(metric, captions)) is not None), None
    )
    verdict, why = verdict_of(effect, least, nearest)
    return ClaimResult(
        claim=claim, metric=metric, least=least, verdict=verdict, why=why, effect=effect, nearest=nearest, seeds=seeds
    )


def _rows(claim: PaperClaim, folders: Sequence[str]) -> tuple[dict[str, Path], dict[str, Path]]:
    """The evaluations of control and treatment by seed."""
    untrained = claim.untrained or _UNTRAINED
    if claim.system not in SYSTEMS:
        raise MissingError(untrained, f"this program has no system {claim.system!r}")
    if claim.sweep is None:
        rows = evaluations_by_seed(claim.control), evaluations_by_seed(claim.treatment)
        for evaluations, folder in zip(rows, (claim.control, claim.treatment), strict=True):
            if not evaluations:
                raise MissingError(untrained, f"there is no evaluation {folder}")
        return rows
    plans = [path for folder in folders if (path := Path(folder) / claim.sweep / PLAN).exists()]
    if not plans:
        raise MissingError(untrained, f"no sweep {claim.sweep!r} in {', '.join(folders)}")
    details = []
    for plan in plans:
        control, treatment = (_row(plan, label) for label in (claim.control, claim.treatment))
        if control.evaluations and treatment.evaluations:
            return control.evaluations, treatment.evaluations
        missing = [
            f"{label!r} has {len(row.evaluations)} of {row.trials} trials"
            for label, row in ((claim.control, control), (claim.treatment, treatment))
            if not row.evaluations
        ]
        details.append(f"in {plan.parent} {' and '.join(missing)}")
    raise MissingError(untrained, details[0])


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
            evaluation = TrialResult.model_validate(result).evaluation
            row.evaluations[seed if mark else ""] = plan.parent / contents["store"] / evaluation
    return row


def _check_system(claim: PaperClaim, treatment: Sequence[Evaluation]) -> None:
    """Whether the treatment is of the claim's system; its control may be of another, which it starts from."""
    for record in treatment:
        if record.training is not None and record.training.system != claim.system:
            raise MissingError(f"the evaluated system is {record.training.system}, not {claim.system}")
