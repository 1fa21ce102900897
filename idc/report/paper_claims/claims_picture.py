"""The claims as one picture: effects with their intervals, what is too small to matter, and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from idc.report.forest_chart import WIDTH, ForestGroup, ForestRow, forest
from idc.report.page import standalone_svg
from idc.report.paper_claims.config import METRIC_NAMES, PaperClaim
from idc.report.paper_claims.gathering import (
    CONTRADICTED,
    NOT_SEEN,
    SEEN,
    ClaimResult,
    ClaimVerdict,
    is_blind,
)

ONE_SEED = "one seed, no interval over seeds"
_COLORS: dict[ClaimVerdict, str] = {SEEN: "right", CONTRADICTED: "wrong", NOT_SEEN: "marked"}
_LEGEND = (
    "Effect: treatment minus control on the same test pairs and seeds, x100. Solid line: 95 % interval over seeds and "
    "pairs. Dashed line, open point: one seed, 95 % interval over the pairs alone, no verdict. Band: effects smaller "
    "than the smallest one of interest. Arrow: the interval goes on. No better than nearest: than the caption of the "
    "nearest training pair, so the model does not see what the claim is about.",
)


def draw_claims(tested: Sequence[ClaimResult]) -> tuple[Markup, float]:
    """The picture's drawing and its height; what has no effect is listed with the reason."""
    groups: list[ForestGroup] = []
    absent: list[tuple[str, str]] = []
    for claim, rows in _by_claim(tested):
        measured = [drawn for row in rows if (drawn := _drawn(row)) is not None]
        if measured:
            groups.append(ForestGroup(claim.claim, claim.paper, measured))
        left_out: dict[str, list[str]] = {}
        for row in rows:
            if row.effect is None:
                left_out.setdefault(row.absent, []).append(METRIC_NAMES[row.metric])
        for why, metrics in left_out.items():
            name = f"{claim.paper.partition(',')[0]}: {claim.claim}"
            absent.append((f"{name} ({', '.join(metrics)})" if measured else name, why))
    return forest(groups, _LEGEND if groups else (), "Not tested here", absent)


def claims_picture(title: str, tested: Sequence[ClaimResult]) -> str:
    """The picture as an SVG file."""
    drawing, height = draw_claims(tested)
    return standalone_svg(title, drawing, WIDTH, height)


def _by_claim(tested: Sequence[ClaimResult]) -> list[tuple[PaperClaim, list[ClaimResult]]]:
    """The results of each claim; of two claims with the same words and other rows, too."""
    grouped: dict[str, list[ClaimResult]] = {}
    for row in tested:
        grouped.setdefault(row.claim.model_dump_json(), []).append(row)
    return [(rows[0].claim, rows) for rows in grouped.values()]


def _drawn(row: ClaimResult) -> ForestRow | None:
    effect = row.effect
    if effect is None or (interval := effect.interval or effect.of_pairs) is None:
        return None
    if is_blind(effect, row.nearest):
        words = ": no better than nearest"
    else:
        words = "" if row.verdict in _COLORS else ": interval too wide"
    size = f", {effect.seeds} seeds, {effect.pairs:,} pairs"
    strong: str = row.verdict
    if effect.interval is None:
        strong, size = ONE_SEED, f", {effect.pairs:,} pairs"
        words = "; no better than nearest" if is_blind(effect, row.nearest) else ""
    return ForestRow(
        label=METRIC_NAMES[row.metric],
        control=effect.control,
        treatment=effect.treatment,
        low=interval.low,
        high=interval.high,
        band=row.least,
        color=_COLORS.get(row.verdict, "soft"),
        strong=strong,
        words=words + size,
        dashed=effect.interval is None,
    )
