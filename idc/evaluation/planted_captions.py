"""Planted errors in pairs: a true caption of a pair, and the same with one error."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from idc.data.rendered.captions import ATTRIBUTES, TEMPLATES
from idc.data.rendered.planted_errors import ERRORS, planted
from idc.data.rendered.sentences import Told, clause, clauses_of_changes, tell
from idc.metrics.difference_lists import TrueDifferences

_ATTEMPTS = 20
"""Draws of a caption that is to be none of the references."""
_WORDINGS = 40
"""Draws of a true clause, of which the one nearest to the wrong clause is taken."""


def planted_pairs(
    pair_id: str, truth: TrueDifferences, references: Sequence[str], seed: int
) -> dict[str, tuple[str, str]]:
    """Error -> a true and complete caption that is none of the references, and the same with the error; without the
    errors that the pair cannot have.

    :func:`idc.data.rendered.planted_errors.planted` makes the caption with the error. The true one has its other
    clauses in their order, and in place of the wrong clause the true one in the most similar of the drawn wordings.
    Of a pair without differences it is a sentence that nothing changed.

    Args:
        truth: with views.
        seed: with error and pair id it decides what is drawn.
    """
    assert truth.views is not None
    scene = truth.before, truth.after, truth.views
    try:
        statements = [tell(difference, *scene) for difference in truth.differences]
    except ValueError:  # an object that cannot be described without ambiguity, as in some single changes
        return {}
    captions = {}
    for number, error in enumerate(ERRORS):
        for attempt in range(_ATTEMPTS):
            key = [seed, number, zlib.crc32(pair_id.encode()), attempt]
            wrong = planted(error, truth.differences, *scene, np.random.default_rng(key))
            if wrong is None:
                break
            true = _without_error(wrong, statements, np.random.default_rng(key))
            if true not in references and true != wrong:
                captions[error] = true, wrong
                break
    return captions


def _without_error(wrong: str, statements: Sequence[Told], rng: np.random.Generator) -> str:
    """The true caption.

    Args:
        rng: in the state that ``planted`` began with: it draws the same true clauses first.
    """
    if not statements:
        return str(rng.choice(TEMPLATES["none"]))
    drawn = [_clause(statement, rng) for statement in statements]
    kept = sorted((text for text in drawn if text in wrong), key=wrong.index)
    lost = [(statement, text) for statement, text in zip(statements, drawn, strict=True) if text not in wrong]
    semicolons = "; " in wrong
    if not lost:
        return _joined(kept, semicolons)
    statement, text = lost[0]
    left = Counter(wrong.replace(",", "").replace(";", "").split()) - Counter(" ".join(kept).split())
    if len(left) > 1:  # a wrong clause and not a missing one, after which "and" may be left
        # Errors name an object by all attributes, so half of the true wordings do, if that is unambiguous.
        whole = tuple(way for way in statement.plain if way.description.attributes == ATTRIBUTES)
        ways = (statement, replace(statement, plain=whole, relational=(), sided=()) if whole else statement)
        wordings = [text, *(_clause(ways[number % 2], rng) for number in range(_WORDINGS))]
        text = min(wordings, key=lambda other: _distance(Counter(other.split()), left))
    candidates = [_joined([*kept[:position], text, *kept[position:]], semicolons) for position in range(len(kept) + 1)]
    return max(candidates, key=lambda caption: _shared_ends(caption, wrong))


def _clause(statement: Told, rng: np.random.Generator) -> str:
    options = clauses_of_changes(statement)
    return clause(statement, options[int(rng.integers(len(options)))], rng)


def _joined(clauses: Sequence[str], semicolons: bool) -> str:
    if len(clauses) == 1 or semicolons:
        return "; ".join(clauses)
    return f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _distance(counts: Counter[str], other: Counter[str]) -> int:
    return ((counts - other) + (other - counts)).total()


def _shared_ends(text: str, other: str) -> int:
    """Characters that two texts share at their start and at their end."""
    ends = 0
    for first, second in ((text, other), (text[::-1], other[::-1])):
        ends += next((position for position, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
                     min(len(text), len(other)))  # fmt: skip
    return ends
