"""Pairs with drawn differences, as records without pictures: objects at random places, and what changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from idc.data.rendered.config import JITTERS, RenderConfig
from idc.data.rendered.differences import KINDS, Difference
from idc.data.rendered.draw import (
    BASE_ELEVATION,
    BASE_LAMPS,
    DEFAULT_JITTER,
    EmptyScene,
    _elsewhere,
    _free_thing,
    draw_view,
)
from idc.data.rendered.scene import Thing, View
from idc.data.rendered.sentences import describable_difference

CONFIG = RenderConfig(extent=4.0)
Record = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A pair: see :class:`idc.metrics.difference_lists.TrueDifferences`."""

    differences: tuple[Difference, ...]
    before: list[Record]
    after: list[Record]
    views: tuple[View, View]


def drawn_pairs(count: int, seed: int, jitter: str = "moderate") -> list[Drawn]:
    """Pairs with 0 to 5 differences, of which each can be described."""
    rng = np.random.default_rng(seed)
    found: list[Drawn] = []
    while len(found) < count:
        pair = _draw(int(rng.integers(0, 6)), rng, jitter)
        if pair is not None and all(
            describable_difference(one, pair.before, pair.after, pair.views) for one in pair.differences
        ):
            found.append(pair)
    return found


def _record(thing: Thing, text: str | None = None) -> Record:
    plain = {name: value for name, value in asdict(thing).items() if name != "text"}
    return plain if text is None else {**plain, "text": text}


def _draw(changes: int, rng: np.random.Generator, jitter: str) -> Drawn | None:
    things: list[Thing] = []
    for _ in range(int(rng.integers(changes + 1, changes + 5))):
        thing = _free_thing(CONFIG, things, rng)
        if thing is None:
            return None
        things.append(thing)
    before: list[Record] = []
    after: list[Record] = []
    differences = []
    for place, thing in enumerate(tuple(things)):
        kind = str(rng.choice(KINDS)) if place < changes else None
        old, new = _states(kind, thing, things, rng)
        before += old
        after += new
        if kind is not None:
            differences.append(Difference(kind, tuple(old), tuple(new)))
    first = draw_view(rng, DEFAULT_JITTER, EmptyScene(BASE_ELEVATION, 11.6, 1.0, BASE_LAMPS))
    second = draw_view(rng, JITTERS[jitter], first)  # type: ignore[index]
    groups = [one for one in differences if one.kind == "count"]
    if any(len(one.before) == len(one.after) for one in groups):
        return None
    order = rng.permutation(len(differences))
    views = (View(first.origin, first.target, ()), View(second.origin, second.target, ()))
    return Drawn(tuple(differences[i] for i in order), before, after, views)


def _states(
    kind: str | None, thing: Thing, things: list[Thing], rng: np.random.Generator
) -> tuple[list[Record], list[Record]]:
    """The object before and after; of a changed number the group."""

    def other(values: tuple[str, ...], own: str) -> str:
        return str(rng.choice([value for value in values if value != own]))

    old = _record(thing)
    if kind is None:
        return [old], [old]
    if kind == "add":
        return [], [old]
    if kind == "drop":
        return [old], []
    if kind == "text":
        letters = [str(letter) for letter in rng.choice(list("ABCDEFGHIKLMNOPRSTUXZ"), 2, replace=False)]
        return [_record(thing, letters[0])], [_record(thing, letters[1])]
    if kind == "count":
        sizes = [int(number) for number in rng.choice(5, 2, replace=False)]
        group = [thing]
        while len(group) < max(sizes):
            more = _elsewhere(CONFIG, thing, [*things, *group], rng, 0.0)
            if more is None:
                return [old], [old]
            group.append(more)
        things += group[1:]
        records = [_record(one) for one in group]
        return records[: sizes[0]], records[: sizes[1]]
    if kind == "move":
        moved = _elsewhere(CONFIG, thing, [one for one in things if one is not thing], rng, 1.0)
        return [old], [_record(moved or replace(thing, x=-thing.x, y=-thing.y))]
    if kind == "orientation":
        return [old], [_record(replace(thing, turn=thing.turn + 0.6))]
    if kind == "replace":
        look = {"shape": other(CONFIG.shapes, thing.shape), "color": str(rng.choice(CONFIG.colors))}
        return [old], [_record(replace(thing, **look))]
    values = {"size": ("small", "large"), "color": CONFIG.colors, "material": CONFIG.materials}[kind]
    return [old], [_record(replace(thing, **{kind: other(values, getattr(thing, kind))}))]
