"""Whether a caption states that nothing changed, in the words of data sets, of people and of language models.

A caption is cut into clauses. It states that nothing changed if at least one clause says so and no clause names a
change: "no change in the buildings, but a new road was built" has one of each. The kinds of a clause are tried in this
order:

=========== =========================================================================================================
``same``    a change that is denied ("no differences", "nothing was added", "none has moved", "I cannot see any
            change"), or sameness as the predicate ("look exactly alike", "remains unchanged", "show the same scene",
            "is where it was"); sameness of something described ("the two identical cars", "of the same size") is none
distractor  what may differ though nothing changed: light, shadows, the camera
``change``  a word of change ("appeared", "is gone", "wider"), sameness that is denied ("are not identical"), an
            exception ("except for the ball"), and whatever follows "but", "only" or "however" without being one of the
            above
other       everything else: "as far as I can tell", "both images show a street"
=========== =========================================================================================================

Error on sentences that were not looked at when the rules were written: tests/metrics/test_no_change.py. Imports no
other module of this project.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

ClauseKind = Literal["same", "distractor", "change", "other"]


class Clause(NamedTuple):
    """A clause of a caption in lower case.

    Attributes:
        kind: see the module's description.
    """

    text: str
    kind: ClauseKind


DISTRACTORS = re.compile(
    r"\b(?:camera|view ?points?|viewing|perspective|angles?|illumination|shadows?|brightness|brighter|darker|exposure"
    r"|contrast|time of day|sunlight|weather|season|zoom|noise|blur\w*|sharpness|compression|image quality"
    r"|(?<!traffic )(?<!street )light(?:s|ing)?(?! (?:is|are|was|were|has|turned)\b))\b"
)
"""What may differ though nothing changed."""

# Where a caption is cut: punctuation, words that turn against what was said, exceptions, and before subjects.
_EXCEPT = (
    r"\b(?:except(?:ing)?|apart from|aside from|other than|besides|with the exception of|but for)\b(?: for)?(?: that)?"
)
_ONLY = (
    r"\bthe (?:only|sole|one) (?:visible |noticeable |real |minor |slight )?(?:difference|change|thing|object|one)s?"
    r"(?: (?:that|which)(?: [\w'-]+){0,8}?)? (?:is|are|was)(?: that| in)?\b"
)
_TURN = r"\b(?:but|however|yet|whereas|while|although|though|only)\b"
_SUBJECT = (
    r"(?:the|a|an|there(?:'s)?|it(?:'s)?|they|i|he|she|one|two|three|several|some|many|now|someone|something|otherwise"
    r"|this|these|those|which|where|no|nothing|none|neither|all|every\w*|both|another)\b"
)
_CUT = re.compile(rf"[.;:!?]+|,? ?{_TURN},?|, (?={_SUBJECT})|,? and (?={_SUBJECT})|, (?=in the (?:second|after)\b)")

# A change that is denied: a denial, at most seven other words, and a noun or verb of change.
_DENIED = (
    r"(?:no(?! longer| doubt| one can)|not(?! (?:on|in|at|near|from|there|seen|present|visible)\b)|cannot|\w+n't|none"
    r"|neither|nor|never|nothing|without|zero|hardly|barely|(?:un|not )able to|fail(?:s|ed)? to)"
)
_GAP = r"(?:(?!(?:where|which|who|since|because|other|further|more|additional|longer|any ?more)\b)[\w'/-]+,? ){0,7}?"
_NOUN = r"(?:chang(?:e|es)|differences?|alterations?|modifications?|discrepanc(?:y|ies)|variations?)"
_EVENT = r"(?:construction|demolition|movement|development|activity|tampering)"
_CHANGED = (
    r"(?:chang(?:e|es|ed)|differs?|differed|different|altered|modified|added|removed|moved|moves|replaced|built"
    r"|constructed|demolished|extended|recolou?red|introduced|(?:has|have|had) appeared|disappeared|vanished|missing"
    r"|shifted|taken away|happened|happens|occurred|new)"
)
# Sameness as the predicate of a clause.
_ALIKE = (
    r"(?:same|identical|unchanged|unaltered|unmodified|alike|indistinguishable|equal|equivalent|consistent|constant)"
)
_END = r"(?:$|,| (?:in|as|to|across|for|over|between|from|throughout|with|and|at|on|here|overall|scene)\b)"
_BE = (
    r"(?:is|are|was|were|be|been|being|looks?|looked|appears?|appeared|seems?|seemed|remains?|remained|stays?|stayed"
    r"|'re|'s)"
)
_SHOW = r"(?:shows?|depicts?|contains?|presents?|displays?|captures?|shares?|has|have)"
_WHOLE = (
    r"(?:(?:scene|image|picture|photo|photograph|frame|view|place|room|area|object|item)s?|things|content|arrangement)"
)
_BEFORE = r"(?:same|original|previous)"
_SPOT = r"(?:position|place|location|spot)"
_WERE = r"(?:it|they|he|she) (?:was|were|are|is|had been)\b(?! not)"
_SAME = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b{_DENIED} {_GAP}{_NOUN}\b",
        rf"\b{_DENIED} {_GAP}(?:signs?|evidence|traces?|indications?) of {_GAP}(?:{_NOUN}|{_EVENT})\b",
        rf"\b{_DENIED} {_GAP}{_CHANGED}\b",
        rf"{_BE} (?:[\w'-]+ ){{0,4}}?{_ALIKE}{_END}",
        rf"\b{_SHOW} (?:[\w'-]+ ){{0,2}}?same (?:\w+ )?{_WHOLE}\b",
        rf"(?:^|\b(?:it|this|they|these|that)(?:'s|'re| is| are) )(?:(?:exactly|just|still|both|the|exact) )*"
        rf"same(?: exact)? {_WHOLE}\b",
        r"\bcopies of the same\b",
        rf"{_BE} (?:[\w'-]+ ){0, 8}?(?:at|in) (?:the|their|its) (?:exact )?{_BEFORE} {_SPOT}s?\b",
        rf"\bin (?:the|their) (?:exact )?{_BEFORE} {_SPOT}s\b",
        rf"{_BE} (?:(?:exactly|just|still|all) )*(?:as|where|how|the way) {_WERE}",
        rf"{_BE} (?:exactly |just )?(?:as before|in place(?! of))\b",
        r"\bstill (?:there|here|present|in place|in (?:its|their)|the same)\b",
        rf"\b{_WHOLE} (?:\w+ )?match(?:es)?\b",
        rf"^(?:(?:exactly|the|exact|both|two) )*(?:{_WHOLE} )?{_ALIKE}(?: in both \w+)?$",
        r"^(?:no|none|nothing|nope)$",
    )
)
_DENIED_SAMENESS = re.compile(
    rf"\b(?:not|\w+n't|no longer|never|neither|hardly) (?:[\w'-]+ ){{0,5}}?(?:{_ALIKE}|as before)\b"
    r"|\bnot (?:all|every\w*|both|much of)\b"
)
_REST = re.compile(
    r"\b(?:else|rest|remaining|most(?:ly)?|largely|other (?:objects?|things|parts?|areas?|items?)"
    r"|no (?:other|further|more|additional))\b"
)
"""Words that leave room for a change elsewhere: such a clause states nothing about the whole."""
_CHANGE = re.compile(
    r"\b(?:added|removed|appeared|appears?(?! (?:to|the|similar|very|nearly|almost|quite|unchanged|identical)\b)"
    r"|disappear\w*|vanish\w*|gone|missing|new|newly|moved|moves|shifted|replaced|turn(?:ed|s)|bec(?:ame|omes?)|built"
    r"|constructed|demolished|destroyed|extended|widened|put|placed|taken|swapped|rotated|grown|shrunk|larger|smaller"
    r"|bigger|wider|taller|shorter|fewer|different|differently|differs?|no longer|any ?more|now|entered"
    r"|(?:has|have) left|left the|walk\w*|drove|opened|closed|changed|changes|collapsed|melted|fallen|risen|raised"
    r"|increased|decreased|(?:one|two|three|\w+s) more|additional|another|re?painted|recolou?red|upside|open|cut down"
    r"|(?<!was )not (?:there|visible|present)|without)\b|\b(?:has|have|did)$"
)
_LETTERING = re.compile(
    r"\b(?:(?:the|a|an) no|(?:words?|says|reads|reading|saying) (?:the )?(?:words? )?no) \w+(?: (?:change|sign)\b)?"
    r"|\bno doubt\b"
)
"""Signs with "no" on them, and "no doubt": no denial of a change."""


READ = 4000
"""Characters of a caption that are read. No caption is longer, and a hostile one would cost quadratic time."""


def clauses(caption: str) -> list[Clause]:
    """The clauses of a caption with their kinds, in order; exceptions ("except for the ball") are clauses too."""
    text = " ".join(caption[:READ].lower().replace("\u2019", "'").split())
    # Tokenised texts write "do n't" or "don t", hurried ones "dont".
    text = re.sub(r"\b(ca|do|does|did|is|are|was|were|has|have|had|could|would)(?: n't|n t|nt)\b", r"\1n't", text)
    text = _LETTERING.sub("the sign", text)
    text = re.sub(rf"{_ONLY}|{_EXCEPT}", ". besides", text)  # marks the exception for _classified
    stated: list[Clause] = []
    end, turned = 0, False
    for cut in [*_CUT.finditer(text), None]:
        piece = text[end : len(text) if cut is None else cut.start()].strip(" ,\"'()")
        if piece:
            stated.append(_classified(piece, turned))
            turned = False
        if cut is not None:
            end = cut.end()
            turned = turned or bool(re.search(_TURN, cut.group()))
    return stated


def _classified(piece: str, turned: bool) -> Clause:
    """A clause with its kind; ``turned``: "but" or its like stands before it."""
    if piece.startswith("besides"):
        piece = piece.removeprefix("besides").strip()
        if DISTRACTORS.search(piece):
            return Clause(piece, "distractor")
        return Clause(piece, "change" if piece else "other")
    if _DENIED_SAMENESS.search(piece):
        return Clause(piece, "change")
    if not _REST.search(piece) and any(pattern.search(piece) for pattern in _SAME):
        return Clause(piece, "same")
    if DISTRACTORS.search(piece):
        return Clause(piece, "distractor")
    if _REST.search(piece):
        return Clause(piece, "other")
    return Clause(piece, "change" if turned or _CHANGE.search(piece) else "other")


def states_no_change(caption: str) -> bool:
    """Whether a caption states that nothing changed."""
    kinds = {clause.kind for clause in clauses(caption)}
    return "same" in kinds and "change" not in kinds
