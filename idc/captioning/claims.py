"""What changed, as data: claims, and the regions that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

ClaimKind = Literal["appeared", "gone", "moved", "replaced", "changed"]


@dataclass(frozen=True)
class Region:
    """A part of the image after that differs from the image before.

    Attributes:
        box: left, top, right and bottom in pixels of the image after; right and bottom are the first ones outside.
        share: of the image's area that the region covers (not the box), in (0, 1].
        position: where it is, in words, such as "at the top left".
        before, after: the name of its colour in either image.
    """

    box: tuple[int, int, int, int]
    share: float
    position: str
    before: str
    after: str


@dataclass(frozen=True)
class Claim:
    """One thing that changed, as data.

    Attributes:
        kind: appeared, gone, moved, replaced (by another thing), or changed (the same thing looks different).
        object: its name in the singular, such as "car"; "object" where the name is not sure, "words" for text, "region"
            for a part that could not be named.
        count: number of such things.
        where: its place in words, such as "on the left"; of a moved thing the new one.
        box_before, box_after: where it was and is: left, top, right and bottom in pixels of the image before, and of
            the image after; right and bottom are the first ones outside. None where it was not there. Around all of
            them where ``count`` is more than 1.
        confidence: in [0, 1].
        before, after: what it was and became, where that says more: the words that were read, the names of the replaced
            and the replacing thing, the colours of a region.
        aspect: what kind of difference, where that is known: "words", "font size", "font weight", "letter spacing",
            "line height", "colour", "opacity", "background", "border", "corners", "position", "spacing", "visibility",
            or "look" for any other one.
        amount, unit: by how much, where that is measured: in "px", or in "%" of what it was.
    """

    kind: ClaimKind
    object: str
    count: int
    where: str
    box_before: tuple[int, int, int, int] | None
    box_after: tuple[int, int, int, int] | None
    confidence: float
    before: str | None = None
    after: str | None = None
    aspect: str | None = None
    amount: float | None = None
    unit: str | None = None


def json_able(records: Sequence[Region | Claim] | None) -> list[dict[str, Any]] | None:
    """The fields of records as JSON has them; None for None."""
    if records is None:
        return None
    return [
        {name: list(value) if isinstance(value, tuple) else value for name, value in vars(record).items()}
        for record in records
    ]
