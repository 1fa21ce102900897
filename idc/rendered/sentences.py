"""Reference captions of a pair: true, varied, in CLEVR-Change's style with about its vocabulary.

Of a pair with a single change, or none, of a scene of three images: one sentence by one of the templates. Of a pair
with a list of differences, in OmniDiff's manner: one clause a difference, in any order. A clause has a *referring
part*, which fits exactly one object, and a *change part*: "the small red cube on the left side of the scene | has
turned from red to blue". :mod:`idc.metrics.scene_scores` takes these captions apart again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from idc.rendered.captions import (
    ATTRIBUTES,
    TEMPLATES,
    Record,
    ReferringOptions,
    SceneDescription,
    changed_object_of_pair,
    describable,
    descriptions,
    find_referring_options,
    noun,
    phrase,
    thing_of,
    word,
)
from idc.rendered.differences import Difference, differences_of
from idc.rendered.scene import CHANGED, Order, PairScene, Scene, View

MOST_CAPTIONS = 8
"""Wordings of each kind, and so the number of different captions that every pair has."""

RELATION_SHARE, SIDE_SHARE = 0.25, 0.25
"""Shares of the clauses that name a relation, or a side of the picture, although attributes alone are unambiguous."""

SIDE_WORDS: dict[str, tuple[str, ...]] = {
    "left": ("on the left side of the scene", "on the left"),
    "right": ("on the right side of the scene", "on the right"),
    "front": ("in the foreground", "at the front of the scene"),
    "behind": ("in the background", "at the back of the scene"),
}
"""Side -> where an object is. The sides are called as the relations."""

SIDE_NAMES = {"left": "left", "right": "right", "front": "front", "behind": "back"}

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip

_UP, _DOWN = {"w": "grown", "c": "larger"}, {"w": "shrunk", "c": "smaller"}

CLAUSES: dict[str, tuple[str, ...]] = {
    "add": TEMPLATES["add"],
    "drop": TEMPLATES["drop"],
    "color": (
        "the {d} has turned from {a} to {b}", "the {d} has changed color from {a} to {b}",
        "the color of the {d} has changed from {a} to {b}", "the {d} was changed from {a} to {b}",
        "the {d} is now {b} instead of {a}", "the {d} has turned {b}", "the {d} has become {b}", "the {d} is now {b}",
    ),
    "material": (
        "the {d} has changed from {a} to {b}", "the {d} has turned from {a} to {b}",
        "the material of the {d} has changed from {a} to {b}", "the {d} was changed from {a} to {b}",
        "the {d} is now {b} instead of {a}", "the {d} has turned {b}", "the {d} has become {b}", "the {d} is now {b}",
    ),
    "size": (
        "the {d} has {w} from {a} to {b}", "the size of the {d} has changed from {a} to {b}",
        "the {d} was changed from {a} to {b}", "the {d} is now {b} instead of {a}", "the {d} has {w}",
        "the {d} has become {c}", "the {d} is now {c}", "the {d} is now {b}",
    ),
    "replace": (
        "the {d} has been replaced by a {b}", "the {d} was replaced by a {b}", "the {d} has been replaced with a {b}",
        "someone replaced the {d} with a {b}", "there is a {b} in place of the {d}", "a {b} is now in place of the {d}",
        "a {b} has replaced the {d}", "a {b} has taken the place of the {d}",
    ),
    "orientation": (
        "the {d} has been rotated", "the {d} was rotated", "someone rotated the {d}",
        "the {d} has a different orientation", "the orientation of the {d} has changed",
        "the {d} has changed its orientation", "the {d} now faces another direction", "the {d} has been turned around",
    ),
    "move": TEMPLATES["move"],
    "count": (
        "the number of {d} has {w} from {a} to {b}", "the number of {d} has changed from {a} to {b}",
        "the number of {d} changed from {a} to {b}", "the number of {d} has gone from {a} to {b}",
        "the number of {d} is now {b} instead of {a}", "there {is} now {b} {n} instead of {a}",
        "there {was} {a} {m} and now there {is} {b}", "the number of {d} was {a} and is now {b}",
    ),
    "text": (
        "the letter on the {d} has changed from {a} to {b}", "the letter on the {d} was changed from {a} to {b}",
        "the letter on the {d} is now {b} instead of {a}", "the letter on the {d} has become {b}",
        "the letter on the {d} is now {b}", "the letter {a} on the {d} has changed to {b}",
        "someone changed the letter on the {d} from {a} to {b}", "the {d} now has the letter {b} instead of {a}",
    ),
}  # fmt: skip
"""Kind -> its clauses, eight of each. ``{d}``: the referring part, ``{a}`` and ``{b}``: old and new look, number or
letter, ``{w}`` and ``{c}``: the direction of growth; of counts ``{m}`` and ``{n}``: the objects in old and new
number."""

DIRECTED_MOVES = (
    "the {d} has moved from the {a} to the {b} of the scene",
    "the {d} was moved from the {a} to the {b}",
    "the {d} has been moved to the {b}",
    "someone moved the {d} to the {b}",
)
"""Clauses of moves whose direction is clear; the first two only if the object comes from another side."""

# ------------------------------------------------------------------------------------------------------- the captions


def change_captions(
    scene: Scene, count: int, relation_share: float, rng: np.random.Generator, order: Order = CHANGED
) -> list[str]:
    """``count`` captions of the single change between two images of a scene or of none, each from another template."""
    return _single_captions(scene.pair(order), count, relation_share, rng)


def captions_of_meta(
    meta: Mapping[str, Any], kind: str | None, count: int, relation_share: float, rng: np.random.Generator
) -> list[str]:
    """``count`` captions of a rendered pair of change type ``kind`` by its ``meta``; none if one of its differences has
    no true and unambiguous description (possible for a pair in reverse order)."""
    views = [View.of_record(view) for view in meta["views"]]
    if (listed := differences_of(meta)) is not None:
        return several_captions(listed, meta["before"], meta["after"], views, count, rng)
    before, after = meta["before"], meta["after"]
    gone, new = ([n for n, t in enumerate(a) if t not in b] for a, b in ((before, after), (after, before)))
    listed_one = [] if kind == "none" else [{"kind": kind, "before": gone, "after": new}]
    pair = PairScene(tuple(map(thing_of, before)), tuple(map(thing_of, after)), views, listed_one)
    return _single_captions(pair, count, relation_share, rng) if describable(pair) else []


def _single_captions(pair: PairScene, count: int, relation_share: float, rng: np.random.Generator) -> list[str]:
    if not pair.differences:
        return _no_change_captions(count, rng)
    unique_in, shown = changed_object_of_pair(pair)
    plain, relational = descriptions(unique_in, shown)
    kind = str(pair.change_type)
    value = getattr(shown[-1].thing, kind) if kind in ("color", "material") else ""
    templates = TEMPLATES[kind]
    captions = []
    for t in rng.permutation(len(templates))[:count]:
        use_relation = bool(relational) and (not plain or rng.random() < relation_share)
        description = _pick_full(relational if use_relation else plain, rng)
        captions.append(templates[t].format(d=phrase(unique_in[0].thing, description, rng), v=word(value, rng)))
    return captions


def _no_change_captions(count: int, rng: np.random.Generator) -> list[str]:
    templates = TEMPLATES["none"]
    return [templates[t] for t in rng.permutation(len(templates))[:count]]


def true_captions(change_type: str, before: Sequence[Record], after: Sequence[Record]) -> list[str]:
    """True captions in every template of a single change's type, with all attributes of the changed object.

    Args:
        change_type: of the pair.
        before, after: the objects of the images, as the ``meta`` of a rendered pair has them.
    """
    templates = TEMPLATES[change_type]
    if change_type == "none":
        return list(templates)
    gone, new = ([thing for thing in a if thing not in b] for a, b in ((before, after), (after, before)))
    value = new[0][change_type] if change_type in ("color", "material") else ""
    return [t.format(d=" ".join((gone or new)[0][name] for name in ATTRIBUTES), v=value) for t in templates]


def several_captions(
    differences: Sequence[Difference],
    before: Sequence[Record],
    after: Sequence[Record],
    views: Sequence[View],
    count: int,
    rng: np.random.Generator,
) -> list[str]:
    """``count`` different captions, each of which names all differences of a pair, or says that there are none. No
    captions if a difference has no true and unambiguous description (possible for a pair in reverse order).

    Args:
        differences: as :func:`~idc.rendered.differences.differences_of` returns them.
        before, after: the objects of the images, as ``meta`` has them.
        views: of the before and the after image.
        count: at most :data:`MOST_CAPTIONS`.
    """
    if not differences:
        return _no_change_captions(count, rng)
    statements = [find_referring_options(difference, before, after, views) for difference in differences]
    if not all(statement.describable for statement in statements):
        return []
    captions: dict[str, None] = {}
    decks = [_deck(clauses_of_changes(statement), rng) for statement in statements]
    while len(captions) < count:
        clauses = [clause(statement, next(deck), rng) for statement, deck in zip(statements, decks, strict=True)]
        captions[join_clauses(clauses, rng)] = None
    return list(captions)


def join_clauses(clauses: Sequence[str], rng: np.random.Generator) -> str:
    """The clauses in a drawn order: "a; b; c" or "a, b and c"."""
    shuffled = [clauses[index] for index in rng.permutation(len(clauses))]
    if len(shuffled) == 1 or rng.random() < 0.5:
        return "; ".join(shuffled)
    return f"{', '.join(shuffled[:-1])} and {shuffled[-1]}"


def clauses_of_changes(statement: ReferringOptions) -> tuple[str, ...]:
    """The wordings of a clause about a difference, as in :data:`CLAUSES`."""
    templates = CLAUSES[statement.difference.kind]
    if statement.moves:
        directed = DIRECTED_MOVES if any(start is not None for start, _ in statement.moves) else DIRECTED_MOVES[2:]
        templates = (*directed, *templates)[:MOST_CAPTIONS]
    return templates


def clause(statement: ReferringOptions, template: str, rng: np.random.Generator) -> str:
    """One clause about a difference, in one of :func:`clauses_of_changes`; the referring part is drawn."""
    return template.format(**_words(statement, _pick(statement, rng), rng, template))


def true_wordings(differences: Sequence[Difference]) -> list[str]:
    """True captions of the differences in every wording, in their own order, each object named by all attributes.

    Returns:
        Eight captions; the n-th is made of the n-th clause of each kind.
    """
    if not differences:
        return list(TEMPLATES["none"])
    rng = _FirstWord()
    captions = []
    for number in range(MOST_CAPTIONS):
        clauses = []
        for difference in differences:
            thing = thing_of((*difference.before, *difference.after)[0])
            statement = ReferringOptions(difference, thing, (SceneDescription(ATTRIBUTES),))
            template = CLAUSES[difference.kind][number]
            clauses.append(template.format(**_words(statement, statement.plain[0], rng, template)))
        captions.append("; ".join(clauses))
    return captions


# ----------------------------------------------------------------------------------------------------------- the words


def _words(statement: ReferringOptions, description: SceneDescription, rng: Any, template: str) -> dict[str, str]:
    difference, attributes = statement.difference, description.attributes
    if difference.kind == "count":
        old, new = len(difference.before), len(difference.after)
        nouns = [noun(statement.thing, attributes, rng) + "s" * (number != 1) for number in (0, old, new)]
        return {
            "d": nouns[0], "m": nouns[1], "n": nouns[2], "a": NUMBER_WORDS[old], "b": NUMBER_WORDS[new],
            "w": "increased" if new > old else "decreased",
            "was": "was" if old == 1 else "were", "is": "is" if new == 1 else "are",
        }  # fmt: skip
    words = {"d": phrase(statement.thing, description, rng)}
    if description.side is not None:
        words["d"] += f" {rng.choice(SIDE_WORDS[description.side])}"
    if difference.kind in ("color", "material", "size"):
        words |= {
            "a": word(difference.before[0][difference.kind], rng),
            "b": word(difference.after[0][difference.kind], rng),
        }
        words |= _UP if difference.after[0]["size"] == "large" else _DOWN
    elif difference.kind == "replace":
        # The new shape is always named; of the other attributes those that the referring part names.
        named = tuple(name for name in ATTRIBUTES if name in attributes or name == "shape")
        words["b"] = phrase(thing_of(difference.after[0]), SceneDescription(named), rng)
    elif difference.kind == "text":
        words |= {"a": difference.before[0]["text"], "b": difference.after[0]["text"]}
    elif "{b}" in template:
        source = [pair for pair in statement.moves if pair[0] is not None or "{a}" not in template]
        old_side, new_side = source[int(rng.integers(len(source)))]
        words |= {"a": SIDE_NAMES.get(old_side or "", ""), "b": SIDE_NAMES[new_side]}
    return words


def _deck(templates: Sequence[str], rng: np.random.Generator) -> Iterator[str]:
    """Wordings in a drawn order, again and again."""
    while True:
        yield from (templates[int(index)] for index in rng.permutation(len(templates))[::-1])


class _FirstWord:
    """In place of a generator: always the first of the words."""

    def choice(self, words: Sequence[str]) -> str:
        return words[0]


def _pick(statement: ReferringOptions, rng: np.random.Generator) -> SceneDescription:
    drawn = rng.random()
    options = statement.plain
    if statement.relational and drawn < RELATION_SHARE:
        options = statement.relational
    elif statement.sided and drawn < RELATION_SHARE + SIDE_SHARE:
        options = statement.sided
    return _pick_full(options or statement.sided or statement.relational, rng)


def _pick_full(options: Sequence[SceneDescription], rng: np.random.Generator) -> SceneDescription:
    """One of the options; every other time one of those that name the most attributes."""
    if rng.random() < 0.5:
        most = max(len(option.attributes) for option in options)
        options = [option for option in options if len(option.attributes) == most]
    return options[int(rng.integers(len(options)))]
