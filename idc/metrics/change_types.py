"""Which kind of change a caption names, and how often that is the right one.

A caption is cut into clauses. It says that nothing changed, in the words of data sets, of people and of language
models, if at least one clause says so and no clause names a change: "no change in the buildings, but a new road was
built" has one of each. That the rest is the same says it only next to a distractor: "it is darker, but nothing else has
changed". The kinds of a clause are tried in this order:

=========== =========================================================================================================
``same``    a change that is denied ("no differences", "nothing was added", "none has moved", "I cannot see any
            change"), or sameness as the predicate ("look exactly alike", "remains unchanged", "show the same scene",
            "is where it was"); sameness of something described ("the two identical cars", "of the same size") is none
rest        the like of what is left over: "nothing else changed", "most of the scene is unchanged"
distractor  what may differ though nothing changed: light, shadows, the camera
``change``  a word of change ("appeared", "is gone", "wider"), sameness that is denied ("are not identical"), an
            exception ("except for the ball"), and whatever follows "but", "only" or "however" without being one of the
            above
other       everything else: "as far as I can tell", "both images show a street"
=========== =========================================================================================================

Such a caption is of type "none" (error on sentences that no rule was made for: tests/metrics/test_change_types.py).
Others are matched against keyword rules, written for CLEVR-Change's and the rendered pairs' captions; clauses that
state sameness or name a distractor do not count: "nearly identical, except that the cube is gone" is a drop. A caption
that no rule fits names no type (``None``) and counts as wrong. The rules are tried in this order:

======== ========================================================================================================
drop     "missing", "removed", "gone", "demolished", "has left", "is no longer there", "not there anymore", "fewer cars"
move     "moved", "shifted", "opened", "is closer"; "location", "position" or "place" that changed, is new or different
add      "added", "appeared", "built", "has arrived", "there is now a ...", "was not there before", "more people"
color    "the color of ... changed", "different color", or a colour as the new value: "to", "turned", "became", "now"
material the same with "material" or "texture", and rubber, matte, metal, metallic, shiny
======== ========================================================================================================

Long because the types are read from clauses, and both from the same words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from idc.data.schema import CHANGE_TYPES, NO_CHANGE

ClauseKind = Literal["same", "rest", "distractor", "change", "other"]


class Clause(NamedTuple):
    """A clause of a caption in lower case, and its kind in the module's first table."""

    text: str
    kind: ClauseKind


DISTRACTORS = re.compile(
    r"\b(?:camera|view ?points?|viewing|perspective|angles?|illumination|shadows?|brightness|brighter|darker|exposure"
    r"|contrast|time of day|sunlight|weather|season|zoom\w*|noise|blur\w*|sharpness|compression|image quality|hue|tint"
    r"|resolution|tones?|anti-?aliasing|from (?:another|a different|the other) side"
    r"|(?:taken|shot|photographed|captured|acquired|seen|viewed) (?:from|at|on|in)"
    r"|(?<!traffic )(?<!street )light(?:s|ing)?(?! (?:gr[ae]y|red|blue|green|brown|purple|pink|orange|yellow)\b)"
    r"(?! (?:is|are|was|were|has|turned)\b(?! (?:\w+ )?different)))\b"
)
"""Words for differences that are no change of the scene."""

# Where a caption is cut: punctuation, words that turn against what was said, exceptions, and before subjects.
_EXCEPT = (
    r"\b(?:except(?:ing)?|minus|save for|apart from|aside from|other than|besides|with the exception of|but for)\b"
    r"(?: for)?(?: that)?"
)
_ONLY = (
    r"\bthe (?:only|sole|one) (?:visible |noticeable |real |minor |slight )?(?:difference|change|thing|object|one)s?"
    r"(?: (?:that|which|between)(?: [\w'-]+){0,8}?)? (?:is|are|was)(?: that| in)?\b"
    r"|(?:^|(?<=[.;:!?] ))only\b"
)
_EXCEPTION_FIRST = re.compile(r"(\. besides [\w' -]+?) (?=(?:there(?:'s| is| are| was| were) no|nothing)\b)")
_TURN = r"\b(?:but|however|yet|whereas|while|although|though|only)\b"
_CONCESSION = re.compile(r"(?:^|[.;:!?] ?)(?:while|although|though|whereas) ?$")
_SUBJECT = (
    r"(?:the|a|an|there(?:'s)?|it(?:'s)?|they|i|he|she|one|two|three|several|some|many|now|someone|something|otherwise"
    r"|this|these|those|which|where|no|nothing|nobody|none|neither|all|every\w*|both|another|more|fewer|other|new)\b"
)
_ELLIPSIS = re.compile(
    r"\b(?:(?:is|are|was|were|do|does|did|has|have) not|(?:is|are|was|were|do|does|did|has|have)n't)$"
)
"""After a clause of either kind: the contrary of it."""
_NOUN_PHRASE = re.compile(r"^(?:the|its|their|these) \w+$")
"""Before "and": the first of two subjects, as in "but the buildings and the roads are unchanged"."""
_CUT = re.compile(
    rf"[.;:!?]+|,? ?{_TURN},?|, (?={_SUBJECT})|,? and (?={_SUBJECT})|, (?=in the (?:second|after)\b)|"
    r"(?<! from)(?<! in)(?<! at)(?<! on) (?=which\b)"
)

# A change that is denied: a denial, at most seven other words, and a noun or verb of change.
_DENIED = (
    r"(?:no(?! longer| doubt| one can)|not(?! (?:on|in|at|near|from|there|seen|present|visible)\b)|cannot|\w+n't"
    r"|none(?: of (?:the|these) \w+(?: (?:in|on) the \w+)?)?"
    r"|neither|nor|never|nothing|nobody|without|zero|unlikely|doubt|hardly|barely|(?:un|not )able to|fail(?:s|ed)? to)"
)
_GAP = r"(?:(?!(?:where|which|who|since|because|other|further|more|additional|longer|any ?more)\b)[\w'/-]+,? ){0,7}?"
_NOUN = (
    r"(?:chang(?:e|es)|differences?|alterations?|modifications?|discrepanc(?:y|ies)|variations?|additions?|removals?"
    r"|deletions?|movements?|constructions?|edits?|diffs?)"
)
_EVENT = r"(?:demolition|development|activity|tampering|editing)"
_CHANGED = (
    r"(?:chang(?:e|es|ed)|differs?|differed|different|altered|modified|added|removed|moved|moves|replaced|built"
    r"|constructed|demolished|extended|recolou?red|introduced|(?:has|have|had) appeared|disappeared|vanished|missing"
    r"|shifted|taken away|happened|happens|occurred|new|moving|entered|arrived|came|(?:has|have|had) (?:left|come|gone)"
    r"|edited|touched|rearranged|relocated|vary|varies|distinct|distinguish\w*|apart|torn down)"
)
# Sameness as the predicate of a clause.
_ALIKE = (
    r"(?:same|identical|unchanged|unaltered|unmodified|alike|indistinguishable|equal|equivalent|consistent|constant)"
)
_POSSESSED = r"(?:keeps?|kept|retains?|retained|maintains?|maintained) (?:its|their|the same)"
_END = r"(?:$|,| (?:in|as|to|across|for|over|between|from|throughout|with|and|at|on|here|overall|scene)\b)"
_BE = (
    r"(?:is|are|was|were|be|been|being|looks?|looked|appears?|appeared|seems?|seemed|remains?|remained|stays?|stayed"
    r"|'re|'s)"
)
_SHOW = r"(?:shows?|depicts?|contains?|presents?|displays?|captures?|shares?|has|have)"
_WHOLE = (
    r"(?:(?:scene|image|picture|photo|photograph|frame|view|place|room|area|object|item|thing)s?|content|arrangement)"
)
_BEFORE = r"(?:same|original|previous)"
_SPOT = r"(?:position|place|location|spot)"
_WERE = r"(?:it|they|he|she) (?:was|were|are|is|did|had been|looked)\b(?! not)"
_SAME = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b{_DENIED} {_GAP}{_NOUN}\b",
        rf"\b{_DENIED} {_GAP}(?:signs?|evidence|traces?|indications?) of {_GAP}(?:{_NOUN}|{_EVENT})\b",
        rf"\b{_DENIED} {_GAP}{_CHANGED}\b",
        rf"\bno (?:other|further|more|additional) (?:\w+ )?{_NOUN}\b",
        rf"{_BE} (?:[\w'-]+ ){{0,4}}?{_ALIKE}{_END}",
        rf"\b{_SHOW} (?:[\w'-]+ ){{0,2}}?same (?:\w+ )?{_WHOLE}\b",
        rf"\b(?:like|to be) (?:[\w'-]+ ){{0,2}}?same (?:\w+ )?{_WHOLE}\b",
        r"\bsame (?:number|amount|count) of\b",
        rf"\b{_POSSESSED} (?:[\w'-]+ )?(?:positions?|places?|locations?|layout|colou?rs?|shapes?|arrangement)\b",
        r"(?<!not )\bas in the (?:first|before|earlier|original|left) (?:image|picture|photo)",
        rf"(?:^|\b(?:it|this|they|these|that)(?:'s|'re| is| are) )(?:(?:exactly|just|still|both|the|exact) )*"
        rf"same(?: exact)? {_WHOLE}\b",
        r"\bcopies of the same\b",
        rf"{_BE} (?:[\w'-]+ ){{0,3}}?(?:cop(?:y|ies)|replicas?|duplicates?)\b",
        r"\bsame (?:[\w'-]+ ){0,6}?(?:in|at|on|for) both\b",
        rf"{_BE} (?:[\w'-]+ ){{0,2}}?in the same (?:way|manner|order)\b",
        rf"\b{_NOUN}\b(?:,? [\w'-]+){{0,6}}?,? (?:is|are|was|were) (?:zero|negligible|imperceptible|invisible"
        r"|(?:not|too small to be) (?:visible|noticeable|noticed|seen|apparent|discernible|perceptible|detectable))",
        rf"\bneither {_WHOLE} {_SHOW} anything\b",
        rf"{_BE} (?:[\w'-]+ ){{0,8}}?(?:at|in) (?:the|their|its) (?:exact )?{_BEFORE} {_SPOT}s?\b",
        rf"\bin (?:the|their) (?:exact )?{_BEFORE} {_SPOT}s\b",
        rf"{_BE} (?:(?!not\b|behind\b|near\b)[\w'-]+,? ){{0,3}}?(?:as|like|where|how|the way) {_WERE}"
        r"(?=$|,| (?:before|originally|previously|at first|in (?:the )?(?:first|before|earlier)))",
        rf"{_BE} (?:exactly |just )?(?:as before|in place(?! of))\b",
        r"\bstill (?:there|here|present|in place|in (?:its|their)|the same)\b",
        rf"\b{_WHOLE} (?:\w+ )?match(?:es)?\b",
        rf"^(?:(?:exactly|the|exact|all|both|two) )*(?:{_WHOLE} )?{_ALIKE}(?: {_WHOLE})?(?: in both \w+)?$",
        rf"^(?:(?:still|the|exactly|just) )*{_ALIKE} (?:as|to)\b",
        rf"\bsame {_WHOLE} (?:is shown )?(?:twice|again|two times)\b",
        r"^nothing else (?:is|are|was|did|has)$",
        r"^(?:no|none|nothing|nope)(?: (?:that|as far as) .*)?$",
        r"^nothing (?:visible|noticeable|apparent|to (?:see|report))\b",
    )
)
_DENIED_SAMENESS = re.compile(
    rf"\b(?:not|\w+n't|no longer|never|neither|hardly) (?:[\w'-]+ ){{0,5}}?(?:{_ALIKE}|as before)\b"
    r"|\bnot (?:all|every\w*|both|much of|where)\b|\b(?:any ?more|(?:is|are) left|now)$"
)
_ALIKE_PARTS = re.compile(
    rf"\b{_SHOW} (?:exactly |all )?the same (?:\w+ )?\w+s\b"
    r"|^(?:(?:exactly|just|still|the|exact) )*same (?:\w+ ){0,2}\w+$"
    r"|\b(?:shows?|depicts?|displays?|captures?|presents?|(?:is|are) of) (?:exactly )?the same (?:\w+ ){0,2}?\w+$"
)
"""Sameness of parts or of a place, which says something only where no word of change is next to it."""
_REST = re.compile(
    r"\b(?:else|rest|remaining|most(?:ly)?|largely|other (?:objects?|things|parts?|areas?|items?)"
    r"|no (?:other|further|more|additional))\b"
)
"""Words that leave room for a change elsewhere."""
_PERCEIVED = r"(?:observed|detected|noted|noticed|seen|found|identified|compared|provided|shown|no|the|un\w+)\b"
_CHANGE = re.compile(
    r"\b(?:added|removed|appeared|appears?(?! (?:to|the|similar|very|nearly|almost|quite|unchanged|identical)\b)"
    r"|disappear\w*|vanish\w*|gone|missing|new|newly|moved|moves|shifted|replaced|turn(?:ed|s)|bec(?:ame|omes?)|built"
    r"|constructed|demolished|destroyed|extended|widened|put|placed|taken|swapped|rotated|grown|shrunk|larger|smaller"
    r"|bigger|wider|taller|shorter|fewer|closer|nearer|further|farther|different|differently|differs?|no longer"
    r"|any ?more|now|entered|(?:has|have) left|left the|walk\w*|drove|opened|closed|changed|changes|collapsed|melted"
    r"|fallen|risen|raised|increased|decreased|(?:one|two|three|\w+s) more|additional|another|(?:more|less) \w+s"
    r"|re?painted|recolou?red|upside|open|cut down|(?<!was )not (?:there|visible(?! to me)|present)|without"
    r"|(?<!i )(?<!we )(?<!you )(?:has|have) (?:\w+ly )?(?!remain|stay)\w+ed"
    rf"|(?:has|have) (?:\w+ly )?been (?!{_PERCEIVED})\w+)\b|\b(?:has|have|did)$"
)
_HEADING = re.compile(rf"\b(?:[\w-]+ )?(?:{_NOUN}|{_CHANGED})(?: [\w-]+)?: ?(?:none|no|nothing|zero|0|n/a)\b(?! [a-z])")
_LETTERING = re.compile(
    r"\b(?:(?:the|a|an) no|(?:words?|says|reads|reading|saying) (?:the )?(?:words? )?no) \w+(?: (?:change|sign)\b)?"
    r"|\bno (?:doubt|(?:fewer|less) than)\b"
)
"""Signs with "no" on them, "no doubt", "no fewer than": no denial of a change."""
_QUOTATION = re.compile(r'\b(words?|became) "[^"]*"')
"""Words that are read on the images, whatever they say."""


READ = 4000
"""Characters of a caption that are read. No caption is longer, and a hostile one would cost quadratic time."""


def clauses(caption: str) -> list[Clause]:
    """The clauses of a caption with their kinds, in order; exceptions ("except for the ball") are clauses too."""
    text = " ".join(caption[:READ].lower().replace("\u2019", "'").split())
    # Tokenised texts write "do n't" or "don t", hurried ones "dont".
    text = re.sub(r"\b(ca|do|does|did|is|are|was|were|has|have|had|could|would)(?: n't|n t|nt)\b", r"\1n't", text)
    text = _LETTERING.sub("the sign", _QUOTATION.sub(r"\1 it", text))
    text = _HEADING.sub("no change", text)
    text = re.sub(_EXCEPT, ". besides", re.sub(_ONLY, ". solely", text))  # marks exceptions for _classified
    text = _EXCEPTION_FIRST.sub(r"\1. ", text)
    stated: list[Clause] = []
    end, turned = 0, 0  # turned: clauses to come that stand against another; "although" begins two
    for cut in [*_CUT.finditer(text), None]:
        piece = text[end : len(text) if cut is None else cut.start()].strip(" ,\"'()")
        if piece:
            joined = cut is not None and cut.group().endswith("and ") and _NOUN_PHRASE.search(piece)
            clause = Clause(piece, "other") if joined else _classified(piece, turned > 0)
            if stated and _ELLIPSIS.search(piece):  # "the angle changed, but the objects did not"
                contrary = stated[-1].kind in ("distractor", "change")
                clause = Clause(piece, "same" if contrary else "change")
            stated.append(clause)
            turned = max(turned - (not joined), 0)
        if cut is not None:
            end = cut.end()
            if re.search(_TURN, cut.group()):
                turned = 2 if _CONCESSION.search(text[: cut.end()]) else 1
    return stated


def _classified(piece: str, turned: bool) -> Clause:
    """A clause with its kind; ``turned``: "but" or its like is before it."""
    mark, _, exception = piece.partition(" ")
    if mark in ("besides", "solely"):
        if DISTRACTORS.search(exception):
            return Clause(exception, "same" if mark == "solely" else "distractor")
        return Clause(exception, "change" if exception else "other")
    if _DENIED_SAMENESS.search(piece):
        return Clause(piece, "change")
    rest = bool(_REST.search(piece))
    if any(pattern.search(piece) for pattern in _SAME):
        return Clause(piece, "rest" if rest else "same")
    if DISTRACTORS.search(piece):
        return Clause(piece, "distractor")
    if rest:
        return Clause(piece, "other")
    if _CHANGE.search(piece):
        return Clause(piece, "change")
    if _ALIKE_PARTS.search(piece):
        return Clause(piece, "same")
    return Clause(piece, "change" if turned else "other")


# ------------------------------------------------------------------------------------------------ the type of change

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
    "keywords": "keyword rules of idc.metrics.change_types on the predicted caption",
}

UNCLEAR = "unclear"
"""The column of the table for captions that name no change type."""

COLORS = ("gray", "grey", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
MATERIALS = ("rubber", "matte", "metal", "metallic", "shiny")

_PLACE = r"(?:location|position|place|spot)s?"
_THINGS = (
    r"(?:\w+ )?(?:people|persons?|pedestrians|m[ae]n|women|cars?|vehicles?|trucks?|trees|houses|buildings|objects?)"
)
"""What is counted; after at most one other word."""
_LOOKS = r"(?:to|the|as|like|similar|very|nearly|almost|quite|identical|more|less|much|slightly|\w+er)"
_NOT = r"(?:not|\w+n't|(?:isn|aren|wasn|weren) t|no longer|never)"
_THERE = r"(?:there|here|present|visible|seen|shown|in view|exists?)"
_PERFECT = r"(?:has|have|had) (?:also |all |both |now |just |since |already )?"
_RULES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "drop",
            r"\b(?:missing|removed?|disappear(?:ed|s)?|vanish(?:ed|es)?|gone|dropped|deleted?|erased?|absent|demolished|destroyed"
            r"|dismantled|(?:torn|cut|taken) down|taken away|(?:drove|driven|walked|went|ran) (?:away|off))\b"
            rf"|\b{_PERFECT}(?:left|departed|exited)\b|\bleft the (?:\w+ )?(?:scene|frame|view|area|lot|room)\b"
            rf"|\bno longer (?:{_THERE}|in|on|at|near|by|behind|parked)\b|\bthere (?:is|are) no longer\b"
            rf"|\b{_NOT} (?:{_THERE} |(?:in|on|at|near|by) (?:\w+ ){{1,5}}?)any ?more\b"
            rf"|\b(?:(?:is|are) not|(?:is|are)n't|(?:isn|aren) t) {_THERE}$"
            rf"|\b{_NOT} (?:{_THERE} )?(?:in|on) (?:the )?(?:after|second|right|later|latter)\b"
            rf"|\b(?:fewer|less) {_THINGS}\b|\bone (?:fewer|less)\b",
        ),
        (
            "move",
            r"\b(?:move[ds]?|shifted|relocated|displaced|rearranged|rotated|closer|nearer|farther|further)\b"
            rf"|\bchang\w* (?:its |the |their |his |her )?{_PLACE}\b|\b(?:different|new|another|other) {_PLACE}\b"
            rf"|\b{_PLACE} of .*\bchang|\b(?:been|was|were|now|more|{_PERFECT.strip()}) (?:opened|open|closed|shut)\b"
            rf"|\b{_PERFECT}(?:walked|driven|turned (?:around|his|her|its|their|to the|towards?)|backed up|crossed)\b",
        ),
        (
            "add",
            r"\b(?:add(?:ed)?|insert(?:ed)?|appeared|newly|introduced|put|show(?:s|ed)? up|built|constructed|erected"
            r"|installed)\b"
            rf"|\bappears?\b(?! {_LOOKS}\b)"
            rf"|\b(?:is|are) (?:a )?new\b|\b{_PERFECT}(?:arrived|entered|joined|come (?:in|up|into))\b"
            r"|\bthere (?:is|are) (?:now|another|an? (?:additional|extra|new)|(?:\w+ ){1,9}?now\b|(?:\w+ )?new)\b"
            rf"|\bnow (?:there|{_THERE}|an?|one|two|three|several)\b|\b(?:more|additional|extra|another) {_THINGS}\b"
            rf"|\b{_NOT} {_THERE} (?:before|in the (?:before|first|left|earlier)\b)",
        ),
        ("color", r"\bcolou?r\b.*\bchang|\bchang.*\bcolou?r\b|\b(?:different|new|another) colou?r\b|\brecolou?red\b"),
        (
            "material",
            r"\b(?:material|texture)\b.*\bchang|\bchang.*\b(?:material|texture)\b"
            r"|\b(?:different|new|another) (?:material|texture)\b",
        ),
    )
)
_BUT_FOR = r"\b(?:except(?:ing)?|apart from|aside from|other than|with the exception of|but)\b(?: for)?(?: that)?"
_ONLY_CHANGE = r"\bthe only (?:thing|object|one) (?:that|which) (?:has )?(?:changed|differs) (?:is|was)(?: that)?\b"
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
    text = re.sub(rf"(?:{_BUT_FOR}|{_ONLY_CHANGE})(?= the {_HEAD}\b)(?!.*\bchang)", ", changed", text)
    return re.sub(f"{_BUT_FOR}|{_ONLY_CHANGE}", ",", text)


@lru_cache(maxsize=4096)
def named_type(caption: str) -> str | None:
    """The change type that a caption names, of :data:`idc.data.schema.CHANGE_TYPES`; None if it is unclear."""
    if says_no_change(caption):
        return NO_CHANGE
    text = clauses_of(caption[:READ].lower())
    stated = clauses(text)
    if all(clause.kind != "same" for clause in stated):
        return _named(text)
    changing = (clause.text for clause in stated if clause.kind != "same" and not DISTRACTORS.search(clause.text))
    return _named(". ".join(changing))


def _named(text: str) -> str | None:
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


@lru_cache(maxsize=4096)
def says_no_change(caption: str, levir: bool = False) -> bool:
    """Whether a caption says that nothing changed: by its clauses, or, with ``levir``, by being one of
    :data:`LEVIR_NO_CHANGE` (case, outer blanks and a full stop at the end do not count)."""
    if levir:
        return " ".join(caption.lower().split()).rstrip(" .") in LEVIR_NO_CHANGE
    kinds = {clause.kind for clause in clauses(caption)}
    return "change" not in kinds and ("same" in kinds or kinds >= {"rest", "distractor"})


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
