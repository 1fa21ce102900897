"""The page of what papers claim, tested small: verdicts, effects, and the seeds and pairs that an effect takes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from idc.atomic import write_text
from idc.evaluation.effects import Components, pairs_needed
from idc.report.collect import environment
from idc.report.forest_chart import WIDTH
from idc.report.page import render_template
from idc.report.paper_claims.claims_picture import claims_picture, draw_claims
from idc.report.paper_claims.config import METRIC_NAMES, ClaimMetric, ClaimsJob
from idc.report.paper_claims.gathering import CONTRADICTED, NOT_SEEN, NOT_TESTABLE, SEEN, ClaimResult

PAGE, PICTURE = "claims.html", "claims.svg"
_TITLE = "What the papers claim, tested small"
_HEAD = ["claim", "paper", "metric", "control", "treatment", "effect (95 %)", "nearest", "seeds", "pairs", "verdict"]


def write_claims(job: ClaimsJob, tested: Sequence[ClaimResult]) -> Path:
    """Write the page, its picture, the table as Markdown and the record. Returns the page's path."""
    folder = Path(job.out)
    record = {"claims": [row.model_dump(mode="json") for row in tested], "environment": environment()}
    write_text(folder / "claims.json", json.dumps(record, indent=1) + "\n")
    write_text(folder / "claims.md", claims_markdown(tested))
    write_text(folder / PICTURE, claims_picture(_TITLE, tested))
    return write_text(folder / PAGE, render_claims(job, tested))


def claims_markdown(tested: Sequence[ClaimResult]) -> str:
    """The table with the reasons."""
    lines = [f"| {' | '.join([*_HEAD, 'why'])} |", "|---" * (len(_HEAD) + 1) + "|"]
    lines += [f"| {' | '.join(_escaped(cell) for cell in [*_cells(row), row.why])} |" for row in tested]
    return "\n".join([*lines, "", counts_of(tested)]) + "\n"


def counts_of(tested: Sequence[ClaimResult]) -> str:
    """The verdicts in a sentence."""
    counts = Counter(row.verdict for row in tested)
    parts = [f"{counts[verdict]} {verdict}" for verdict in (SEEN, NOT_SEEN, CONTRADICTED, NOT_TESTABLE)]
    return f"Of {len(tested)} tests: {', '.join(parts)}."


def render_claims(job: ClaimsJob, tested: Sequence[ClaimResult]) -> str:
    """The page as text."""
    measured = [row for row in tested if row.effect is not None and row.effect.interval is not None]
    drawing, height = draw_claims(tested)
    return render_template(
        "paper_claims.html",
        title=_TITLE,
        subtitle=counts_of(tested),
        head=_HEAD[2:-1],
        rows=[(_cells(row), row.why, _class(row)) for row in tested],
        drawing=drawing,
        drawing_size=f"{WIDTH:g} {height:g}",
        spreads_head=["claim", "metric", "σ seeds", "σ pairs", "σ rest", "seeds", "pairs", "interval ±"],
        spreads=[_spread(row) for row in measured],
        needed=[table for metric, effect in job.planned.items() if (table := _needed(job, metric, effect, measured))],
        protocol=environment(),
    )


def _cells(row: ClaimResult) -> list[str]:
    claim, effect = row.claim, row.effect
    measured = ["", "", "", "", "", ""]
    if effect is not None:
        interval = effect.interval
        between = "" if interval is None else f" ({_signed(interval.low)} to {_signed(interval.high)})"
        measured = [
            f"{100 * effect.control:.1f}",
            f"{100 * effect.treatment:.1f}",
            f"{_signed(effect.effect)}{between}",
            "" if row.nearest is None else f"{100 * row.nearest:.1f}",
            str(effect.seeds),
            f"{effect.pairs:,}",
        ]
    return [claim.claim, claim.paper, METRIC_NAMES[row.metric], *measured, row.verdict]


def _signed(fraction: float) -> str:
    return f"{100 * fraction:+.1f}"


def _class(row: ClaimResult) -> str:
    """Of ``page.css``."""
    return {SEEN: "right", CONTRADICTED: "wrong"}.get(row.verdict, "soft")


def _spread(row: ClaimResult) -> list[str]:
    effect = row.effect
    assert effect is not None
    assert effect.components is not None
    assert effect.interval is not None
    parts = (effect.components.seeds, effect.components.pairs, effect.components.rest)
    deviations = [f"{100 * math.sqrt(part):.1f}" for part in parts]
    half = 50 * (effect.interval.high - effect.interval.low)
    return [
        row.claim.claim,
        METRIC_NAMES[row.metric],
        *deviations,
        str(effect.seeds),
        f"{effect.pairs:,}",
        f"{half:.1f}",
    ]


def _needed(
    job: ClaimsJob, metric: ClaimMetric, effect: float, measured: Sequence[ClaimResult]
) -> tuple[str, list[str], list[list[str]]] | None:
    """Heading, head and rows: by the spread of each claim, and by the mean of their variances."""
    spreads = {
        row.claim.claim: row.effect.components
        for row in measured
        if row.metric == metric and row.effect is not None and row.effect.components is not None
    }
    if not spreads:
        return None
    every = list(spreads.values())
    names = Components.model_fields
    mean = Components(**{name: sum(getattr(part, name) for part in every) / len(every) for name in names})
    rows = [
        [name, *(_pairs(components, effect / 100, seeds) for seeds in job.seeds)]
        for name, components in {**spreads, "mean of these variances": mean}.items()
    ]
    head = ["by the spread of", *(f"{seeds} seeds" for seeds in job.seeds)]
    return f"Pairs for {effect:g} of {METRIC_NAMES[metric]}", head, rows


def _pairs(components: Components, effect: float, seeds: int) -> str:
    pairs = pairs_needed(components, effect, seeds)
    return "no number" if pairs is None else f"{pairs:,}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
