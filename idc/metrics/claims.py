"""What a caption of a rendered scene claims, read by rules in two ways: :func:`read_object_claims` reads the attributes
of one changed object, :func:`read_claims` every difference (what changed, of which object, its old and new look).

For the differences a caption is cut into segments (at full stops, commas, "and", "while", and where a new clause begins
without one). In a segment the words of an object with the noun after them are a noun phrase; the words around it decide
its role:

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

from idc.data.schema import NO_CHANGE
from idc.metrics import claim_words as vocab
from idc.metrics.changes import clauses_of, named_type
from idc.metrics.no_change import DISTRACTORS

Attributes = frozenset[tuple[str, str]]
"""Some (attribute, value) pairs: ``{("color", "red"), ("shape", "cube")}``."""


@dataclass(frozen=True)
class SentenceClaim:
    """A difference that a caption claims.

    Attributes:
        kind: of :data:`idc.rendered.differences.KINDS`; None if only "changed" is said.
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
    """The claims of a caption in order, and whether it says that nothing changed (and claims nothing)."""

    claims: tuple[SentenceClaim, ...]
    no_change: bool


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

    described: Attributes = frozenset()
    sides: frozenset[str] = frozenset()
    relations: tuple[tuple[str, Attributes], ...] = ()


@dataclass
class _Part:
    """A segment as it was read.

    Attributes:
        where: sides and relations that belong to no object of the segment.
        object_last: whether the object comes after the verb.
    """

    kind: str | None = None
    vague: bool = False
    no_change: bool = False
    subjects: Sequence[_Subject] = ()
    where: _Subject = _Subject()
    old: Attributes = frozenset()
    new: Attributes = frozenset()
    object_last: bool = False


@lru_cache(maxsize=65536)
def read_claims(caption: str) -> Reading:
    """The claims of a caption. Never fails: of a text that claims nothing the reading is empty."""
    claims: list[SentenceClaim] = []
    no_change = False
    last: list[_Subject] = []
    for sentence in _sentences(caption):
        pending: list[_Subject] = []
        where = _Subject()
        previous: _Part | None = None
        for part in sentence:
            if part.no_change:
                no_change = True
                pending = []
                continue
            if part.kind is None and not (part.vague and part.subjects):
                if part.subjects:
                    pending += [_joined(subject, where) for subject in part.subjects]
                    where = _Subject()
                elif pending:
                    pending[-1] = _joined(pending[-1], part.where)
                else:
                    where = _joined(where, part.where)
                continue
            has_subjects = bool(part.subjects)
            subjects = [*pending, *part.subjects] if has_subjects else pending or last
            if not has_subjects and not pending and claims and last and _continues(claims[-1], part):
                claims[-1] = replace(claims[-1], old=claims[-1].old | part.old, new=claims[-1].new | part.new)
                continue
            subjects = [_joined(subject, where if has_subjects else _joined(where, part.where)) for subject in subjects]
            if not subjects and part.kind is not None:
                subjects = [_joined(part.where, where)]
            claims += [
                SentenceClaim(part.kind, subject.described, part.old, part.new, subject.sides, subject.relations)
                for subject in subjects
            ]
            last, pending, where, previous = subjects, [], _Subject(), part
        if pending and previous is not None and previous.object_last and previous.kind is not None:
            claims += [
                SentenceClaim(
                    previous.kind, subject.described, frozenset(), previous.new, subject.sides, subject.relations
                )
                for subject in pending
            ]
    return Reading(tuple(claims), no_change and not claims)


def _continues(claim: SentenceClaim, part: _Part) -> bool:
    """Whether a segment without an object only goes on with the claim before: "... was two | and is now three"."""
    return claim.kind == part.kind and not (claim.new and part.new and claim.kind != vocab.COUNT)


def _joined(subject: _Subject, other: _Subject) -> _Subject:
    return _Subject(
        subject.described | other.described, subject.sides | other.sides, subject.relations + other.relations
    )


def _sentences(caption: str) -> Iterator[list[_Part]]:
    """The segments of each sentence."""
    text = caption.lower().replace("\u2019", "'").replace("not the same", "different").replace("there are", "there is")
    text = clauses_of(text).replace(":", ",")
    for pattern, new in vocab.COMPARED:
        text = pattern.sub(new, text)
    words = re.findall(r"[a-z]+(?:'[a-z]+)?|\d+|[.,;!?:]", text)
    sentence: list[str] = []
    for word in [*words, "."]:
        if word not in vocab.STOPS:
            if sentence[-1:] != [word] or word == "there" or len(word) == 1:  # weak models repeat words
                sentence.append(word)
        elif sentence:
            yield list(_parts(sentence))
            sentence = []


def _parts(words: Sequence[str]) -> Iterator[_Part]:
    tokens, phrases = _phrases(words)
    segment: list[str] = []
    for index, token in enumerate([*tokens, ","]):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token in vocab.JOINTS or (segment and _begins(segment, token, following, phrases)):
            if segment:
                yield _part(segment, phrases)
            segment = [] if token in vocab.JOINTS else [token]
        else:
            segment.append(token)


def _begins(segment: Sequence[str], token: str, following: str, phrases: Sequence[_Phrase]) -> bool:
    """Whether a new clause begins at a token, though nothing but its words show it."""
    phrase = phrases[int(token[2:])] if re.fullmatch(r"np\d+", token) else None
    starts = (
        (phrase is not None and phrase.article)
        or token == "someone"
        or (token == "there" and following in ("is", "was", "were"))
        or (token == "the" and following in vocab.HEADS)
    )
    if not starts or segment[-1] in vocab.LINKS:
        return False
    has_object = any(word.startswith("np") for word in segment)
    if segment[-1] in vocab.TRANSITIVE and not has_object:
        return False
    part = _part(segment, phrases)
    return part.kind is not None or part.no_change


def _phrases(words: Sequence[str]) -> tuple[list[str], list[_Phrase]]:
    """The words with ``npN`` in place of the N-th phrase if it has a noun, else ``lookN``; articles go with it."""
    tokens: list[str] = []
    phrases: list[_Phrase] = []
    start = 0
    while start < len(words):
        end, named, number, noun = start, set[tuple[str, str]](), None, False
        while end < len(words) and not noun:
            word = words[end].removesuffix("'s")
            single = vocab.PLURALS.get(word, word)
            if single in vocab.NOUNS:
                named |= vocab.NOUNS[single]
                noun = True
            elif word == "one" and named:
                noun = True
            elif word in vocab.ATTRIBUTE_WORDS:
                named.add(vocab.ATTRIBUTE_WORDS[word])
            elif end == start and (word in vocab.NUMBERS or word.isdigit()):
                number = vocab.NUMBERS[word] if word in vocab.NUMBERS else int(word)
            elif not (word == "," and named and end + 1 < len(words) and words[end + 1] in vocab.ATTRIBUTE_WORDS):
                break
            end += 1
        if end == start or not (named or noun):
            tokens.append(words[start])
            start += 1
            continue
        article = bool(tokens) and tokens[-1] in vocab.ARTICLES
        if article:
            tokens.pop()
        if number is not None:
            tokens.append("one" if number == 1 else str(number))
        tokens.append(f"{'np' if noun else 'look'}{len(phrases)}")
        spoken = [word for word in words[start:end] if word not in vocab.NUMBERS and word != ","]
        phrases.append(_Phrase(frozenset(named), noun, number, article, " ".join(spoken)))
        start = end
    return tokens, phrases


# ----------------------------------------------------------------------------------------------------------- a segment


def _part(segment: Sequence[str], phrases: Sequence[_Phrase]) -> _Part:
    """Read a segment, whose tokens are those of :func:`_phrases`."""
    marks = [vocab.MARK.match(token) for token in segment]
    numbered = {index: int(mark[2]) for index, mark in enumerate(marks) if mark is not None}
    raw = " ".join(
        phrases[numbered[index]].words if index in numbered else token for index, token in enumerate(segment)
    )
    text = vocab.THERE.sub("now there_is", " ".join(segment))
    named = named_type(raw)
    if named == NO_CHANGE or vocab.NOT_DONE.search(text) or (DISTRACTORS.search(text) and not numbered):
        return _Part(no_change=named == NO_CHANGE)
    kind = next((name for name, pattern in vocab.KINDS if pattern.search(text)), None)
    if kind is None and vocab.SHOWN_INSTEAD.search(text) and not vocab.NEW.search(text):
        kind = "replace"
    kind = kind or named or next((name for name, pattern in vocab.FURTHER if pattern.search(text)), None)
    roles = _roles(text, kind)
    look = {role: frozenset[tuple[str, str]]().union(*(phrases[n].named for n in numbers))
            for role, numbers in roles.items()}  # fmt: skip
    in_roles = {number for numbers in roles.values() for number in numbers}
    described = [n for n in numbered.values() if phrases[n].has_noun and n not in in_roles]
    if not described:
        described = [
            n for n in numbered.values() if phrases[n].article and not phrases[n].has_noun and n not in in_roles
        ]
    shaped = any(phrases[n].has_noun and any(name == "shape" for name, _ in phrases[n].named) for n in roles["new"])
    if kind in (None, "color", "material") and shaped and described:
        kind = "replace"
    if kind in ("add", "drop") and any((phrases[n].number or 0) > 1 for n in described):
        kind = vocab.COUNT
    elif kind is None:
        kind = next((name for name in ("color", "material", "size") if name in dict(look["new"] | look["old"])), None)
    old, new = _looks(kind, text, look)
    if (
        kind == vocab.COUNT
        and not (old or new)
        and (steps := [phrases[n].number for n in described if phrases[n].number])
    ):
        new = frozenset(((vocab.COUNT, f"{vocab.FEWER if vocab.DOWN.search(text) else vocab.MORE} by {steps[0]}"),))
    subjects, where, more_new = _placed(kind, text, described, phrases)
    if kind == "move":
        ways = {(vocab.SIDE, side) for pattern, side in vocab.WAYS if pattern.search(text)}
        old, new = old | _sides_of(vocab.FROM_SIDE, text), new | more_new | _sides_of(vocab.TO_SIDE, text) | ways
    vague = kind is None and vocab.VAGUE.search(raw) is not None
    ends = bool(described) and re.search(rf"\b(?:np|look){described[-1]}\b(?! (?:has|is|was))", text) is not None
    object_last = text.startswith(("someone", "there", "now there_is")) or (
        ends and text.endswith(f"np{described[-1]}")
    )
    return _Part(kind, vague, False, subjects, where, old, new, object_last)


def _roles(text: str, kind: str | None) -> dict[str, set[int]]:
    """Role -> numbers of its phrases; those of the described objects are in none."""
    anchors = {int(match[5]) for match in vocab.ANCHOR.finditer(text)}
    old = {int(match[2]) for match in vocab.OLD.finditer(text)}
    new = set()
    for match in vocab.NEW.finditer(text):
        # "someone painted the cube": a noun phrase is a new look only of an object that was named before
        if match[1] == "look" or kind == "replace" or re.search(r"\bnp\d+", text[: match.start()]):
            new.add(int(match[2]))
    if kind == "replace":
        new |= {int(match[1]) for match in re.finditer(r"\b(?:by|with|for) np(\d+)\b", text)}
        shown = None if vocab.NEW.search(text) else vocab.SHOWN_INSTEAD.search(text)
        if (inverse := vocab.TAKES_PLACE.search(text) or shown) is not None:
            old, new = old - {int(inverse[2])}, {int(inverse[1])}
    predicates = {int(match[1]) for match in vocab.PREDICATE.finditer(text)}
    return {"anchor": anchors, "old": old, "new": new - anchors, "predicate": predicates}


def _looks(kind: str | None, text: str, look: dict[str, Attributes]) -> tuple[Attributes, Attributes]:
    """Old and new look, as far as they belong to a kind."""
    if kind == vocab.COUNT:
        return _numbers(text)
    if kind == vocab.TEXT:
        letters = [{(vocab.TEXT, (match[1] or match[match.lastindex or 1]).upper()) for match in pattern.finditer(text)}
                   for pattern in (vocab.LETTER_OLD, vocab.LETTER_NEW)]  # fmt: skip
        return frozenset(letters[0]), frozenset(letters[1])
    if kind == "replace":
        return frozenset(), look["new"]
    if kind not in ("color", "material", "size"):
        return frozenset(), frozenset()
    old, new = (frozenset(attribute for attribute in look[side] if attribute[0] == kind) for side in ("old", "new"))
    if kind == "size" and not new:
        grown, shrunk = vocab.GROWN.search(text), vocab.SHRUNK.search(text)
        new = frozenset((("size", "large" if grown else "small"),)) if grown or shrunk else new
    return old, new


def _numbers(text: str) -> tuple[Attributes, Attributes]:
    def value(word: str) -> str:
        return str(vocab.NUMBERS.get(word, word))

    old = {(vocab.COUNT, value(match[1])) for match in vocab.COUNTS_OLD.finditer(text)}
    new = {(vocab.COUNT, value(match[1])) for match in vocab.COUNTS_NEW.finditer(text)}
    if (match := re.search(rf"\bthere_is ({vocab.SOME})\b", text)) is not None:
        new.add((vocab.COUNT, value(match[1])))
    if (step := vocab.COUNT_STEP.search(text)) is not None:
        up = step[2] not in ("fewer", "less")
        new = {(vocab.COUNT, f"{vocab.MORE if up else vocab.FEWER} by {value(step[1])}")}
    elif not new and (vocab.UP.search(text) or vocab.DOWN.search(text)) and not re.search(r"\b\d+ np", text):
        new = {(vocab.COUNT, vocab.FEWER if vocab.DOWN.search(text) else vocab.MORE)}
    return frozenset(old), frozenset(new)


def _placed(
    kind: str | None, text: str, described: Sequence[int], phrases: Sequence[_Phrase]
) -> tuple[list[_Subject], _Subject, Attributes]:
    """The described objects with their sides and relations, those of none of them, and sides that are a new place."""
    starts = {n: re.search(rf"\b(?:np|look){n}\b", text).start() for n in described}  # type: ignore[union-attr]
    subjects = {n: _Subject(phrases[n].named) for n in described}
    where, new = _Subject(), set[tuple[str, str]]()

    def give(at: int, subject: _Subject) -> None:
        nonlocal where
        before = [n for n in described if starts[n] < at]
        if before:
            subjects[before[-1]] = _joined(subjects[before[-1]], subject)
        else:
            where = _joined(where, subject)

    for match in vocab.PREDICATE.finditer(text):
        give(match.start(), _Subject(phrases[int(match[1])].named))
    for match in vocab.ANCHOR.finditer(text):
        relation = match[1] or (match[2] and "front") or match[3] or "near"
        give(match.start(), _Subject(frozenset(), frozenset(), ((relation, phrases[int(match[5])].named),)))
    verb = vocab.MOVES.search(text)
    for match in vocab.IS_AT.finditer(text):
        side = vocab.SIDES[match[1]]
        if (
            kind == "move"
            and verb
            and match.start() > verb.start()
            and any(at < verb.start() for at in starts.values())
        ):
            new.add((vocab.SIDE, side))
        else:
            give(match.start(), _Subject(frozenset(), frozenset((side,))))
    if kind != "move":
        for match in vocab.TO_SIDE.finditer(text):
            give(match.start(), _Subject(frozenset(), frozenset((vocab.SIDES[match[1]],))))
    return list(subjects.values()), where, frozenset(new)


def _sides_of(pattern: re.Pattern[str], text: str) -> Attributes:
    return frozenset((vocab.SIDE, vocab.SIDES[match[1]]) for match in pattern.finditer(text))


# -------------------------------------------------------------------------------------------------- the changed object


@dataclass(frozen=True)
class ObjectClaims:
    """The claims of a caption about objects."""

    described: Attributes | None
    """Of the changed object; ``None`` if no noun phrase describes it."""
    new_look: Attributes
    """Its attributes after the change."""


@lru_cache(maxsize=65536)
def read_object_claims(caption: str) -> ObjectClaims:
    """Read a caption's noun phrases: attribute words with the noun after them, if there is one."""
    described: Attributes | None = None
    new_look: set[tuple[str, str]] = set()
    words, start = re.findall(r"[a-z]+", caption.lower()), 0
    for end, word in enumerate([*words, ""]):
        is_object = word in vocab.OBJECT_NOUNS  # "the red one": no noun of ours, nothing to distinguish
        if word in vocab.WORDS and not is_object:
            continue
        phrase, before, start = words[start : end + is_object], " ".join(words[:start]), end + 1
        named = frozenset(vocab.WORDS[word] for word in phrase if word in vocab.WORDS)
        if not phrase:
            continue
        if vocab.RELATION.search(before):  # a second object; first, as "next to" ends in a word of a new look
            continue
        if vocab.NEW_LOOK.search(before):
            new_look |= named
        elif is_object and described is None:
            described = named
    return ObjectClaims(described, frozenset(new_look))
