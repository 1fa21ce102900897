"""The page of measures compared with the truth of rendered pairs (:mod:`idc.evaluation.measures`)."""

from __future__ import annotations

import os
from pathlib import Path

from idc.atomic import write_text
from idc.evaluation.agreement import Estimate
from idc.evaluation.measured import WORDS, MeasuresRecord
from idc.report import charts
from idc.report.collect import environment
from idc.report.page import render_template

PAGE = "measures.html"

_CHANCE = 0.5


def write_measures(folder: str | os.PathLike[str], measured: MeasuresRecord) -> Path:
    """Write ``measures.html``. Returns its path."""
    return write_text(Path(folder) / PAGE, render_measures(measured))


def render_measures(measured: MeasuresRecord) -> str:
    """The page as text."""
    order = list(measured.agreement)
    return render_template(
        "measures.html",
        title="Measures of captions against the truth",
        subtitle=f"{measured.pairs}, split {measured.split}: {measured.count} pairs, captions of "
        f"{len(measured.systems)} systems",
        sentences=measured.sentences,
        accuracy=charts.shares(
            "how often the better caption is preferred",
            [_row(name, agreement.accuracy) for name, agreement in measured.agreement.items()],
            _CHANCE,
        ),
        agreement_head=["measure", "preference, %", "ρ within pairs", "τ within pairs", "ρ, all captions",
                        "τ, all captions", "ρ, precision", "ρ, recall", "ρ, invented", "τ, systems"],
        agreement=[
            [name, _between(ranks.accuracy, 100, 1), _between(ranks.spearman_in_pair),
             f"{ranks.kendall_in_pair.value:.2f}", _between(ranks.spearman), f"{ranks.kendall.value:.2f}",
             *(f"{value:.2f}"
               for value in (ranks.with_precision, ranks.with_recall, ranks.with_invented, ranks.systems))]
            for name, ranks in measured.agreement.items()
        ],
        error_charts=[
            charts.shares(
                f"{error} ({planted.pairs} pairs)",
                [_row(name, planted.measures[name].preferred) for name in order if name in planted.measures],
                _CHANCE,
            )
            for error, planted in measured.errors.items()
        ],
        falls_head=["measure", *measured.errors],
        falls=[
            [name, *(_between(planted.measures[name].fall) if name in planted.measures else "not judged"
                     for planted in measured.errors.values())]
            for name in order
        ],
        errors=[
            [error, *planted.example, str(planted.pairs), f"{planted.true_f1[0]:.2f} → {planted.true_f1[1]:.2f}"]
            for error, planted in measured.errors.items()
        ],
        systems_head=["system", *next(iter(measured.systems.values()))],
        systems=[
            [f"baseline: {name}" if name in measured.baselines else name, *(_cell(key, row[key]) for key in row)]
            for name, row in measured.systems.items()
        ],
        baselines=measured.baselines,
        limits=measured.limits,
        protocol={**measured.protocol, **environment()},
    )  # fmt: skip


def measures_table(measured: MeasuresRecord) -> str:
    """The agreement as plain text, and the sentences."""
    width = max(map(len, measured.agreement)) + 2
    lines = [
        f"{measured.count} pairs of {measured.split}, {len(measured.systems)} systems, {measured.comparisons} "
        "comparisons of two captions that differ in true F1",
        f"{'':{width}}{'prefers the better':>24}{'rho within pairs':>24}{'rho, all captions':>24}{'systems':>9}",
    ]
    for name, agreement in measured.agreement.items():
        cells = (
            _between(agreement.accuracy, 100, 1),
            _between(agreement.spearman_in_pair),
            _between(agreement.spearman),
        )
        lines.append(f"{name:{width}}" + "".join(f"{cell:>24}" for cell in cells) + f"{agreement.systems:9.2f}")
    for error, planted in measured.errors.items():
        shares = ", ".join(f"{name} {100 * measure.preferred.value:.1f}" for name, measure in planted.measures.items())
        lines.append(f"true caption preferred to one with the error {error!r} ({planted.pairs} pairs), %: {shares}")
    return "\n".join([*lines, *measured.sentences])


def _row(name: str, estimate: Estimate) -> tuple[str, float, tuple[float, float] | None]:
    return name, estimate.value, None if estimate.interval is None else (estimate.interval.low, estimate.interval.high)


def _between(estimate: Estimate, scale: float = 1.0, digits: int = 2) -> str:
    text = f"{scale * estimate.value:.{digits}f}"
    if estimate.interval is None:
        return text
    return f"{text} ({scale * estimate.interval.low:.{digits}f} to {scale * estimate.interval.high:.{digits}f})"


def _cell(name: str, value: float) -> str:
    return f"{value:.1f}" if name == WORDS else f"{100 * value:.1f}"
