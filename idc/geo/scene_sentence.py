"""One sentence for a whole scene, from the classes, areas and positions of its polygons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

POSITIONS = (
    "at the top left", "at the top", "at the top right",
    "at the left", "in the middle", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
"""The cells of a 3x3 grid over the image, row by row."""


def position_of(x: float, y: float) -> str:
    """The cell of a point, whose coordinates are shares of width and height in [0, 1]."""
    column, row = (min(2, int(3 * share)) for share in (x, y))
    return POSITIONS[3 * row + column]


@dataclass
class Tally:
    """Number, area in square metres, and positions of changes."""

    count: int = 0
    area: float = 0.0
    positions: Counter[str] = field(default_factory=Counter)

    def add(self, area: float, position: str) -> None:
        """Count a change."""
        self.count += 1
        self.area += area
        self.positions[position] += 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dict."""
        return {"count": self.count, "area": round(self.area, 2), "positions": dict(self.positions)}


def scene_sentence(tallies: dict[str | None, Tally], least: float, compared: float) -> str:
    """What changed in a scene.

    Args:
        tallies: by the name of a class; None where there are no classes.
        least: smallest area that counts, in square metres.
        compared: share of the scene in which both images have data.
    """
    if compared == 0:
        return "The two images have no pixel in common at which both have data."
    seen = {name: tally for name, tally in tallies.items() if tally.count}
    if not seen:
        size = f" of at least {_area(least)}" if least else ""
        text = f"No change{size} was found."
    else:
        count, area = (sum(getattr(tally, name) for tally in seen.values()) for name in ("count", "area"))
        changes = "One change" if count == 1 else f"{count:,} changes"
        in_all = "" if count == 1 else " in all"
        if set(seen) == {None}:
            parts = _where(seen[None])
        else:
            largest = sorted(seen.items(), key=lambda item: -item[1].area)
            parts = "; ".join(
                f"{tally.count:,} of class {name} ({_area(tally.area)}, {_where(tally)})" for name, tally in largest
            )
        text = f"{changes}, {_area(area)}{in_all}: {parts}."
    if (missing := 1 - compared) > 0:
        share = f"{100 * missing:.0f} %" if missing >= 0.005 else "less than 0.5 %"
        text += f" In {share} of the scene there is nothing to compare."
    return text


def _where(tally: Tally) -> str:
    cells = sorted(tally.positions.items(), key=lambda item: (-item[1], POSITIONS.index(item[0])))
    if len(cells) == 1:
        return cells[0][0]
    words = [f"{count:,} {position}" for position, count in cells]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _area(value: float) -> str:
    return f"{value / 1e6:,.2f} km²" if value >= 1e6 else f"{value:,.0f} m²"
