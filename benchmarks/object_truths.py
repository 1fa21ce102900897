"""What really changed in a pair of photographs, and whether a captioner's claims agree with it.

A truth is a list of changes that a viewer read off a pair, each one line::

    gone bottle 14 58          kind, object, and its centre: per cent of the width and of the height
    ~moved person 30 50        true but not needed: what most viewers would not mention, or see only at a second look

``gone`` and ``appeared`` are of a place: what went from one place to another is gone at the one and has appeared at the
other. ``moved`` is by less than its own size; ``changed`` looks different. An empty list: nothing of substance changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from idc.captioning.contract import Claim

Verdict = Literal["true", "partly", "false", "silent"]
VERDICTS: tuple[Verdict, ...] = ("true", "partly", "false", "silent")
VAGUE = frozenset({"object", "region"})
"""Objects of a claim that may stand for anything."""
_CROWD = 5
"""Number of needed changes from which saying half of them is saying the main change."""
_PLACES = {
    "left": (0, 0, 43), "middle": (0, 23, 77), "right": (0, 57, 100), "top": (1, 0, 43), "bottom": (1, 57, 100),
}  # fmt: skip
"""Word -> axis, and least and greatest centre that it may be said of: thirds of the image with a tenth as tolerance."""


class TrueChange(NamedTuple):
    """One line of a truth; ``needed``: a description without it is not the whole truth."""

    kind: str
    object: str
    centre: tuple[float, float]
    needed: bool


def true_changes(lines: Sequence[str]) -> tuple[TrueChange, ...]:
    """The changes that the lines of a truth stand for."""
    changes = []
    for line in lines:
        kind, name, x, y = line.removeprefix("~").split()
        if kind not in ("gone", "appeared", "moved", "changed"):
            raise ValueError(f"truth {line!r}: the kind must be gone, appeared, moved or changed")
        changes.append(TrueChange(kind, name, (float(x), float(y)), not line.startswith("~")))
    return tuple(changes)


def judge_claims(
    claims: Sequence[Claim], truth: Sequence[TrueChange], width: int, synonyms: Mapping[str, Sequence[str]]
) -> tuple[Verdict, tuple[Claim, ...]]:
    """A verdict on claims, and those that no change agrees with.

    true: every claim agrees with a change and the main change is named, or nothing is claimed and nothing of substance
    changed. partly: every claim agrees, but a needed change is missing or said without its name. false: a claim agrees
    with no change. silent: nothing is claimed although something changed.

    Args:
        claims: of the captioner.
        truth: what changed.
        width: of the image before.
        synonyms: object of a truth -> names by which it may be called.
    """
    needed = {index for index, change in enumerate(truth) if change.needed}
    agreeing = [_agreeing(claim, truth, width, synonyms) for claim in claims]
    wrong = tuple(claim for claim, changes in zip(claims, agreeing, strict=True) if changes is None)
    if wrong:
        return "false", wrong
    if not claims:
        return ("silent" if needed else "true"), ()
    said = len(needed.intersection(set().union(*filter(None, agreeing))))
    return ("true" if said >= (len(needed) / 2 if len(needed) >= _CROWD else len(needed)) else "partly"), ()


def _agreeing(
    claim: Claim, truth: Sequence[TrueChange], width: int, synonyms: Mapping[str, Sequence[str]]
) -> set[int] | None:
    """Indices of the changes that a claim names, none where it is vague; None if it agrees with no change."""
    order = sorted(range(len(truth)), key=lambda index: not truth[index].needed)
    several = claim.kind == "moved" and claim.count > 1  # all of them are in other places
    for parts, named in _readings(claim, width):
        changes: set[int] = set()
        for kind, name, where in parts:
            called = [
                index for index in order
                if index not in changes and truth[index].kind == kind and _fits(where, truth[index].centre, claim.count)
                and (name in VAGUE or name == truth[index].object or name in synonyms.get(truth[index].object, ()))
            ]  # fmt: skip
            changes.update((called if several else called[:1]) or [-1])
        if -1 not in changes:
            return changes if named and not VAGUE.intersection(name for _, name, _ in parts) else set()
    return None


def _readings(claim: Claim, width: int) -> Iterator[tuple[list[tuple[str, str, str]], bool]]:
    """What a claim may mean, the most precise first: kind, object and place of the changes that must all be true, and
    whether it names them."""
    name, where = claim.object, claim.where
    if claim.kind in ("gone", "appeared"):
        yield [(claim.kind, name, where)] * claim.count, True
    elif claim.kind == "replaced" and name != "words":  # whose before and after are no names
        yield [("gone", claim.before or name, where), ("appeared", claim.after or name, where)], True
    elif claim.kind == "moved":
        left, _, right, _ = claim.box_before or (0, 0, 0, 0)
        old = (
            ("left", "middle", "right")[min(2, int(3 * (left + right) / 2 / width))]
            if right and claim.count == 1
            else ""
        )
        yield [("gone", name, old), ("appeared", name, where)], True
        yield [("moved", name, where)], True
    else:
        yield [("changed", name, where)], True
        yield [("moved", name, where)], True
        yield [("gone", name, where), ("appeared", name, where)], False  # one went, and another came
        if name in VAGUE:
            yield [("gone", name, where)], False
            yield [("appeared", name, where)], False


def _fits(position: str, centre: tuple[float, float], count: int) -> bool:
    """Whether a thing with this centre may be said to be at a place, or several things one of which it is."""
    limits = [_PLACES[word] for word in re.findall("|".join(_PLACES), position)]
    fits = [low <= centre[axis] <= high for axis, low, high in limits]
    return not fits or (all if count == 1 else any)(fits)
