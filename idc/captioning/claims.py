"""What changed, as data: claims, and the regions that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
            "line height", "colour", "opacity", "background", "border", "corners", "shadow", "picture", "position",
            "spacing", "order", "visibility", "page" (another one), or "look" for any other one.
        amount, unit: by how much, where that is measured: in "px", or in "%" of what it was.
        text: the claim as a sentence; None where another claim's says it too, as of what a larger text pushed down.
            Claims are equal without it.
        page: its number, from 1, in the document after; in the one before for what is gone with its page; None for
            images.
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
    text: str | None = field(default=None, kw_only=True, compare=False)
    page: int | None = field(default=None, kw_only=True)


_OTHER_WAY: dict[ClaimKind, ClaimKind] = {"appeared": "gone", "gone": "appeared"}
_SAME_PLACE = 0.5
"""Intersection over union from which two boxes are of one thing."""


def turn_round(claims: Sequence[Claim], swapped: Sequence[Claim]) -> bool:
    """Whether the claims about the swapped pair are the reverse of these, all of them and no more: appeared for gone,
    the boxes, words and colours exchanged."""
    left = list(swapped)
    for claim in claims:
        reverse = replace(
            claim, kind=_OTHER_WAY.get(claim.kind, claim.kind), before=claim.after, after=claim.before,
            box_before=claim.box_after, box_after=claim.box_before,
        )  # fmt: skip
        match = next((other for other in left if _are_alike(reverse, other)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _are_alike(claim: Claim, other: Claim) -> bool:
    named = claim.kind == "replaced" or claim.object == other.object  # of two things either may give the name
    said = (claim.kind, claim.count, claim.before, claim.after) == (other.kind, other.count, other.before, other.after)
    boxes = ((claim.box_before, other.box_before), (claim.box_after, other.box_after))
    return named and said and all(_same_place(*pair) for pair in boxes)


def _same_place(box: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    if box is None or other is None:
        return box is other
    sides = [min(box[2 + at], other[2 + at]) - max(box[at], other[at]) for at in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(each[2] - each[0]) * (each[3] - each[1]) for each in (box, other)]
    return shared >= _SAME_PLACE * (sum(areas) - shared)


def json_able(records: Sequence[Region | Claim] | None) -> list[dict[str, Any]] | None:
    """The fields of records as JSON has them; None for None."""
    if records is None:
        return None
    return [
        {name: list(value) if isinstance(value, tuple) else value for name, value in vars(record).items()}
        for record in records
    ]
