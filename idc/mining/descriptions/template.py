"""The template of NAMC's descriptions: making, reading and refusing its sentences (Guo et al., appendix D.2)."""

from __future__ import annotations

import re
from typing import NamedTuple

# fmt: off
VERBS = (
    "is", "describes", "depicts", "illustrates", "displays", "demonstrates", "introduces", "has", "positions",
    "starts", "places", "discusses", "promotes", "takes", "converts", "adopts", "presents", "reveals", "incorporates",
    "aims", "refers", "offers", "focuses", "suggests", "attributes", "specifies", "captures", "symbolizes",
    "advertises", "conveys", "features", "appears", "consists", "remains", "shows", "lists", "explains", "shifts",
    "indicates", "provides", "contains", "exhibits", "labels", "sets", "looks", "states", "showcases", "creates",
    "centers",
)
# fmt: on
"""The descriptive verbs of appendix D.2. The printed list has a blank entry after "illustrates", which is left out: a
template without a verb could not be read."""

TEMPLATE = (
    "The difference between the two images is that the first image {descriptive verb} [object description], while the "
    "second image {descriptive verb} [object description]."
)
"""The template as instructions give it."""

OFF_TEMPLATE, DENIAL = "off template", "only denies"
"""The two reasons of a refusal, the codes in front of its text."""

_FIRST, _SECOND = "the difference between the two images is that the first image", "while the second image"
_SENTENCE = re.compile(rf"{_FIRST} (?P<before>.+?),? {_SECOND} (?P<after>.+?)[.\s]*", re.IGNORECASE)
_NEXT_SENTENCE = re.compile(r"[a-z0-9]{3}[.!?][\"')]*\s+[\"'(]?[A-Z]")
"""The end of a sentence inside a description; three characters before the full stop spare "St. John" and "J. Doe"."""
_CLAUSE = re.compile(r"[,;.]|\b(?:and|but|while)\b")
_WORD = re.compile(r"[a-z]+(?:['\u2019][a-z]+)?")
# fmt: off
_NEGATIONS = frozenset((
    "no", "not", "none", "nothing", "nobody", "nowhere", "neither", "nor", "never", "without", "cannot", "lacking",
))
_EMPTY_WORDS = frozenset((
    "is", "are", "was", "were", "be", "been", "being", "do", "does", "did", "done", "has", "have", "had", "having",
    "can", "could", "will", "would", "may", "might", "must", "shall", "should", "it", "they", "this", "that", "these",
    "those", "there", "one", "something", "anything", "someone", "anyone", "any", "so",
))
# fmt: on
"""Auxiliary verbs, and pronouns that name nothing by themselves."""


class PairDescription(NamedTuple):
    """The four slots of the template.

    ``before`` and ``after`` are the object descriptions of the two images, T_1 and T_2 in the paper; the verbs are
    words of :data:`VERBS`.
    """

    verb_before: str
    before: str
    verb_after: str
    after: str

    def sentence(self) -> str:
        """The whole sentence; :func:`parse_description` is its inverse."""
        return (
            f"The difference between the two images is that the first image {self.verb_before} {self.before}, while "
            f"the second image {self.verb_after} {self.after}."
        )


def parse_description(sentence: str) -> PairDescription:
    """Read a sentence of the template.

    Case of the template's own words, blanks, quotation marks around the whole and the full stop at the end do not
    count. A description is kept as it is written.

    Raises:
        ValueError: beginning with :data:`OFF_TEMPLATE` if the sentence does not follow the template, with
            :data:`DENIAL` if the description of an image only says what is not in it.
    """
    text = " ".join(sentence.split()).strip("\"'`*\u201c\u201d ")
    match = _SENTENCE.fullmatch(text)
    if match is None:
        for needed in (_FIRST, _SECOND):
            if needed not in text.lower():
                raise ValueError(f"{OFF_TEMPLATE}: there is no {needed!r} in {_short(text)}")
        raise ValueError(f"{OFF_TEMPLATE}: text around the template, or an empty slot, in {_short(text)}")
    slots: list[str] = []
    for name, image in (("before", "first"), ("after", "second")):
        verb, _, description = match[name].partition(" ")
        description = description.strip(" .,")
        if verb.lower() not in VERBS:
            raise ValueError(f"{OFF_TEMPLATE}: {verb!r} after 'the {image} image' is not a verb of the list")
        if not _WORD.search(description.lower()):
            raise ValueError(f"{OFF_TEMPLATE}: the {image} image has no description in {_short(text)}")
        if _NEXT_SENTENCE.search(description):
            raise ValueError(f"{OFF_TEMPLATE}: more than one sentence in {_short(text)}")
        if _only_denies(description):
            raise ValueError(f"{DENIAL}: the {image} image {verb} {_short(description)}")
        slots += [verb.lower(), description]
    return PairDescription(*slots)


def _only_denies(description: str) -> bool:
    """Whether every clause begins with a negation, or has nothing but auxiliary verbs and pronouns in it: "no cube",
    "it is not", "not there"; not "a desk and no cube"."""
    clauses = (_WORD.findall(clause) for clause in _CLAUSE.split(description.lower()))
    return all(_denies(words) for words in clauses if words)


def _denies(words: list[str]) -> bool:
    named = [word for word in words if word not in _EMPTY_WORDS]
    return not named or named[0] in _NEGATIONS or named[0].endswith(("n't", "n\u2019t"))


def _short(text: str) -> str:
    return repr(text if len(text) <= 160 else text[:157] + "...")
