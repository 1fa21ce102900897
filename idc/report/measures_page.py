"""The page of measures compared with the truth of rendered pairs (:mod:`idc.evaluation.measures`)."""

from __future__ import annotations

import os
from pathlib import Path

from idc.atomic import write_text
from idc.evaluation.agreement import Estimate
from idc.evaluation.measured import WORDS, Measured
from idc.report import charts
from idc.report.collect import environment
from idc.report.page import render

PAGE = "measures.html"

_CHANCE = 0.5


def write_measures(folder: str | os.PathLike[str], found: Measured) -> Path:
    """Write ``measures.html``. Returns its path."""
    return write_text(Path(folder) / PAGE, render_measures(found))


def render_measures(found: Measured) -> str:
    """The page as text."""
    order = list(found.agreement)
    return render(
        "measures.html",
        title="Measures of captions against the truth",
        subtitle=f"{found.pairs}, split {found.split}: {found.count} pairs, captions of {len(found.systems)} systems",
        sentences=found.sentences,
        accuracy=charts.shares(
            "how often the better caption is preferred",
            [_row(name, one.accuracy) for name, one in found.agreement.items()],
            _CHANCE,
        ),
        agreement_head=["measure", "preference, %", "ρ within pairs", "τ within pairs", "ρ, all captions",
                        "τ, all captions", "ρ, precision", "ρ, recall", "ρ, invented", "τ, systems"],
        agreement=[
            [name, _between(one.accuracy, 100, 1), _between(one.spearman_in_pair), f"{one.kendall_in_pair.value:.2f}",
             _between(one.spearman), f"{one.kendall.value:.2f}",
             *(f"{value:.2f}" for value in (one.with_precision, one.with_recall, one.with_invented, one.systems))]
            for name, one in found.agreement.items()
        ],
        error_charts=[
            charts.shares(
                f"{error} ({one.pairs} pairs)",
                [_row(name, one.measures[name].preferred) for name in order if name in one.measures],
                _CHANCE,
            )
            for error, one in found.errors.items()
        ],
        falls_head=["measure", *found.errors],
        falls=[
            [name, *(_between(one.measures[name].fall) if name in one.measures else "not judged"
                     for one in found.errors.values())]
            for name in order
        ],
        errors=[
            [error, *one.example, str(one.pairs), f"{one.true_f1[0]:.2f} → {one.true_f1[1]:.2f}"]
            for error, one in found.errors.items()
        ],
        systems_head=["system", *next(iter(found.systems.values()))],
        systems=[
            [f"baseline: {name}" if name in found.baselines else name, *(_cell(key, row[key]) for key in row)]
            for name, row in found.systems.items()
        ],
        baselines=found.baselines,
        limits=found.limits,
        protocol={**found.protocol, **environment()},
    )  # fmt: skip


def table(found: Measured) -> str:
    """The agreement as plain text, and the sentences."""
    width = max(map(len, found.agreement)) + 2
    lines = [
        f"{found.count} pairs of {found.split}, {len(found.systems)} systems, {found.comparisons} comparisons of two "
        "captions that differ in true F1",
        f"{'':{width}}{'prefers the better':>24}{'rho within pairs':>24}{'rho, all captions':>24}{'systems':>9}",
    ]
    for name, one in found.agreement.items():
        cells = (_between(one.accuracy, 100, 1), _between(one.spearman_in_pair), _between(one.spearman))
        lines.append(f"{name:{width}}" + "".join(f"{cell:>24}" for cell in cells) + f"{one.systems:9.2f}")
    for error, planted in found.errors.items():
        shares = ", ".join(f"{name} {100 * one.preferred.value:.1f}" for name, one in planted.measures.items())
        lines.append(f"true caption preferred to one with the error {error!r} ({planted.pairs} pairs), %: {shares}")
    return "\n".join([*lines, *found.sentences])


def _row(name: str, one: Estimate) -> tuple[str, float, tuple[float, float] | None]:
    return name, one.value, None if one.interval is None else (one.interval.low, one.interval.high)


def _between(one: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    text = f"{scale * one.value:.{digits}f}"
    if one.interval is None:
        return text
    return f"{text} ({scale * one.interval.low:.{digits}f} to {scale * one.interval.high:.{digits}f})"


def _cell(name: str, value: float) -> str:
    return f"{value:.1f}" if name == WORDS else f"{100 * value:.1f}"
