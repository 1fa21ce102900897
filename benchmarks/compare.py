"""Comparison of a run with the record: what became worse.

The rule, per row of equal title: the medians differ by a factor greater than the spread (maximum / minimum) of the
recorded values, greater than that of the new ones, and greater than a tolerance.

- Ratios come first: both of their things were measured in turns, so the machine's speed of the hour drops out.
  Tolerance 5 %.
- The absolute figure (a row's ``above``, or the plain quantity) is compared on a machine of the same kind alone.
  Tolerance 30 %: a virtual machine's own speed differs by that much from hour to hour.
- With fewer than three values on one side the spread is unknown: tolerance 30 %.
- The record of another kind of machine decides nothing: its ratios are listed, not counted.

Of differences that are pure noise (normal, 5 %) this flags 3 in 100 with three values a side and 2 in 1,000 with five;
of ratios that fell to 0.8 it finds 96 and 93 in 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from benchmarks.measurement import MeasuredRow, Stats
from benchmarks.record import Figure, Run

RATIO_TOLERANCE, ABSOLUTE_TOLERANCE, FEW_TOLERANCE = 0.05, 0.30, 0.30
"""Smallest change that counts: of a ratio, of an absolute figure, and with fewer than :data:`ENOUGH` values."""
ENOUGH = 3

Outcome = Literal["worse", "better", "same"]


class RowComparison(NamedTuple):
    """A row's new figure and the recorded one."""

    figure: str
    title: str
    what: str
    """ratio, or the unit of an absolute figure."""
    new: Stats
    old: Stats
    outcome: Outcome
    allowed: float
    """Change that the spread and the tolerance allow, as a share."""
    recorded: Run
    counts: bool
    """False if the record is of another kind of machine."""

    def change(self) -> float:
        """Share by which the figure changed."""
        return self.new.median / self.old.median - 1

    def bound(self) -> float:
        """Largest change in this direction that does not count, as a share: of a factor 1.25, +25 % and -20 %."""
        return self.allowed if self.change() > 0 else -self.allowed / (1 + self.allowed)

    def text(self) -> str:
        other = "" if self.counts else f"; measured on {self.recorded.machine.text()}: not counted"
        return (
            f"{self.outcome}: {self.figure}: {self.title}: {self.what} {self.new.text('.4g')}, recorded "
            f"{self.old.text('.4g')} at {self.recorded.commit}: {100 * self.change():+.0f} %, "
            f"{100 * self.bound():+.0f} % allowed{other}"
        ).replace("**", "")


def judge(new: Stats, old: Stats, direction: Literal["higher", "lower"], tolerance: float) -> tuple[Outcome, float]:
    """The outcome, and the change (as a share) that was allowed."""
    gap = math.log(new.median / old.median) * (1 if direction == "higher" else -1)
    spread = max(_log_range(new), _log_range(old))
    few = FEW_TOLERANCE if min(new.n, old.n) < ENOUGH else 0.0
    allowed = max(spread, math.log1p(max(tolerance, few)))
    outcome: Outcome = "same" if abs(gap) <= allowed else "better" if gap > 0 else "worse"
    return outcome, math.expm1(allowed)


def _log_range(stats: Stats) -> float:
    return math.log(stats.high / stats.low) if stats.low and stats.high else 0.0


def compare_with_record(run: Run, recorded: Figure) -> Iterator[RowComparison]:
    """Compare each row of a run with the newest recorded run on the same kind of machine, else of any. Rows without a
    recorded one, and rows of which neither direction is better, are left out."""
    old = recorded.newest(like=run)
    if old is None:
        return
    same = run.same_machine(old)
    for row in run.rows:
        before, direction = old.row(row.title), row.direction()
        if before is None or direction == "neither":
            continue
        for what, tolerance, new_stats, old_stats in _figures(row, before, absolute=same):
            if min(new_stats.low or new_stats.median, old_stats.low or old_stats.median) > 0:
                outcome, allowed = judge(new_stats, old_stats, direction, tolerance)
                yield RowComparison(
                    recorded.figure, row.title, what, new_stats, old_stats, outcome, allowed, old, counts=same
                )


def _figures(new: MeasuredRow, old: MeasuredRow, *, absolute: bool) -> Iterator[tuple[str, float, Stats, Stats]]:
    ratio, before = new.ratio_stats(), old.ratio_stats()
    if ratio is not None and before is not None:
        yield "ratio", RATIO_TOLERANCE, ratio, before
    if absolute and new.unit == old.unit:
        yield new.unit or "quantity", ABSOLUTE_TOLERANCE, new.above_stats(), old.above_stats()


def comparison_summary(comparisons: list[RowComparison], unknown: int) -> str:
    """The lines to print: what became worse, what became better, and the counts."""
    counted = [comparison for comparison in comparisons if comparison.counts]
    lines = [comparison.text() for comparison in comparisons if comparison.outcome == "worse"]
    lines += [comparison.text() for comparison in comparisons if comparison.outcome == "better"]
    worse, better = (sum(comparison.outcome == outcome for comparison in counted) for outcome in ("worse", "better"))
    lines.append(
        f"compared with the record: {len(counted)} figures, {worse} worse, {better} better by more than the spread; "
        f"{len(comparisons) - len(counted)} of another machine, {unknown} rows without a record"
    )
    return "\n".join(lines)
