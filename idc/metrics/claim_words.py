"""The words by which :mod:`idc.metrics.claims` reads captions of rendered scenes.

In the patterns ``np3`` is the third noun phrase of a text ("small red cube"), ``look3`` the same without a noun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from idc.metrics.change_types import COLORS
from idc.rendered.captions import ANY_SHAPE, SYNONYMS
from idc.rendered.sentences import NUMBER_WORDS

_KIND_OF = {
    **dict.fromkeys(("large", "small"), "size"),
    **dict.fromkeys(("rubber", "metal"), "material"),
    **dict.fromkeys(("sphere", "cube", "cylinder"), "shape"),
}
WORDS: dict[str, tuple[str, str]] = {
    **{word: (_KIND_OF[value], value) for value, words in SYNONYMS.items() for word in words},
    **{color: ("color", color) for color in COLORS},
    "grey": ("color", "gray"),
}
"""Word -> (attribute, value), the inverse of the captions' synonyms."""

SIDE, TEXT, COUNT = "side", "text", "count"
"""Further names in an old or new look, besides attributes: a side of the picture, a letter, a number."""

MORE, FEWER = "more", "fewer"
"""Values of :data:`COUNT` without a number; ``more by 2`` and ``fewer by 2`` are further ones."""

ATTRIBUTE_WORDS: dict[str, tuple[str, str]] = {
    **WORDS,
    **dict.fromkeys(("larger", "bigger", "huge", "giant"), ("size", "large")),
    **dict.fromkeys(("smaller", "little"), ("size", "small")),
    **dict.fromkeys(("glossy", "reflective"), ("material", "metal")),
    "matt": ("material", "rubber"),
    "box": ("shape", "cube"),
}
OBJECT_NOUNS = frozenset((*(word for word, (kind, _) in WORDS.items() if kind == "shape"), *ANY_SHAPE))
"""Nouns that describe an object for :func:`idc.metrics.claims.read_object_claims`."""
RELATION = re.compile(
    r"\b(?:left of|right of|(?:left|right) side of|in front of|behind|beside|near|"
    r"(?:next|close|closer|nearer|adjacent|opposite|relative) to)(?: the| an?)?$"
)
NEW_LOOK = re.compile(r"\b(?:to|into|turned|turns|became|becomes|become|now|painted)(?: an?| the| be| made| of)*$")
_SHAPES = {word: value for word, value in ATTRIBUTE_WORDS.items() if value[0] == "shape"}
NOUNS = {word: frozenset((value,)) for word, value in _SHAPES.items()} | dict.fromkeys(
    (*ANY_SHAPE, "item", "shape"), frozenset[tuple[str, str]]()
)
PLURALS = {**{f"{word}s": word for word in NOUNS}, "boxes": "box"}
NUMBERS = {word: number for number, word in enumerate(NUMBER_WORDS)} | {"no": 0, "single": 1}
SIDES = {
    "left": "left", "right": "right", "front": "front", "foreground": "front", "back": "behind",
    "background": "behind", "rear": "behind",
}  # fmt: skip

STOPS = frozenset(".;!?")
JOINTS = frozenset((",", "and", "while", "but", "then", "whereas", "also"))
ARTICLES = frozenset(("the", "a", "an", "another"))
LINKS = frozenset(
    (
        "of", "to", "by", "with", "from", "on", "in", "at", "for", "into", "than", "behind", "near", "beside", "as",
        "now", "is", "are", "was", "were", "that", "which", "has", "have", "where", "become", "became", "turned",
        "away", "longer", "no", "new", "replaced", "between",
    )
)  # fmt: skip
"""A noun phrase after one of these belongs to the clause before it."""
TRANSITIVE = frozenset(
    (
        "removed", "added", "rotated", "moved", "changed", "dropped", "put", "placed", "painted", "took", "deleted",
        "shifted",
    )
)  # fmt: skip
"""The same, unless the clause has named its object already."""
HEADS = frozenset(
    "number letter color colour material texture size orientation location position text".split()  # noqa: SIM905
)

_SIDE = r"(left|right|front|back|foreground|background|rear)\b(?!(?: hand)?(?: side)? of np| image| picture| photo)"
_NEAR = r"(?:next to|beside|near|close to)"
ANCHOR = re.compile(rf"\b(?:(left|right)(?: hand)?(?: side)? of|(in front) of|(behind)|({_NEAR})) np(\d+)\b")
IS_AT = re.compile(rf"\b(?:on|in|at)(?: the)? (?:far |very )?{_SIDE}(?! of np)")
FROM_SIDE = re.compile(rf"\bfrom(?: the)? {_SIDE}")
TO_SIDE = re.compile(rf"\b(?:to|towards?|into)(?: the)? (?:far )?{_SIDE}")
WAYS = (
    (re.compile(r"\bforwards?\b|\b(?:closer|nearer)\b"), "front"),
    (re.compile(r"\bbackwards?\b|\b(?:further|farther)\b"), "behind"),
    (re.compile(r"\bleftwards?\b"), "left"),
    (re.compile(r"\brightwards?\b"), "right"),
)
OLD = re.compile(
    r"\b(?:(?:from|instead of|rather than)(?: being)? (?=np|look)|(?:no longer|not|isn't|used to be) (?=look))"
    r"(np|look)(\d+)\b"
)
NOT_DONE = re.compile(
    r"\b(?:not|never|\w+n't)(?: been)? \w+ed\b|\b(?:0|none of) np\d+ (?:was|were|is|are|has|have)(?: been)? \w+ed\b"
)
"""That something did not happen."""
NEW = re.compile(
    r"\b(?:to|into|turned|turns|became|becomes|become|now|painted|(?:replaced|substituted|swapped|exchanged)"
    r"(?: out)? (?:by|with|for))(?: (?:be|made|of|completely|out|all))* (np|look)(\d+)\b"
)
PREDICATE = re.compile(r"\b(?:that|which) (?:is|was|are|were)(?: made of)? look(\d+)\b")
TAKES_PLACE = re.compile(
    r"\bnp(\d+)\b.*?(?:(?<!been )(?<!was )(?<!is )(?<!were )\breplace[ds]|\bplace of|\bwhere) np(\d+)\b"
)
SHOWN_INSTEAD = re.compile(r"\bnp(\d+) instead of np(\d+)\b")
SOME = "|".join((*(word for word in NUMBERS if word not in ("no", "single")), r"\d+"))
COUNTS_OLD = re.compile(rf"\b(?:from|instead of|was|were|used to be|rather than) (?:only )?({SOME})\b")
COUNTS_NEW = re.compile(rf"\b(?:to|now|become|became|only) (?:there_is )?(?:only )?({SOME})\b")
COUNT_STEP = re.compile(rf"\b({SOME}) (?:np\d+ )?(more|additional|extra|fewer|less)\b")
UP = re.compile(r"\b(?:increas\w+|risen|rose|grown|grew|up|more|added|additional|appear\w*|new)\b")
DOWN = re.compile(r"\b(?:decreas\w+|fallen|fell|dropped|shrunk|down|fewer|less|removed|missing|gone|disappear\w*)\b")
_LETTER = r"(?:(?:the|an?) )?(?:letter )?\"?([a-z])\b"
LETTER_OLD = re.compile(rf"\b(?:from|instead of|was|rather than) {_LETTER}|\b(?:letter|the) ([a-z]) (?:on|of) np")
LETTER_NEW = re.compile(
    rf"\b(?:to|into|now|become|became|reads?|says|shows|has the letter|replaced (?:by|with)) {_LETTER}"
)

KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (TEXT, r"\b(?:letters?|text|writing|characters?|inscription|reads?|says|written)\b|\bthe [a-z] on np"),
        (
            COUNT,
            rf"\bnumber of\b|\bfrom (?:{SOME}) to (?:{SOME})\b|\bnow (?:there_is )?(?:only )?(?:{SOME})\b"
            rf"|\binstead of (?:{SOME})\b|\b(?:used to be|there (?:was|were)) (?:{SOME})\b"
            rf"|\b(?:{SOME}) (?:np\d+ )?(?:more|additional|extra|fewer|less)\b|\b(?:more|fewer) np",
        ),
        (
            "replace",
            r"\breplac\w+|\bsubstitut\w+|\bplace of np|\bwhere np\d+ (?:was|stood|used)"
            r"|\b(?:swapped|exchanged)(?: out)? (?:for|with|by)\b",
        ),
        (
            "orientation",
            r"\brotat\w+|\borient\w+|\bspun\b|\btilt\w*|\bfac(?:es|ing)\b"
            r"|\b(?:different|another|other|new|changed)(?: its)? (?:direction|way|angle)\b"
            r"|\bturned (?:around|about|by|slightly|sideways)\b|\b(?:been|was|is) turned(?: [.,]|$)",
        ),
        (
            "size",
            r"\b(?:grown|grew|grows|shrunk|shrank|shrinks|enlarged|resized)\b"
            r"|\bsize\b.*\b(?:chang|differ|increas|decreas)|\b(?:chang\w*|different|another|new)\b.*\bsize\b"
            r"|\b(?:increased|decreased) in size\b",
        ),
    )
)
GROWN, SHRUNK = re.compile(r"\b(?:gr[oe]wn?|grows|enlarged)\b"), re.compile(r"\b(?:shr[aiu]nks?|decreas\w+)\b")
FURTHER = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("drop", r"\b(?:took|taken|take) (?:np\d+ )?away\b|\bvanish\w*|\babsent\b|\b(?:not|isn't) there\b"),
        (
            "move",
            r"\bnow (?:on|at|in|closer|nearer|further|farther|behind)\b|\b(?:slid|pushed|repositioned|traded places)\b"
            r"|\bswapped places\b",
        ),
        ("add", r"\b(?:new|additional|extra) np|\bnow there_is np|\b(?:inserted|placed)\b"),
    )
)


def first_kind(rules: Iterable[tuple[str, re.Pattern[str]]], text: str) -> str | None:
    """The first kind whose pattern fits anywhere."""
    return next((kind for kind, pattern in rules if pattern.search(text)), None)


MARK = re.compile(r"(np|look)(\d+)$")
THERE = re.compile(r"\b(?:there is now|now there is)\b")
MOVES = re.compile(r"\b(?:moved|moves|shifted|relocated|displaced|now|slid|pushed|repositioned)\b")
VAGUE = re.compile(r"\b(?:chang\w+|differ\w*|alter\w*|modif\w+|transform\w+)\b")
_BECOMES = r"\b(?:is|are|looks?|appears?|got|gotten|made|become|became|becomes|now)(?: to be)?(?: \w+)?"
_NO_NOUN = rf"(?!(?: (?:{'|'.join(ATTRIBUTE_WORDS)})){{0,3}} (?:{'|'.join((*NOUNS, *PLURALS))})\b)"
COMPARED = tuple(
    (re.compile(rf"{_BECOMES} (?:{words})\b{_NO_NOUN}"), f"become {value}")
    for words, value in (("bigger|larger", "large"), ("smaller", "small"))
)
"""A comparative that is said of an object, and what it is read as."""
