"""An edited image against the instruction for the edit: whether what was asked for is among the claims, and which share
of what changed lies outside of it. Judged by rules: no model reads the instruction.

Asked for are the objects that the instruction adds, removes or replaces, as far as the captioner has names for them. Of
other instructions ("make it brighter") nothing can be said: they are "not seen", which does not mean "not done".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from idc.captioning.objects_config import COCO_NAMES
from idc.data.schema import INSTRUCTION

Found = Literal["found", "not found", "not seen"]
_VERBS = {
    "appeared": r"add|put|insert|place|include|let there be|there should be|give|draw|have",
    "gone": r"remove|delete|erase|take away|get rid of|take out",
    "replaced": r"replace|turn|change|swap|transform|convert|make",
}
_PLACE = re.compile(
    r"\b(?:on|onto|in|inside|at|near|next to|beside|behind|under|below|over|above|from|off|around|between)\b.*"
)
_PEOPLE = r"man|men|woman|women|boy|girl|people|child|children|kid|guy|lady"
_LISTED = 3
"""Other changes that the sentence says."""


class Edit(NamedTuple):
    """The judgement of an edit.

    Attributes:
        found: whether a claim is of what was asked for; "not seen" where the captioner has no name for it.
        collateral: share of the changed area outside the claims of what was asked for; None where that was not seen, or
            nothing changed.
        sentence: both in words.
    """

    found: Found
    collateral: float | None
    sentence: str


def judged_edit(instruction: str, fields: Mapping[str, Any], names: Sequence[str] = ()) -> Edit:
    """Judge an edit by what was found to have changed.

    Args:
        fields: ``claims`` and ``regions`` of :meth:`idc.captioning.contract.Description.to_dict`.
        names: of objects that the captioner may say; by default COCO's.
    """
    claims, regions = fields["claims"] or [], fields["regions"] or []
    asked = _asked(instruction, names or COCO_NAMES)
    if asked is None:
        return Edit("not seen", None, f"The captioner has no name for what was asked for ({instruction.strip()}).")
    kind, objects = asked
    answers = [claim for claim in claims if _answers(claim, kind, objects)]
    others = [claim for claim in claims if claim not in answers]
    area = sum(region["share"] for region in regions)
    outside = sum(region["share"] * _uncovered(region["box"], answers) for region in regions)
    collateral = outside / area if area else None
    first = "; ".join(map(_clause, answers)) or f"no change of {' or '.join(objects)} was found"
    besides = [_clause(claim) for claim in others[:_LISTED]]
    besides += [f"{len(others) - _LISTED} more changes"] if len(others) > _LISTED else []
    text = "; besides, ".join(filter(None, [f"{first[0].upper()}{first[1:]}", ", ".join(besides)])) + "."
    if collateral is not None:
        text += f" {collateral:.0%} of the changed area is outside of what was asked for."
    return Edit("found" if answers else "not found", collateral, text)


def values_in(meta: Any) -> Mapping[str, Any]:
    """The columns that the ``meta`` of a row keeps, which is JSON or a mapping; empty where it is neither."""
    try:
        values = json.loads(meta) if isinstance(meta, str) else meta
    except ValueError:
        return {}
    return values if isinstance(values, Mapping) else {}


def instruction_in(meta: Any) -> str | None:
    """The instruction of a row; None without one."""
    instruction = values_in(meta).get(INSTRUCTION)
    return instruction if isinstance(instruction, str) and instruction.strip() else None


def _asked(instruction: str, names: Iterable[str]) -> tuple[str, list[str]] | None:
    """What is to happen ("appeared", "gone", "replaced"), and to which objects; None if that cannot be seen."""
    text = f" {instruction.lower()} "
    verbs = ((match.start(), match.end(), kind) for kind, verb in _VERBS.items()
             if (match := re.search(rf"\b(?:{verb})\b", text)))  # fmt: skip
    _, end, kind = min(verbs, default=(0, 0, ""))
    objects = _PLACE.sub("", text[end:])
    patterns = {name: rf"{re.escape(name)}(?:s|es)?" for name in names}
    if "person" in patterns:
        patterns["person"] += f"|{_PEOPLE}"
    positions = sorted((match.start(), name) for name, pattern in patterns.items()
                    if (match := re.search(rf"\b(?:{pattern})\b", objects)))  # fmt: skip
    if not kind or not positions:
        return None
    if kind == "replaced" and "make" in text and not re.search(r"\binto\b", text):
        return None  # of a look or a posture
    return kind, [name for _, name in positions]


def _answers(claim: Mapping[str, Any], kind: str, objects: Sequence[str]) -> bool:
    named = {claim["object"], *(claim[side] for side in ("before", "after") if claim["kind"] == "replaced")}
    if not named & set(objects):
        return False
    if kind == "replaced":
        return bool(claim["kind"] != "moved")
    if claim["kind"] == "replaced":
        return claim["after" if kind == "appeared" else "before"] in objects
    return bool(claim["kind"] == kind)


def _uncovered(box: Sequence[int], claims: Sequence[Mapping[str, Any]]) -> float:
    """Share of a region's box, on the image after, outside the boxes of claims."""
    left, top, right, bottom = box
    outside = np.ones((max(bottom - top, 1), max(right - left, 1)), bool)
    for claim in claims:
        for inner in filter(None, (claim["box_before"], claim["box_after"])):
            low, high = np.subtract(inner[:2], (left, top)).clip(0), np.subtract(inner[2:], (left, top)).clip(0)
            outside[low[1] : high[1], low[0] : high[0]] = False
    return float(outside.mean())


def _clause(claim: Mapping[str, Any]) -> str:
    name = claim["object"] if claim["count"] == 1 else f"{claim['count']} {claim['object']}s"
    if claim["kind"] == "replaced":
        return f"the {claim['before']} became {'an' if claim['after'][0] in 'aeiou' else 'a'} {claim['after']}"
    verb = {"appeared": "appeared", "gone": "is gone", "moved": "moved"}.get(claim["kind"], "changed")
    return f"the {name} {claim['where']} {verb}"
