"""The differences that a caption claims, read by rules: what changed, of which object, and its old and new look.

A caption is cut into segments (at full stops, commas, "and", "while", and where a new clause begins without one). In a
segment the words of an object with the noun after them are a noun phrase; the words around it decide its role:

=========== ==========================================================================================================
role        words
=========== ==========================================================================================================
anchor      the phrase after "left of", "in front of", "behind", ...: a second object
old look    after "from", "instead of"
new look    after "to", "into", "turned", "became", "now", "replaced by"; before "has replaced", "in place of"
described   all others: the object that changed
=========== ==========================================================================================================

The kind of a segment is the first that fits: no difference (:mod:`idc.metrics.changes`), text ("letter", "reads"),
count ("number of", "three instead of two", "two ... were removed"), replace, orientation ("rotated", "faces another
direction"), size ("grown", "smaller", "from small to large"), then drop, move, add, color and material by
:mod:`idc.metrics.changes`, at last by the new look. A segment with a kind and no object is about the object before it
("... and moved to the left"); objects without a kind share that of the segment after them ("the cube and the ball have
disappeared"), or of the one before ("someone removed the cube and the ball"). "Something changed" of an object is a
claim without a kind. Unknown words are skipped; what is left unfinished at the end claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from idc.data.rendered.captions import ANY_SHAPE
from idc.data.rendered.sentences import NUMBER_WORDS
from idc.metrics.changes import named_type
from idc.metrics.hallucination import WORDS, Attributes
from idc.schema import NO_CHANGE

SIDE, TEXT, COUNT = "side", "text", "count"
"""What an old or new look may name besides attributes: a side of the picture, a letter, a number."""

MORE, FEWER = "more", "fewer"
"""Values of :data:`COUNT` without a number; ``more by 2`` and ``fewer by 2`` are further ones."""


@dataclass(frozen=True)
class Claim:
    """A difference that a caption claims.

    Attributes:
        kind: of :data:`idc.data.rendered.differences.KINDS`; None if only "changed" is said.
        described: attributes of the object.
        old, new: what is said of it before and after: attributes, ``("side", "left")``, ``("text", "B")``,
            ``("count", "3")``.
        sides: of the picture, on which it is said to be.
        relations: (relation, attributes of the second object); ``near`` is a relation too.
    """

    kind: str | None
    described: Attributes = frozenset()
    old: Attributes = frozenset()
    new: Attributes = frozenset()
    sides: frozenset[str] = frozenset()
    relations: tuple[tuple[str, Attributes], ...] = ()


@dataclass(frozen=True)
class Reading:
    """What a caption says: its claims in order, and whether it says that nothing changed (and claims nothing)."""

    claims: tuple[Claim, ...]
    no_change: bool


# ------------------------------------------------------------------------------------------------------------ the words

_ATTRIBUTE_WORDS: dict[str, tuple[str, str]] = {
    **WORDS,
    **dict.fromkeys(("larger", "bigger", "huge", "giant"), ("size", "large")),
    **dict.fromkeys(("smaller", "little"), ("size", "small")),
    **dict.fromkeys(("glossy", "reflective"), ("material", "metal")),
    "matt": ("material", "rubber"),
    "box": ("shape", "cube"),
}
_SHAPES = {word: value for word, value in _ATTRIBUTE_WORDS.items() if value[0] == "shape"}
_NOUNS = {word: frozenset((value,)) for word, value in _SHAPES.items()} | dict.fromkeys(
    (*ANY_SHAPE, "item", "shape"), frozenset[tuple[str, str]]()
)
_PLURALS = {**{f"{word}s": word for word in _NOUNS}, "boxes": "box"}
_NUMBERS = {word: number for number, word in enumerate(NUMBER_WORDS)} | {"no": 0, "single": 1}
_SIDES = {
    "left": "left", "right": "right", "front": "front", "foreground": "front", "back": "behind",
    "background": "behind", "rear": "behind",
}  # fmt: skip

_STOPS = frozenset(".;!?:")
_JOINTS = frozenset((",", "and", "while", "but", "then", "whereas", "also"))
_ARTICLES = frozenset(("the", "a", "an", "another"))
_LINKS = frozenset(
    "of to by with from on in at for into than behind near beside as now is are was were that which has have where "
    "become became turned away longer no new replaced between".split()
)
"""A noun phrase after one of these belongs to the clause before it."""
_TRANSITIVE = frozenset("removed added rotated moved changed dropped put placed painted took deleted shifted".split())
"""The same, unless the clause has named its object already."""
_HEADS = frozenset("number letter color colour material texture size orientation location position text".split())

_SIDE = r"(left|right|front|back|foreground|background|rear)\b(?!(?: hand)?(?: side)? of np)"
_NEAR = r"(?:next to|beside|near|close to)"
_ANCHOR = re.compile(
    rf"\b(?:(left|right)(?: hand)?(?: side)? of|(in front) of|(behind)|({_NEAR})) np(\d+)\b"
)
_IS_AT = re.compile(rf"\b(?:on|in|at)(?: the)? (?:far |very )?{_SIDE}(?! of np)")
_FROM_SIDE = re.compile(rf"\bfrom(?: the)? {_SIDE}")
_TO_SIDE = re.compile(rf"\b(?:to|towards?|into)(?: the)? (?:far )?{_SIDE}")
_WAYS = (
    (re.compile(r"\bforwards?\b|\b(?:closer|nearer)\b"), "front"),
    (re.compile(r"\bbackwards?\b|\b(?:further|farther)\b"), "behind"),
    (re.compile(r"\bleftwards?\b"), "left"),
    (re.compile(r"\brightwards?\b"), "right"),
)
_OLD = re.compile(r"\b(?:from|instead of|rather than)(?: being)? (np|look)(\d+)\b")
_NEW = re.compile(
    r"\b(?:to|into|turned|turns|became|becomes|become|now|painted|(?:replaced|substituted|swapped|exchanged)"
    r"(?: out)? (?:by|with|for))(?: (?:be|made|of|completely|out|all))* (np|look)(\d+)\b"
)
_PREDICATE = re.compile(r"\b(?:that|which) (?:is|was|are|were)(?: made of)? look(\d+)\b")
_TAKES_PLACE = re.compile(
    r"\bnp(\d+)\b.*?(?:(?<!been )(?<!was )(?<!is )(?<!were )\breplace[ds]|\bplace of|\bwhere) np(\d+)\b"
)
_SOME = "|".join((*(word for word in _NUMBERS if word not in ("no", "single")), r"\d+"))
_COUNTS_OLD = re.compile(rf"\b(?:from|instead of|was|were|used to be|rather than) (?:only )?({_SOME})\b")
_COUNTS_NEW = re.compile(rf"\b(?:to|now|become|became|only) (?:there_is )?(?:only )?({_SOME})\b")
_COUNT_STEP = re.compile(rf"\b({_SOME}) (more|additional|extra|fewer|less)\b")
_UP = re.compile(r"\b(?:increas\w+|risen|rose|grown|grew|up|more|added|additional|appear\w*|new)\b")
_DOWN = re.compile(r"\b(?:decreas\w+|fallen|fell|dropped|shrunk|down|fewer|less|removed|missing|gone|disappear\w*)\b")
_LETTER = r"(?:(?:the|an?) )?(?:letter )?\"?([a-z])\b"
_LETTER_OLD = re.compile(rf"\b(?:from|instead of|was|rather than) {_LETTER}|\b(?:letter|the) ([a-z]) (?:on|of) np")
_LETTER_NEW = re.compile(
    rf"\b(?:to|into|now|become|became|reads?|says|shows|has the letter|replaced (?:by|with)) {_LETTER}"
)

_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (TEXT, r"\b(?:letters?|text|writing|characters?|inscription|reads?|says|written)\b|\bthe [a-z] on np"),
        (
            COUNT,
            rf"\bnumber of\b|\bfrom (?:{_SOME}) to (?:{_SOME})\b|\bnow (?:there_is )?(?:only )?(?:{_SOME})\b"
            rf"|\binstead of (?:{_SOME})\b|\b(?:used to be|there (?:was|were)) (?:{_SOME})\b"
            rf"|\b(?:{_SOME}) (?:more|additional|extra|fewer|less)\b|\b(?:more|fewer) np",
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
_GROWN, _SHRUNK = re.compile(r"\b(?:gr[oe]wn?|grows|enlarged)\b"), re.compile(r"\b(?:shr[aiu]nks?|decreas\w+)\b")
_FURTHER = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("drop", r"\b(?:took|taken|take) (?:np\d+ )?away\b|\bvanish\w*|\babsent\b|\b(?:not|isn't) there\b"),
        (
            "move",
            r"\bnow (?:on|at|in|closer|nearer|further|farther|behind)\b|\b(?:slid|pushed|repositioned|traded places)\b"
            r"|\bswapped places\b",
        ),
        ("add", r"\bnew np|\bnow there_is np|\b(?:inserted|placed)\b"),
    )
)
_MARK = re.compile(r"(np|look)\d+$")
_THERE = re.compile(r"\b(?:there is now|now there is)\b")
_MOVES = re.compile(r"\b(?:moved|moves|shifted|relocated|displaced|now|slid|pushed|repositioned)\b")
_VAGUE = re.compile(r"\b(?:chang\w+|differ\w*|alter\w*|modif\w+|transform\w+)\b")
_BECOMES = r"\b(?:is|are|looks?|appears?|got|gotten|made|become|became|becomes|now)(?: \w+)?"
_NO_NOUN = rf"(?!(?: (?:{'|'.join(_ATTRIBUTE_WORDS)})){{0,3}} (?:{'|'.join((*_NOUNS, *_PLURALS))})\b)"
_COMPARED = tuple(
    (re.compile(rf"{_BECOMES} (?:{words})\b{_NO_NOUN}"), f"become {value}")
    for words, value in (("bigger|larger", "large"), ("smaller", "small"))
)
"""A comparative that is said of an object, and what it is read as."""


# ------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Phrase:
    """A noun phrase, or attribute words without a noun."""

    named: Attributes
    has_noun: bool
    number: int | None
    article: bool
    words: str


@dataclass(frozen=True)
class _Subject:
    """A described object with where it is said to be."""

    described: Attributes
    sides: frozenset[str] = frozenset()
    relations: tuple[tuple[str, Attributes], ...] = ()


@dataclass
class _Part:
    """A segment as it was read."""

    kind: str | None
    vague: bool
    no_change: bool
    subjects: list[_Subject]
    where: _Subject
    """Sides and relations that belong to no object of the segment."""
    old: Attributes
    new: Attributes
    object_last: bool
    """Whether the object comes after the verb."""


@lru_cache(maxsize=65536)
def read_claims(caption: str) -> Reading:
    """The claims of a caption. Never fails: of a text that claims nothing the reading is empty."""
    claims: list[Claim] = []
    no_change = False
    last: list[_Subject] = []
    for sentence in _sentences(caption):
        pending: list[_Subject] = []
        where = _Subject(frozenset())
        previous: _Part | None = None
        for part in sentence:
            if part.no_change:
                no_change = True
                pending = []
                continue
            if part.kind is None and not (part.vague and part.subjects):
                if part.subjects:
                    pending += [_joined(one, where) for one in part.subjects]
                    where = _Subject(frozenset())
                elif pending:
                    pending[-1] = _joined(pending[-1], part.where)
                else:
                    where = _joined(where, part.where)
                continue
            own = bool(part.subjects)
            subjects = [*pending, *part.subjects] if own else pending or last
            if not own and not pending and claims and last and _continues(claims[-1], part):
                claims[-1] = replace(claims[-1], old=claims[-1].old | part.old, new=claims[-1].new | part.new)
                continue
            subjects = [_joined(one, where if own else _joined(where, part.where)) for one in subjects]
            if not subjects and part.kind is not None:
                subjects = [_joined(part.where, where)]
            claims += [Claim(part.kind, one.described, part.old, part.new, one.sides, one.relations) for one in subjects]
            last, pending, where, previous = subjects, [], _Subject(frozenset()), part
        if pending and previous is not None and previous.object_last and previous.kind is not None:
            claims += [Claim(previous.kind, one.described, frozenset(), previous.new, one.sides, one.relations)
                       for one in pending]  # fmt: skip
    return Reading(tuple(claims), no_change and not claims)


def _continues(claim: Claim, part: _Part) -> bool:
    """Whether a segment without an object only goes on with the claim before: "... was two | and is now three"."""
    return claim.kind == part.kind and not (claim.new and part.new and claim.kind != COUNT)


def _joined(one: _Subject, other: _Subject) -> _Subject:
    return _Subject(one.described | other.described, one.sides | other.sides, one.relations + other.relations)


def _sentences(caption: str) -> Iterator[list[_Part]]:
    """The segments of each sentence."""
    text = caption.lower().replace("\u2019", "'").replace("not the same", "different").replace("there are", "there is")
    for pattern, new in _COMPARED:
        text = pattern.sub(new, text)
    words = re.findall(r"[a-z]+(?:'[a-z]+)?|\d+|[.,;!?:]", text)
    sentence: list[str] = []
    for word in [*words, "."]:
        if word not in _STOPS:
            if sentence[-1:] != [word]:  # weak models repeat words
                sentence.append(word)
        elif sentence:
            yield list(_parts(sentence))
            sentence = []


def _parts(words: Sequence[str]) -> Iterator[_Part]:
    tokens, phrases = _phrases(words)
    segment: list[str] = []
    for place, token in enumerate([*tokens, ","]):
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        if token in _JOINTS or (segment and _begins(segment, token, following, phrases)):
            if segment:
                yield _part(segment, phrases)
            segment = [] if token in _JOINTS else [token]
        else:
            segment.append(token)


def _begins(segment: Sequence[str], token: str, following: str, phrases: Sequence[_Phrase]) -> bool:
    """Whether a new clause begins at a token, though nothing but its words show it."""
    phrase = phrases[int(token[2:])] if re.fullmatch(r"np\d+", token) else None
    starts = (
        (phrase is not None and phrase.article)
        or token == "someone"
        or (token == "there" and following in ("is", "was", "were"))
        or (token == "the" and following in _HEADS)
    )
    if not starts or segment[-1] in _LINKS:
        return False
    has_object = any(one.startswith("np") for one in segment)
    if segment[-1] in _TRANSITIVE and not has_object:
        return False
    part = _part(segment, phrases)
    return part.kind is not None or part.no_change


def _phrases(words: Sequence[str]) -> tuple[list[str], list[_Phrase]]:
    """The words with ``npN`` in place of the N-th phrase if it has a noun, else ``lookN``; articles go with it."""
    tokens: list[str] = []
    phrases: list[_Phrase] = []
    place = 0
    while place < len(words):
        end, named, number, noun = place, set[tuple[str, str]](), None, False
        while end < len(words) and not noun:
            word = words[end]
            single = _PLURALS.get(word, word)
            if single in _NOUNS:
                named |= _NOUNS[single]
                noun = True
            elif word == "one" and named:
                noun = True
            elif word in _ATTRIBUTE_WORDS:
                named.add(_ATTRIBUTE_WORDS[word])
            elif end == place and word in _NUMBERS and end + 1 < len(words) and _in_phrase(words[end + 1]):
                number = _NUMBERS[word]
            elif end == place and word.isdigit() and end + 1 < len(words) and _in_phrase(words[end + 1]):
                number = int(word)
            elif not (word == "," and named and end + 1 < len(words) and words[end + 1] in _ATTRIBUTE_WORDS):
                break
            end += 1
        if end == place or not (named or noun):
            tokens.append(words[place])
            place += 1
            continue
        article = bool(tokens) and tokens[-1] in _ARTICLES
        if article:
            tokens.pop()
        if number is not None and number != 1:
            tokens.append(str(number))
        elif number == 1:
            tokens.append("one")
        tokens.append(f"{'np' if noun else 'look'}{len(phrases)}")
        spoken = [word for word in words[place:end] if word not in _NUMBERS and word != ","]
        phrases.append(_Phrase(frozenset(named), noun, number, article, " ".join(spoken)))
        place = end
    return tokens, phrases


def _in_phrase(word: str) -> bool:
    return word in _ATTRIBUTE_WORDS or _PLURALS.get(word, word) in _NOUNS


# ----------------------------------------------------------------------------------------------------------- a segment


def _part(segment: Sequence[str], phrases: Sequence[_Phrase]) -> _Part:
    """Read a segment, whose tokens are those of :func:`_phrases`."""
    numbered = {place: int(token[_MARK.match(token).end(1):]) for place, token in enumerate(segment) if _MARK.match(token)}
    raw = " ".join(phrases[numbered[place]].words if place in numbered else token for place, token in enumerate(segment))
    text = _THERE.sub("now there_is", " ".join(segment))
    named = named_type(raw)
    if named == NO_CHANGE:
        return _Part(None, False, True, [], _Subject(frozenset()), frozenset(), frozenset(), False)
    kind = next((own for own, pattern in _KINDS if pattern.search(text)), None)
    kind = kind or named or next((own for own, pattern in _FURTHER if pattern.search(text)), None)
    roles = _roles(text, kind)
    look = {role: frozenset[tuple[str, str]]().union(*(phrases[n].named for n in numbers))
            for role, numbers in roles.items()}  # fmt: skip
    given = {number for numbers in roles.values() for number in numbers}
    described = [n for n in numbered.values() if phrases[n].has_noun and n not in given]
    if not described:
        described = [n for n in numbered.values() if phrases[n].article and not phrases[n].has_noun and n not in given]
    shaped = any(phrases[n].has_noun and any(name == "shape" for name, _ in phrases[n].named) for n in roles["new"])
    if kind in (None, "color", "material") and shaped and described:
        kind = "replace"
    if kind in ("add", "drop") and any((phrases[n].number or 0) > 1 for n in described):
        kind = COUNT
    elif kind is None:
        kind = next((name for name in ("color", "material", "size") if name in dict(look["new"])), None)
    old, new = _looks(kind, text, look)
    if kind == COUNT and not (old or new) and (steps := [phrases[n].number for n in described if phrases[n].number]):
        new = frozenset(((COUNT, f"{FEWER if _DOWN.search(text) else MORE} by {steps[0]}"),))
    subjects, where, more_new = _placed(kind, text, described, phrases)
    if kind == "move":
        old, new = old | _sides_of(_FROM_SIDE, text), new | more_new | _sides_of(_TO_SIDE, text) | _ways(text)
    vague = kind is None and _VAGUE.search(raw) is not None
    ends = bool(described) and re.search(rf"\b(?:np|look){described[-1]}\b(?! (?:has|is|was))", text) is not None
    object_last = text.startswith(("someone", "there", "now there_is")) or (ends and text.endswith(f"np{described[-1]}"))
    return _Part(kind, vague, False, subjects, where, old, new, object_last)


def _roles(text: str, kind: str | None) -> dict[str, set[int]]:
    """Role -> numbers of its phrases; those of the described objects are in none."""
    anchors = {int(found[5]) for found in _ANCHOR.finditer(text)}
    old = {int(found[2]) for found in _OLD.finditer(text)}
    new = set()
    for found in _NEW.finditer(text):
        # "someone painted the cube": a noun phrase is a new look only of an object that was named before
        if found[1] == "look" or kind == "replace" or re.search(r"\bnp\d+", text[: found.start()]):
            new.add(int(found[2]))
    if kind == "replace":
        new |= {int(found[1]) for found in re.finditer(r"\b(?:by|with|for) np(\d+)\b", text)}
        if (inverse := _TAKES_PLACE.search(text)) is not None:
            new = {int(inverse[1])}
    predicates = {int(found[1]) for found in _PREDICATE.finditer(text)}
    return {"anchor": anchors, "old": old, "new": new - anchors, "predicate": predicates}


def _looks(kind: str | None, text: str, look: dict[str, Attributes]) -> tuple[Attributes, Attributes]:
    """Old and new look, as far as they belong to a kind."""
    if kind == COUNT:
        return _numbers(text)
    if kind == TEXT:
        letters = [{(TEXT, (found[1] or found[found.lastindex or 1]).upper()) for found in pattern.finditer(text)}
                   for pattern in (_LETTER_OLD, _LETTER_NEW)]  # fmt: skip
        return frozenset(letters[0]), frozenset(letters[1])
    if kind == "replace":
        return frozenset(), look["new"]
    if kind not in ("color", "material", "size"):
        return frozenset(), frozenset()
    old, new = (frozenset(one for one in look[side] if one[0] == kind) for side in ("old", "new"))
    if kind == "size" and not new:
        grown, shrunk = _GROWN.search(text), _SHRUNK.search(text)
        new = frozenset((("size", "large" if grown else "small"),)) if grown or shrunk else new
    return old, new


def _numbers(text: str) -> tuple[Attributes, Attributes]:
    def value(word: str) -> str:
        return str(_NUMBERS.get(word, word))

    old = {(COUNT, value(found[1])) for found in _COUNTS_OLD.finditer(text)}
    new = {(COUNT, value(found[1])) for found in _COUNTS_NEW.finditer(text)}
    if (found := re.search(rf"\bthere_is ({_SOME})\b", text)) is not None:
        new.add((COUNT, value(found[1])))
    if (step := _COUNT_STEP.search(text)) is not None:
        up = step[2] not in ("fewer", "less")
        new = {(COUNT, f"{MORE if up else FEWER} by {value(step[1])}")}
    elif not new and (_UP.search(text) or _DOWN.search(text)) and not re.search(rf"\b\d+ np", text):
        new = {(COUNT, FEWER if _DOWN.search(text) else MORE)}
    return frozenset(old), frozenset(new)


def _placed(
    kind: str | None, text: str, described: Sequence[int], phrases: Sequence[_Phrase]
) -> tuple[list[_Subject], _Subject, Attributes]:
    """The described objects with their sides and relations, those of none of them, and sides that are a new place."""
    starts = {n: re.search(rf"\b(?:np|look){n}\b", text).start() for n in described}  # type: ignore[union-attr]
    found = {n: _Subject(phrases[n].named) for n in described}
    where, new = _Subject(frozenset()), set[tuple[str, str]]()

    def give(at: int, one: _Subject) -> None:
        nonlocal where
        before = [n for n in described if starts[n] < at]
        if before:
            found[before[-1]] = _joined(found[before[-1]], one)
        else:
            where = _joined(where, one)

    for match in _PREDICATE.finditer(text):
        give(match.start(), _Subject(phrases[int(match[1])].named))
    for match in _ANCHOR.finditer(text):
        relation = match[1] or (match[2] and "front") or match[3] or "near"
        give(match.start(), _Subject(frozenset(), frozenset(), ((relation, phrases[int(match[5])].named),)))
    verb = _MOVES.search(text)
    for match in _IS_AT.finditer(text):
        side = _SIDES[match[1]]
        if kind == "move" and verb and match.start() > verb.start() and any(at < verb.start() for at in starts.values()):
            new.add((SIDE, side))
        else:
            give(match.start(), _Subject(frozenset(), frozenset((side,))))
    if kind != "move":
        for match in _TO_SIDE.finditer(text):
            give(match.start(), _Subject(frozenset(), frozenset((_SIDES[match[1]],))))
    return list(found.values()), where, frozenset(new)


def _sides_of(pattern: re.Pattern[str], text: str) -> Attributes:
    return frozenset((SIDE, _SIDES[found[1]]) for found in pattern.finditer(text))


def _ways(text: str) -> Attributes:
    return frozenset((SIDE, side) for pattern, side in _WAYS if pattern.search(text))
