"""The list of true differences of a rendered pair; the ``meta`` of a pair of a scene with several changes has it.

``meta["before"]`` and ``meta["after"]`` are the objects of the two images, ``meta["differences"]`` is a list of
``{"kind": ..., "before": [...], "after": [...]}``, whose numbers are indices in these two lists:

=========== ============================================================================ =====================
kind        what changed                                                                 OmniDiff's name
=========== ============================================================================ =====================
add         an object is there only after                                                addition
drop        an object is there only before                                               removal
replace     an object of another shape stands in its place                               substitution
size        an object is small instead of large, or large instead of small               size
color       its colour                                                                   color
material    its material                                                                 none
orientation it is turned about the vertical axis                                         orientation
move        it stands in another place                                                   none
count       the number of objects of one look; these are all of them, before and after   counting
text        what is written on it                                                        OCR
=========== ============================================================================ =====================

No object has part in two differences. Camera and light may change too; these are no differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

DifferenceKind = Literal["add", "drop", "replace", "size", "color", "material", "orientation", "move", "count", "text"]
KINDS: tuple[str, ...] = get_args(DifferenceKind)

OMNIDIFF_TYPES: dict[str, str] = {
    "add": "addition",
    "drop": "removal",
    "replace": "substitution",
    "size": "size",
    "color": "color",
    "orientation": "orientation",
    "count": "counting",
    "text": "OCR",
}
"""Kind -> the name of that type of change in OmniDiff; kinds without an entry are none of its twelve."""

REVERSED: dict[str, str] = {"add": "drop", "drop": "add"}
"""Kinds that are another one in reverse order."""

DifferenceRecord = Mapping[str, Any]
"""A difference as ``meta`` has it."""

DIFFERENCES = "differences"
"""The key of the list in ``meta``."""

_COUNTS = {"add": (0, 1), "drop": (1, 0)}
"""Kind -> number of objects before and after; of ``count`` any two different numbers, of all others one and one."""


@dataclass(frozen=True)
class Difference:
    """A difference of a pair.

    Attributes:
        kind: of :data:`KINDS`.
        before, after: the objects it is about, as ``meta`` has them: none before if one was added, none after if one
            was removed, the whole group in either image if the number of objects changed, else one each.
    """

    kind: str
    before: tuple[Mapping[str, Any], ...]
    after: tuple[Mapping[str, Any], ...]


def differences_of(meta: Mapping[str, Any]) -> tuple[Difference, ...] | None:
    """The true differences of a pair, none for a pair without changes; None if its ``meta`` has no list.

    Raises:
        ValueError: the list does not have the form above.
    """
    if DIFFERENCES not in meta:
        return None
    differences = []
    for number, record in enumerate(meta[DIFFERENCES]):
        kind = record.get("kind")
        if kind not in KINDS:
            raise ValueError(f"{DIFFERENCES}[{number}].kind is {kind!r}, none of {', '.join(KINDS)}")
        sides = []
        for side in ("before", "after"):
            indices: Sequence[int] = record.get(side, ())
            if not all(isinstance(index, int) and 0 <= index < len(meta[side]) for index in indices):
                raise ValueError(
                    f"{DIFFERENCES}[{number}].{side} is {indices!r}, not a list of places in the {len(meta[side])} "
                    f"objects of {side}"
                )
            sides.append(tuple(meta[side][index] for index in indices))
        counts = (len(sides[0]), len(sides[1]))
        if counts[0] == counts[1] if kind == "count" else counts != _COUNTS.get(kind, (1, 1)):
            raise ValueError(
                f"{DIFFERENCES}[{number}] is of kind {kind!r} with {counts[0]} objects before and {counts[1]} after"
            )
        differences.append(Difference(kind, *sides))
    return tuple(differences)


def reversed_differences(differences: Sequence[DifferenceRecord]) -> list[DifferenceRecord]:
    """The differences of a pair for its images in reverse order."""
    return [
        {"kind": REVERSED.get(record["kind"], record["kind"]), "before": record["after"], "after": record["before"]}
        for record in differences
    ]


def difference_fields(differences: Sequence[DifferenceRecord]) -> dict[str, Any]:
    """What ``meta`` has of the differences of a pair."""
    kinds = {difference["kind"] for difference in differences}
    return {
        DIFFERENCES: differences,
        "types": sorted(OMNIDIFF_TYPES[kind] for kind in kinds if kind in OMNIDIFF_TYPES),
        "changeflag": int(bool(differences)),
    }
