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

The kind of a segment is the first that fits: no difference (:mod:`idc.metrics.change_types`), text ("letter", "reads"),
count ("number of", "three instead of two", "two ... were removed"), replace, orientation ("rotated", "faces another
direction"), size ("grown", "smaller", "from small to large"), then drop, move, add, color and material by
:mod:`idc.metrics.change_types`, at last by the new look. A segment with a kind and no object is about the object before
it ("... and moved to the left"); objects without a kind share that of the segment after them ("the cube and the ball
have disappeared"), or of the one before ("someone removed the cube and the ball"). "Something changed" of an object is
a claim without a kind. Unknown words are skipped; what is left unfinished at the end claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from idc.data.schema import NO_CHANGE
from idc.metrics import claim_words as vocab
from idc.metrics.change_types import DISTRACTORS, clauses_of, named_type

Attributes = frozenset[tuple[str, str]]
"""Some (attribute, value) pairs: ``{("color", "red"), ("shape", "cube")}``."""


@dataclass(frozen=True)
class SentenceClaim:
    """A difference that a caption claims; while it is read also an object alone, with where it is said to be.

    Attributes:
        kind: of :data:`idc.rendered.differences.KINDS`; None if only "changed" is said.
        described: attributes of the object.
        old, new: what is said of it before and after: attributes, ``("side", "left")``, ``("text", "B")``,
            ``("count", "3")``.
        sides: of the picture, on which it is said to be.
        relations: (relation, attributes of the second object); ``near`` is a relation too.
    """

    kind: str | None = None
    described: Attributes = frozenset()
    old: Attributes = frozenset()
    new: Attributes = frozenset()
    sides: frozenset[str] = frozenset()
    relations: tuple[tuple[str, Attributes], ...] = ()

    def __str__(self) -> str:
        """In words: "color of red cube: to blue"."""
        parts = [" ".join(value for _, value in sorted(self.described)) or "an object"]
        parts += sorted(self.sides)
        parts += [f"{relation} {' '.join(value for _, value in sorted(named))}" for relation, named in self.relations]
        old, new = (" ".join(value for _, value in sorted(side)) for side in (self.old, self.new))
        looks = [f"from {old}"] * bool(old) + [f"to {new}"] * bool(new)
        return f"{self.kind or 'change'} of {', '.join(parts)}" + (f": {' '.join(looks)}" if looks else "")

    def at(self, other: SentenceClaim) -> SentenceClaim:
        """With what the other describes, and where."""
        return replace(
            self,
            described=self.described | other.described,
            sides=self.sides | other.sides,
            relations=self.relations + other.relations,
        )


_NOWHERE = SentenceClaim()


class Reading(NamedTuple):
    """The claims of a caption in order, and whether it says that nothing changed (and claims nothing)."""

    claims: tuple[SentenceClaim, ...]
    no_change: bool


class _Phrase(NamedTuple):
    """A noun phrase, or attribute words without a noun."""

    named: Attributes
    has_noun: bool
    number: int | None
    article: bool
    words: str


class _Part(NamedTuple):
    """A segment as it was read; ``where`` is of no object of it, ``object_last`` that the object follows the verb."""

    kind: str | None = None
    vague: bool = False
    no_change: bool = False
    subjects: Sequence[SentenceClaim] = ()
    where: SentenceClaim = _NOWHERE
    old: Attributes = frozenset()
    new: Attributes = frozenset()
    object_last: bool = False


@lru_cache(maxsize=65536)
def read_claims(caption: str) -> Reading:
    """The claims of a caption. Never fails: of a text that claims nothing the reading is empty."""
    claims: list[SentenceClaim] = []
    no_change = False
    last: list[SentenceClaim] = []
    for sentence in _sentences(caption):
        pending: list[SentenceClaim] = []
        where, previous = _NOWHERE, _Part()
        for part in sentence:
            if part.no_change:
                no_change, pending = True, []
            elif part.kind is None and not (part.vague and part.subjects):
                if part.subjects:
                    pending += [subject.at(where) for subject in part.subjects]
                    where = _NOWHERE
                elif pending:
                    pending[-1] = pending[-1].at(part.where)
                else:
                    where = where.at(part.where)
            elif claims and last and not (part.subjects or pending) and _continues(claims[-1], part):
                claims[-1] = replace(claims[-1], old=claims[-1].old | part.old, new=claims[-1].new | part.new)
            else:
                if part.subjects:
                    last = [subject.at(where) for subject in (*pending, *part.subjects)]
                else:
                    around = where.at(part.where)
                    last = [subject.at(around) for subject in pending or last] or [part.where.at(where)]
                claims += [replace(subject, kind=part.kind, old=part.old, new=part.new) for subject in last]
                pending, where, previous = [], _NOWHERE, part
        if previous.object_last and previous.kind is not None:
            claims += [replace(subject, kind=previous.kind, new=previous.new) for subject in pending]
    return Reading(tuple(claims), no_change and not claims)


def _continues(claim: SentenceClaim, part: _Part) -> bool:
    """Whether a segment without an object only goes on with the claim before: "... was two | and is now three"."""
    return claim.kind == part.kind and not (claim.new and part.new and claim.kind != vocab.COUNT)


def _sentences(caption: str) -> Iterator[list[_Part]]:
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
    starts = (
        (token.startswith("np") and token[2:].isdigit() and phrases[int(token[2:])].article)
        or token == "someone"
        or (token == "there" and following in ("is", "was", "were"))
        or (token == "the" and following in vocab.HEADS)
    )
    if not starts or segment[-1] in vocab.LINKS:
        return False
    if segment[-1] in vocab.TRANSITIVE and not any(word.startswith("np") for word in segment):
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


def _part(segment: Sequence[str], phrases: Sequence[_Phrase]) -> _Part:
    """Read a segment, whose tokens are those of :func:`_phrases`."""
    numbered = {i: int(mark[2]) for i, token in enumerate(segment) if (mark := vocab.MARK.match(token)) is not None}
    raw = " ".join(phrases[numbered[i]].words if i in numbered else token for i, token in enumerate(segment))
    text = vocab.THERE.sub("now there_is", " ".join(segment))
    named = named_type(raw)
    if named == NO_CHANGE or vocab.NOT_DONE.search(text) or (DISTRACTORS.search(text) and not numbered):
        return _Part(no_change=named == NO_CHANGE)
    kind = vocab.first_kind(vocab.KINDS, text)
    if kind is None and vocab.SHOWN_INSTEAD.search(text) and not vocab.NEW.search(text):
        kind = "replace"
    kind = kind or named or vocab.first_kind(vocab.FURTHER, text)
    roles = _roles(text, kind)
    look = {role: frozenset(pair for n in numbers for pair in phrases[n].named) for role, numbers in roles.items()}
    free = [n for n in numbered.values() if not any(n in numbers for numbers in roles.values())]
    described = [n for n in free if phrases[n].has_noun] or [n for n in free if phrases[n].article]
    shaped = any(phrases[n].has_noun and "shape" in dict(phrases[n].named) for n in roles["new"])
    if kind in (None, "color", "material") and shaped and described:
        kind = "replace"
    if kind in ("add", "drop") and any((phrases[n].number or 0) > 1 for n in described):
        kind = vocab.COUNT
    elif kind is None:
        kind = next((name for name in ("color", "material", "size") if name in dict(look["new"] | look["old"])), None)
    old, new = _looks(kind, text, look)
    steps = [phrases[n].number for n in described if phrases[n].number]
    if kind == vocab.COUNT and steps and not (old or new):
        way = vocab.FEWER if vocab.DOWN.search(text) else vocab.MORE
        new = frozenset(((vocab.COUNT, f"{way} by {steps[0]}"),))
    subjects, where, more_new = _placed(kind, text, described, phrases)
    if kind == "move":
        ways = {(vocab.SIDE, side) for pattern, side in vocab.WAYS if pattern.search(text)}
        old, new = old | _sides_of(vocab.FROM_SIDE, text), new | more_new | _sides_of(vocab.TO_SIDE, text) | ways
    vague = kind is None and vocab.VAGUE.search(raw) is not None
    ends = bool(described) and text.endswith(f"np{described[-1]}")
    object_last = text.startswith(("someone", "there", "now there_is")) or ends
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
        old, new = (
            frozenset((vocab.TEXT, match[match.lastindex or 1].upper()) for match in pattern.finditer(text))
            for pattern in (vocab.LETTER_OLD, vocab.LETTER_NEW)
        )
        return old, new
    if kind == "replace":
        return frozenset(), look["new"]
    if kind not in ("color", "material", "size"):
        return frozenset(), frozenset()
    old, new = (frozenset(attribute for attribute in look[side] if attribute[0] == kind) for side in ("old", "new"))
    if kind == "size" and not new and ((grown := vocab.GROWN.search(text)) or vocab.SHRUNK.search(text)):
        new = frozenset((("size", "large" if grown else "small"),))
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
) -> tuple[list[SentenceClaim], SentenceClaim, Attributes]:
    """The described objects with their sides and relations, those of none of them, and sides that are a new place."""
    starts = {n: match.start() for n in described if (match := re.search(rf"\b(?:np|look){n}\b", text)) is not None}
    subjects = {n: SentenceClaim(described=phrases[n].named) for n in described}
    where, new = _NOWHERE, set[tuple[str, str]]()

    def give(start: int, subject: SentenceClaim) -> None:
        """To the object before it."""
        nonlocal where
        if before := [n for n in described if starts[n] < start]:
            subjects[before[-1]] = subjects[before[-1]].at(subject)
        else:
            where = where.at(subject)

    for match in vocab.PREDICATE.finditer(text):
        give(match.start(), SentenceClaim(described=phrases[int(match[1])].named))
    for match in vocab.ANCHOR.finditer(text):
        relation = match[1] or (match[2] and "front") or match[3] or "near"
        give(match.start(), SentenceClaim(relations=((relation, phrases[int(match[5])].named),)))
    verb = vocab.MOVES.search(text) if kind == "move" else None
    moved = verb is not None and any(start < verb.start() for start in starts.values())
    for match in vocab.IS_AT.finditer(text):
        if moved and verb is not None and match.start() > verb.start():
            new.add((vocab.SIDE, vocab.SIDES[match[1]]))
        else:
            give(match.start(), SentenceClaim(sides=frozenset((vocab.SIDES[match[1]],))))
    if kind != "move":
        for match in vocab.TO_SIDE.finditer(text):
            give(match.start(), SentenceClaim(sides=frozenset((vocab.SIDES[match[1]],))))
    return list(subjects.values()), where, frozenset(new)


def _sides_of(pattern: re.Pattern[str], text: str) -> Attributes:
    return frozenset((vocab.SIDE, vocab.SIDES[match[1]]) for match in pattern.finditer(text))


class ObjectClaims(NamedTuple):
    """Attributes of the changed object (None if no noun phrase describes it), and those after the change."""

    described: Attributes | None
    new_look: Attributes


@lru_cache(maxsize=65536)
def read_object_claims(caption: str) -> ObjectClaims:
    """Read a caption's noun phrases: attribute words with the noun after them, if there is one."""
    described: Attributes | None = None
    new_look: Attributes = frozenset()
    words, start = re.findall(r"[a-z]+", caption.lower()), 0
    for end, word in enumerate([*words, ""]):
        is_object = word in vocab.OBJECT_NOUNS  # "the red one": no noun of ours, nothing to distinguish
        if word in vocab.WORDS and not is_object:
            continue
        phrase, before, start = words[start : end + is_object], " ".join(words[:start]), end + 1
        if not phrase or vocab.RELATION.search(before):  # a second object, also after "next to"
            continue
        named = frozenset(vocab.WORDS[word] for word in phrase if word in vocab.WORDS)
        if vocab.NEW_LOOK.search(before):
            new_look |= named
        elif is_object and described is None:
            described = named
    return ObjectClaims(described, new_look)
