"""Which kind of change a caption names, and how often that is the right one.

A caption that states that nothing changed (:mod:`idc.metrics.no_change`, rules for any wording) is of type "none". The
wording of others is matched against keyword rules, written for CLEVR-Change's and the rendered pairs' captions; clauses
that state sameness or name a distractor do not count: "nearly identical, except that the cube is gone" is a drop. A
caption that no rule fits names no type (``None``) and counts as wrong. The rules are tried in this order:

======== ========================================================================================================
drop     "missing", "removed", "disappeared", "gone", "is no longer there", "there is no longer a ..."
move     "moved", "shifted"; "location", "position" or "place" that changed, is new or is different
add      "added", "appeared", "newly placed", "there is a new ...", "someone put ..."
color    "the color of ... changed", "different color", or a colour as the new value: "to", "turned", "became", "now"
material the same with "material" or "texture", and rubber, matte, metal, metallic, shiny
======== ========================================================================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.metrics.no_change import DISTRACTORS, READ, clauses, states_no_change

CHANGE, NO_CHANGE_SAID = "change", "no change"
"""Rows and columns of the table of change against no change."""

LEVIR_NO_CHANGE = (
    "the scene is the same as before",
    "there is no difference",
    "the two scenes seem identical",
    "no change has occurred",
    "almost nothing has changed",
)
"""All captions of LEVIR-CC's unchanged pairs are of these (RSICC ``eval.py``, Change-Agent ``test.py``)."""

RULES = {
    "levir": "the caption is one of LEVIR-CC's five no-change sentences, as RSICC and Change-Agent count it",
    "keywords": "keyword rules of idc.metrics.changes on the predicted caption",
}

UNCLEAR = "unclear"
"""The column of the table for captions that name no change type."""

COLORS = ("gray", "grey", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
MATERIALS = ("rubber", "matte", "metal", "metallic", "shiny")

_PLACE = r"(?:location|position|place|spot)"
_RULES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "drop",
            r"\b(?:missing|removed|disappeared|disappears|vanished|gone|dropped|deleted)\b|\btaken away\b"
            r"|\bno longer (?:there|here|present|visible|in|exists?)\b|\bthere (?:is|are) no longer\b",
        ),
        (
            "move",
            r"\b(?:moved|moves|shifted|relocated|displaced)\b|\bchang\w* (?:its |the |their )?" + _PLACE + r"\b"
            r"|\b(?:different|new|another) " + _PLACE + r"\b|\b" + _PLACE + r" of .*\bchang",
        ),
        (
            "add",
            r"\b(?:added|appeared|appears|newly|introduced)\b|\b(?:is|are) (?:a )?new\b|\bput\b|\bshow(?:s|ed) up\b",
        ),
        ("color", r"\bcolou?r\b.*\bchang|\bchang.*\bcolou?r\b|\b(?:different|new|another) colou?r\b|\brecolou?red\b"),
        (
            "material",
            r"\b(?:material|texture)\b.*\bchang|\bchang.*\b(?:material|texture)\b"
            r"|\b(?:different|new|another) (?:material|texture)\b",
        ),
    )
)
_EXCEPT = r"\b(?:except(?:ing)?|apart from|aside from|other than|with the exception of|but)\b(?: for)?(?: that)?"
_ONLY = r"\bthe only (?:thing|object|one) (?:that|which) (?:has )?(?:changed|differs) (?:is|was)(?: that)?\b"
_HEAD = r"(?:colou?r|material|texture|size|orientation|location|position|number|letter|text)"
_FIRST, _SECOND = (
    rf"(?:{words})(?: (?:image|picture|photo|frame|one))?\b"
    for words in ("first|before|original|earlier", "second|after|other|later|latter")
)
_SEEN = r"\b(?:(?:is|are|was|were) (?:(?:visible|present|seen|shown|there|found) )?|appears? |exists? )"
_SEEN_IN = tuple(
    (
        re.compile(
            rf"(?:{_SEEN})?in the {side},? but (?:(?:it )?(?:is|are|was) )?(?:not|no longer|missing)"
            rf"(?: (?:visible|present|seen|shown|there))? (?:in|from) the {other_side}"
            rf"|{_SEEN}only in the {side}|\bonly {_SEEN}in the {side}"
        ),
        happened,
    )
    for side, other_side, happened in ((_FIRST, _SECOND, "was removed"), (_SECOND, _FIRST, "was added"))
)
_NEW_VALUE = re.compile(
    r"\b(?:(?<!next )(?<!close )to|into|turned|turns|became|becomes|become|now|painted)"
    r" (?:(?:a|an|be|made of|of|made|completely) )*(" + "|".join((*COLORS, *MATERIALS)) + r")\b"
)


def clauses_of(text: str) -> str:
    """A text (in lower case) with its exceptions as clauses of their own: "the same, except for the missing ball" as
    "the same, the missing ball", and "the same but for the size of the ball" as "the same, changed the size of the
    ball". What is in only one of the images was removed or added."""
    for pattern, happened in _SEEN_IN:
        text = pattern.sub(happened, text)
    text = re.sub(rf"(?:{_EXCEPT}|{_ONLY})(?= the {_HEAD}\b)(?!.*\bchang)", ", changed", text)
    return re.sub(f"{_EXCEPT}|{_ONLY}", ",", text)


@lru_cache(maxsize=4096)
def named_type(caption: str) -> str | None:
    """The change type that a caption names, of :data:`idc.data.schema.CHANGE_TYPES`; None if it is unclear."""
    if states_no_change(caption):
        return NO_CHANGE
    text = clauses_of(caption[:READ].lower())
    stated = clauses(text)
    if all(clause.kind != "same" for clause in stated):
        return _named(text)
    changing = (clause.text for clause in stated if clause.kind != "same" and not DISTRACTORS.search(clause.text))
    return _named(". ".join(changing))


def _named(text: str) -> str | None:
    """The type by the first rule that fits anywhere."""
    text = " ".join(re.findall(r"[a-z]+(?:'[a-z]+)?", text))
    for kind, pattern in _RULES:
        if pattern.search(text):
            return kind
    if values := _NEW_VALUE.findall(text):
        return "color" if values[-1] in COLORS else "material"
    return None


class TypeAgreement(BaseModel):
    """How well captions name the change type of their pairs."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    """Pairs with a type of :data:`idc.data.schema.CHANGE_TYPES`; others are not counted."""
    accuracy: float
    """Share of captions that name the right type."""
    chance_most_frequent: float
    """Accuracy of always naming the most frequent type of these pairs."""
    most_frequent: str
    per_type: dict[str, float]
    """Actual type -> share of its captions that name it."""
    table: dict[str, dict[str, int]]
    """Actual type -> named type (or ``unclear``) -> captions."""


def agreement(rows: Iterable[tuple[str | None, str]]) -> TypeAgreement | None:
    """Agreement of ``(actual change type, caption)`` rows; ``None`` if no row has one of the known types."""
    counts = Counter((actual, named_type(caption) or UNCLEAR) for actual, caption in rows if actual in CHANGE_TYPES)
    if not counts:
        return None
    table = {actual: {said: number for said in (*CHANGE_TYPES, UNCLEAR) if (number := counts[actual, said])}
             for actual in CHANGE_TYPES}  # fmt: skip
    sizes = {actual: sum(row.values()) for actual, row in table.items() if row}
    total = sum(sizes.values())
    most = max(sizes, key=lambda actual: sizes[actual])
    return TypeAgreement(
        pairs=total,
        accuracy=sum(counts[actual, actual] for actual in sizes) / total,
        chance_most_frequent=sizes[most] / total,
        most_frequent=most,
        per_type={actual: counts[actual, actual] / size for actual, size in sizes.items()},
        table={actual: table[actual] for actual in sizes},
    )


def says_no_change(caption: str, levir: bool = False) -> bool:
    """Whether a caption states that nothing changed: by the rule ``none`` above, or, with ``levir``, by being one of
    :data:`LEVIR_NO_CHANGE` (case, outer blanks and a full stop at the end do not count)."""
    if levir:
        return " ".join(caption.lower().split()).rstrip(" .") in LEVIR_NO_CHANGE
    return named_type(caption) == NO_CHANGE


class ChangeTable(BaseModel):
    """Change against no change, in the pairs and in their captions."""

    model_config = ConfigDict(extra="forbid")
    rule: str
    """The rule by which a caption counts as "nothing changed"."""
    table: dict[str, dict[str, int]]
    """``change`` and ``no change`` of the pair -> the same of its caption -> number of captions."""
    accuracy: float
    change_accuracy: float | None
    """Share of the changed pairs whose caption names a change."""
    no_change_accuracy: float | None
    chance_most_frequent: float
    """Accuracy of always naming the more frequent of the two."""


def change_table(rows: Iterable[tuple[bool | None, str]], levir: bool = False) -> ChangeTable | None:
    """The table of ``(whether the pair changed, caption)`` rows; ``None`` if it is not known for any row."""
    counts: Counter[tuple[bool, bool]] = Counter()
    counts.update((changed, not says_no_change(caption, levir)) for changed, caption in rows if changed is not None)
    if not counts:
        return None
    label = {True: CHANGE, False: NO_CHANGE_SAID}
    sizes = {actual: counts[actual, True] + counts[actual, False] for actual in label}
    total = sum(sizes.values())
    share = {actual: counts[actual, actual] / size if size else None for actual, size in sizes.items()}
    return ChangeTable(
        rule=RULES["levir" if levir else "keywords"],
        table={label[actual]: {label[said]: counts[actual, said] for said in label} for actual in label},
        accuracy=(counts[True, True] + counts[False, False]) / total,
        change_accuracy=share[True],
        no_change_accuracy=share[False],
        chance_most_frequent=max(sizes.values()) / total,
    )
