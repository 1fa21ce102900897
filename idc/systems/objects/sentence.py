"""The sentence of a pair's claims."""

from __future__ import annotations

from collections.abc import Sequence

from idc.captioning.contract import Claim
from idc.systems.objects.claims import FAMILIES
from idc.systems.objects.wording import OBJECT, REGION, WORDS, joined, with_article

_CLAUSES = 3
"""Largest number of clauses: a sentence is not a list."""
_NUMBERS = ("no", "one", "two", "three", "four", "five")
_PLURALS = {"person": "people", "sheep": "sheep", "skis": "skis", "scissors": "scissors", "knife": "knives"}


def sentence_of(claims: Sequence[Claim], explained: bool) -> str:
    """The sentence.

    Args:
        claims: at least one.
        explained: whether they explain all that changed. Only then things are counted, and have "appeared" or are
            "gone": else they may also have come from, or be at, another place.
    """
    clauses = [_clause(claim, explained) for claim in claims if claim.object != REGION]
    regions = [claim for claim in claims if claim.object == REGION]
    room = _CLAUSES - len(clauses)
    if regions and room > 0:
        clauses += _region_clauses(regions, room, named=bool(clauses))
    text = "; ".join(clauses[:_CLAUSES])
    return f"{text[:1].upper()}{text[1:]}."


def _clause(claim: Claim, explained: bool) -> str:
    if claim.object == WORDS:
        from idc.systems.objects.text import words_clause

        return words_clause(claim)
    explained &= claim.object != OBJECT
    several = claim.count > 1
    things = _counted(claim.object, claim.count) if explained or not several else plural(claim.object)
    match claim.kind:
        case "gone":
            end = "gone" if explained else "no longer there"
            return f"{things} {claim.where} {'are' if several else 'is'} {end}"
        case "appeared" if explained:
            return f"{things} {'have' if several else 'has'} appeared {claim.where}"
        case "appeared":
            return f"there {'are' if several else 'is'} now {things} {claim.where}"
        case "moved" if several:
            return f"the {plural(claim.object)} are in other places than before"
        case "moved" if claim.before != claim.after:
            return f"{things} {claim.before} is no longer there, but there is now one {claim.after}"
        case "replaced":
            other = claim.after or OBJECT
            again = "another " if other in (claim.before, FAMILIES.get(claim.before or "")) else ""
            return f"{things} {claim.where} has been replaced by {again + other if again else _counted(other, 1)}"
        case "moved":
            return f"the {claim.object} {claim.where} has moved or been replaced"
    moves = claim.object == "person" or claim.object in {*FAMILIES, *FAMILIES.values()}
    return f"the {claim.object} {claim.where} {'has moved a little, or is another one' if moves else 'looks different'}"


def _region_clauses(regions: Sequence[Claim], room: int, named: bool) -> list[str]:
    """Clauses of parts that could not be named: by colour where that says something, else by place."""
    coloured = [claim for claim in regions if claim.before is not None][: room if len(regions) <= room else 1]
    plain = [claim for claim in regions if claim not in coloured]
    clauses = [f"something {claim.where} changed from {claim.before} to {claim.after}" for claim in coloured]
    if plain:
        where = list(dict.fromkeys(claim.where for claim in plain))
        all_of_them = joined(where) if len(where) <= _CLAUSES else f"in several places, most {where[0]}"
        clauses.append(f"something {'else ' if named or coloured else ''}changed {all_of_them}")
    return clauses


def _counted(name: str, count: int) -> str:
    """ "a car", "two cars", "several cars"."""
    if count == 1:
        return with_article(name)
    return f"{_NUMBERS[count] if count < len(_NUMBERS) else 'several'} {plural(name)}"


def plural(name: str) -> str:
    """The plural of an object's name."""
    first, _, last = name.rpartition(" ")
    if last not in _PLURALS:
        ending = "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
        last = f"{last[:-1]}ies" if last.endswith("y") and last[-2:-1] not in "aeiou" else f"{last}{ending}"
    else:
        last = _PLURALS[last]
    return f"{first} {last}".strip()
