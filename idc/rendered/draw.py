"""Draws scenes at random: objects, changes, views, and which object each pixel shows.

A scene is drawn from two ``numpy.random.Generator`` seeded by (seed, index), so it depends on nothing else: one draws
objects, changes and jitter, the other what ``variation`` sets, so that the scenes of a seed are the same whatever
varies of their look (as long as no draw is rejected).

A single change is drawn for objects that have their positions. With ``several``, the kinds of change are drawn for all
scenes together: they are shuffled again and again, and each scene takes the next ones of this row, so that all kinds
are equally frequent. Objects are drawn to suit their change, so that nearly every scene can have its kinds; if after
many draws a scene cannot, one of its kinds is replaced by another one at random.

What holds for every scene with several changes:

- No object has part in two changes, and at least one object stays as it is.
- What was added, removed or moved, and a group whose number changes, looks (:func:`attributes_of`) like no other object
  of either image, so that no other story explains the images; other changed objects look like no other changed one.
- Every object shows ``min_visible_pixels`` in every image it is in, a changed one also :data:`CLEAR_SHARE` of itself
  and no part of it beyond the border.
- What is turned and what has a letter that changes is a large cube; a turn is one of :data:`TURNS` modulo 90 degrees.
- Whatever grows keeps ``min_gap`` to all others, before and after.
- Every difference has an unambiguous description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from idc.data.pipeline import Batch, with_errors
from idc.data.schema import ChangePair, pair_arrow_schema
from idc.rendered.captions import ATTRIBUTES, describable, find_referring_options
from idc.rendered.config import JITTERS, RenderConfig, SeveralConfig
from idc.rendered.differences import DifferenceRecord, differences_of
from idc.rendered.look import draw_exposures, draw_look
from idc.rendered.scene import CHANGED, IMAGES, ORDERED_PAIRS, PAIRS, Order, Scene, SceneObject, View
from idc.rendered.views import DEFAULT_JITTER, cast, draw_base, draw_view

MAX_ATTEMPTS = 500
"""Most scenes drawn for an index before it is given up."""

LETTERS = "ACEHKLPSTUXZ"
"""Letters that are told apart in few pixels: of those that look alike (O, Q, C, G, D) one at most."""

TURNS = (20.0, 45.0)
"""Least and largest change of a cube's orientation, degrees; 90 would change nothing."""

CLEAR_SHARE = {"text": 0.9, "orientation": 0.9}
"""Kind -> least visible share of an object that changes so; of other kinds :data:`CLEAR`."""

CLEAR = 0.6

PATIENCE = 60
"""Scenes drawn before one of the kinds is replaced."""

_KINDS_STREAM = 7
"""Last part of the seed of the kinds' order; objects have (seed, index), looks (seed, index, 1)."""


_ALONE = ("add", "drop", "move", "count")
"""Kinds whose objects look like no other object, if there are several changes."""


class UnplaceableScene(Exception):
    """No scene that meets the settings was found for an index."""


class _Objects(NamedTuple):
    before: tuple[SceneObject, ...]
    after: tuple[SceneObject, ...]
    differences: list[DifferenceRecord]


def draw_scene(config: RenderConfig, index: int) -> tuple[Scene, np.random.Generator]:
    """Scene ``index`` of ``config.seed``, and the generator to draw its captions from.

    Raises:
        UnplaceableScene: no drawn scene met the settings.
    """
    rng, look_rng = np.random.default_rng((config.seed, index)), np.random.default_rng((config.seed, index, 1))
    several = config.several
    if several is None:
        kinds = [str(config.change_types[index % len(config.change_types)])]
    else:
        kinds = kinds_of_changes(several, config.seed, index)
    for attempt in range(MAX_ATTEMPTS):
        if several is not None and kinds and attempt and attempt % PATIENCE == 0:
            kinds[int(rng.integers(len(kinds)))] = str(rng.choice(several.kinds))
        base, look = draw_base(config, look_rng), draw_look(config, look_rng)
        exposures = draw_exposures(config, len(IMAGES) if several is None else 2, look_rng)
        objects = _single_change(config, kinds[0], rng) if several is None else _changes(config, several, kinds, rng)
        if objects is None:
            continue
        first = draw_view(rng, DEFAULT_JITTER, base)
        second = draw_view(rng, jitter := JITTERS[config.jitter], first)
        if several is None:
            views: tuple[View, ...] = (first, second, draw_view(rng, jitter, first))
        else:
            camera = second if rng.random() < several.camera_share else first
            lamps = second if rng.random() < several.lamp_share else first
            views = (first, View(camera.origin, camera.target, lamps.lamps, first.zoom))
        ids = _seen(config, objects, views)
        if ids is not None:
            scene = Scene(*objects, views, look, exposures, ids)
            if _is_describable(config, scene, index):
                return scene, rng
    fewer, amount = ("max_objects", "") if several is None else ("several.max_changes", f"{len(kinds)} changes among ")
    raise UnplaceableScene(
        f"{MAX_ATTEMPTS} scenes with {amount}{config.min_objects} to {config.max_objects} objects were drawn and none "
        f"fits; lower {fewer}, min_gap or min_visible_pixels, or raise extent"
    )


def _seen(config: RenderConfig, objects: _Objects, views: tuple[View, ...]) -> tuple[np.ndarray, ...] | None:
    """The object at each pixel of each image (int16, -1 for none); None if one shows too little."""
    ids = []
    for image, view in enumerate(views):
        things = objects.after if image == 1 else objects.before
        seen = cast(things, view, config.width, config.height)
        counts = np.bincount(seen.ravel() + 1, minlength=len(things) + 1)[1:]
        if counts.min() < config.min_visible_pixels:
            return None
        for difference in objects.differences if config.several is not None else ():
            for index in difference[("before", "after")[image]]:
                whole = cast((things[index],), view, config.width, config.height) == 0
                edge = whole[0].any() or whole[-1].any() or whole[:, 0].any() or whole[:, -1].any()
                if edge or counts[index] < CLEAR_SHARE.get(difference["kind"], CLEAR) * np.count_nonzero(whole):
                    return None
        ids.append(seen)
    return tuple(ids)


def _is_describable(config: RenderConfig, scene: Scene, index: int) -> bool:
    """Whether the change in every pair of the scene, or each of several as ``meta`` has it, has a description."""
    if config.several is None:
        return all(describable(scene.pair(order)) for order in pairs_of(config, index).values())
    meta, views = scene.record(), [View.of_record(view.record()) for view in scene.views]
    options = (find_referring_options(d, meta["before"], meta["after"], views) for d in differences_of(meta) or ())
    return all(option.describable for option in options)


def split_of(config: RenderConfig, index: int) -> str:
    """The split of a scene. Shares are kept for every number of scenes and within each change type, with ``several``
    within each number of changes, with ``satellite`` within each kind of works if half of the pairs are changed."""
    cases = len(config.change_types) if config.several is None else config.several.num_counts
    if config.satellite is not None:
        cases = 2 * len(config.satellite.works)
    block, position = divmod(index, cases)
    golden = 0.6180339887498949
    # Multiples of the golden ratio fill [0, 1) evenly, however many there are.
    u = (block * golden + position / cases) % 1.0
    if u < config.test_share:
        return "test"
    return "val" if u < config.test_share + config.val_share else "train"


def pairs_of(config: RenderConfig, index: int) -> dict[str, Order]:
    """The pairs that scene ``index`` gives: end of the pair id -> order; one without an end with ``several``."""
    if config.several is not None:
        return {"": CHANGED}
    return ORDERED_PAIRS if config.ordered_pairs and split_of(config, index) == "train" else PAIRS


def rows_of_scenes(batch: Batch, pairs: Callable[[int], Iterable[ChangePair]], name: Callable[[int], str]) -> Batch:
    """The columns of the pairs of the scenes in the column ``index``.

    Args:
        pairs: the pairs of a scene; a scene that it cannot place becomes one row with the error.
        name: id of such a row.
    """
    batch = with_errors(batch)
    rows: list[dict[str, Any]] = []
    for i in range(len(batch["error"])):
        index, error = int(batch["index"][i]), batch["error"][i]
        if error is None:
            try:
                rows += [{**pair.to_row(), "error": None} for pair in pairs(index)]
                continue
            except UnplaceableScene as exc:
                error = f"unplaceable scene: {exc}"
        rows.append({"pair_id": name(index), "error": error})
    return {name: [row.get(name) for row in rows] for name in (*pair_arrow_schema().names, "error")}


# --------------------------------------------------------------------------------------------------------- the changes


def _single_change(config: RenderConfig, kind: str, rng: np.random.Generator) -> _Objects | None:
    """Objects in their positions, of which one is changed; None if there is no room."""

    def placed(thing: SceneObject, others: Iterable[SceneObject], away_from: SceneObject | None = None) -> SceneObject:
        taken = [(other.x, other.y, other.radius) for other in others]
        avoid = None if away_from is None else (away_from.x, away_from.y)
        x, y = _free_position(config, rng, thing.radius, taken, avoid)
        return replace(thing, x=x, y=y)

    try:
        before: list[SceneObject] = []
        for _ in range(int(rng.integers(config.min_objects, config.max_objects + 1))):
            before.append(placed(_random_object(config, rng), before))
        if kind == "add":
            after = [*before, placed(_random_object(config, rng), before)]
            return _Objects(tuple(before), tuple(after), [{"kind": kind, "before": [], "after": [len(before)]}])
        at = int(rng.integers(len(before)))
        rest = before[:at] + before[at + 1 :]
        if kind == "drop":
            return _Objects(tuple(before), tuple(rest), [{"kind": kind, "before": [at], "after": []}])
        old = before[at]
        new = placed(old, rest, old) if kind == "move" else _changed(config, kind, old, rng)
    except _NoRoom:
        return None
    after = [*before[:at], new, *before[at + 1 :]]
    return _Objects(tuple(before), tuple(after), [{"kind": kind, "before": [at], "after": [at]}])


class _NoRoom(Exception):
    pass


@dataclass(frozen=True)
class _Change:
    """A change before its objects have positions: the states of each object, None where it is not there."""

    kind: str
    states: tuple[tuple[SceneObject | None, SceneObject | None], ...]

    @property
    def looks(self) -> set[tuple[str, ...]]:
        return {attributes_of(thing) for states in self.states for thing in states if thing is not None}


def _changes(
    config: RenderConfig, several: SeveralConfig, kinds: list[str], rng: np.random.Generator
) -> _Objects | None:
    """Objects that changes of these kinds suit; None if they cannot be told apart or have no room."""
    changes = [_change(config, several, kind, rng) for kind in kinds]
    if len({look for change in changes for look in change.looks}) < sum(len(change.looks) for change in changes):
        return None
    count = int(rng.integers(config.min_objects, config.max_objects + 1))
    needed = sum(state[0] is not None for change in changes for state in change.states)
    if needed >= config.max_objects:
        return None
    alone = {look for change in changes for look in change.looks if change.kind in _ALONE}
    for _ in range(max(count - needed, 1)):
        thing = _letter(several, _random_object(config, rng), rng)
        if attributes_of(thing) in alone:
            return None
        changes.append(_Change("", ((thing, thing),)))
    try:
        return _listed(_placed(config, changes, rng), rng)
    except _NoRoom:
        return None


def kinds_of_changes(several: SeveralConfig, seed: int, index: int) -> list[str]:
    """The kinds of change that scene ``index`` is to have, in the order in which they are drawn."""
    block, position = divmod(index, several.num_counts)
    counts = [several.min_changes + number for number in range(several.num_counts)]
    start = block * sum(counts) + sum(counts[:position])
    kinds = []
    for slot in range(start, start + counts[position]):
        shuffle, at = divmod(slot, len(several.kinds))
        order = np.random.default_rng((seed, shuffle, 0, _KINDS_STREAM)).permutation(len(several.kinds))
        kinds.append(str(several.kinds[order[at]]))
    return kinds


def attributes_of(thing: SceneObject) -> tuple[str, ...]:
    """All attributes of an object."""
    return tuple(str(getattr(thing, name)) for name in ATTRIBUTES)


def _random_object(
    config: RenderConfig, rng: np.random.Generator, shape: str | None = None, size: str | None = None
) -> SceneObject:
    """A random object at the origin."""
    size = size or ("large", "small")[rng.integers(2)]
    vary = config.variation.object_size
    return SceneObject(
        shape=shape or str(rng.choice(config.shapes)),
        color=str(rng.choice(config.colors)),
        material=str(rng.choice(config.materials)),
        size=size,
        radius=_radius_of(config, size) * (float(1 + vary * rng.uniform(-1, 1)) if vary else 1.0),
        x=0.0,
        y=0.0,
        turn=float(rng.uniform(0, 2 * np.pi)),
    )


def _radius_of(config: RenderConfig, size: str) -> float:
    return config.large_radius if size == "large" else config.small_radius


def _letter(several: SeveralConfig, thing: SceneObject, rng: np.random.Generator, sure: bool = False) -> SceneObject:
    """The object, perhaps with a letter on it."""
    if "text" not in several.kinds or (thing.shape, thing.size) != ("cube", "large"):
        return thing
    return replace(thing, text=str(rng.choice(list(LETTERS)))) if sure or rng.random() < several.letter_share else thing


def _change(config: RenderConfig, several: SeveralConfig, kind: str, rng: np.random.Generator) -> _Change:
    """A change of a kind, its objects at the origin."""
    if kind == "count":
        fewer, more = sorted(int(n) for n in rng.permutation(several.max_group)[:2] + 1)
        first = _random_object(config, rng)
        group = [replace(first, turn=float(rng.uniform(0, 2 * np.pi))) for _ in range(more)]
        grows = rng.random() < 0.5
        rest = [(None, thing) if grows else (thing, None) for thing in group[fewer:]]
        return _Change(kind, (*((thing, thing) for thing in group[:fewer]), *rest))
    if kind in ("orientation", "text"):
        old = _letter(several, _random_object(config, rng, "cube", "large"), rng, sure=kind == "text")
    elif kind in ("replace", "size"):
        old = _random_object(config, rng)
    else:
        old = _letter(several, _random_object(config, rng), rng)
    if kind == "add":
        return _Change(kind, ((None, old),))
    if kind == "drop":
        return _Change(kind, ((old, None),))
    return _Change(kind, ((old, old if kind == "move" else _changed(config, kind, old, rng)),))


def _changed(config: RenderConfig, kind: str, old: SceneObject, rng: np.random.Generator) -> SceneObject:
    """An object after a change of this kind at its place."""

    if kind == "orientation":
        return replace(old, turn=old.turn + float(np.radians(rng.uniform(*TURNS)) * rng.choice((-1, 1))))
    name, values = {
        "replace": ("shape", config.shapes),
        "size": ("size", ("large", "small")),
        "color": ("color", config.colors),
        "material": ("material", config.materials),
        "text": ("text", tuple(LETTERS)),
    }[kind]
    value = str(rng.choice([each for each in values if each != getattr(old, name)]))
    radius = _radius_of(config, value) * (old.radius / _radius_of(config, old.size)) if kind == "size" else old.radius
    return replace(old, **{name: value, "radius": radius})  # type: ignore[arg-type]


def _free_position(
    config: RenderConfig,
    rng: np.random.Generator,
    radius: float,
    taken: Iterable[tuple[float, float, float]],
    away_from: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """A position that keeps ``min_gap`` from what is taken (x, y, radius), and ``min_move`` from a point.

    Raises:
        _NoRoom: 50 attempts failed.
    """
    for _ in range(50):
        x, y = (float(v) for v in rng.uniform(-config.extent, config.extent, 2))
        if away_from is not None and np.hypot(x - away_from[0], y - away_from[1]) < config.min_move:
            continue
        if all(np.hypot(x - other[0], y - other[1]) >= radius + other[2] + config.min_gap for other in taken):
            return x, y
    raise _NoRoom


def _placed(config: RenderConfig, changes: list[_Change], rng: np.random.Generator) -> list[_Change]:
    """The changes with a position for every object, clear of all others before and after."""
    taken: list[tuple[float, float, float]] = []
    placed = []
    for change in changes:
        states = []
        for old, new in change.states:
            radius = max(thing.radius for thing in (old, new) if thing is not None)
            there = _free_position(config, rng, radius, taken)
            moved = _free_position(config, rng, radius, taken, there) if change.kind == "move" else there
            taken += [(*at, radius) for at in {there, moved}]
            states.append(
                (
                    None if old is None else replace(old, x=there[0], y=there[1]),
                    None if new is None else replace(new, x=moved[0], y=moved[1]),
                )
            )
        placed.append(_Change(change.kind, tuple(states)))
    return placed


def _listed(changes: list[_Change], rng: np.random.Generator) -> _Objects:
    """The objects before and after in one random order, and the differences with their indices in it."""
    every = [(number, states) for number, change in enumerate(changes) for states in change.states]
    lists: tuple[list[SceneObject], list[SceneObject]] = ([], [])
    indices: dict[int, tuple[list[int], list[int]]] = {}
    for at in rng.permutation(len(every)):
        number, states = every[at]
        for side, thing in enumerate(states):
            if thing is not None:
                indices.setdefault(number, ([], []))[side].append(len(lists[side]))
                lists[side].append(thing)
    differences: list[DifferenceRecord] = [
        {"kind": change.kind, "before": indices[number][0], "after": indices[number][1]}
        for number, change in enumerate(changes)
        if change.kind
    ]
    return _Objects(tuple(lists[0]), tuple(lists[1]), differences)
