"""Scenes with none to several changes between two images: objects, changes and views, drawn at random (numpy only).

Which kinds of change a scene has is drawn for all scenes together: the kinds are shuffled again and again, and each
scene takes the next ones of this row, so that all kinds are equally frequent. Objects are drawn to suit their change,
so that nearly every scene can have its kinds; if after many draws a scene cannot, one of its kinds is replaced by
another one at random.

What holds for every scene:

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from idc.rendered.captions import ATTRIBUTES
from idc.rendered.config import JITTERS, RenderConfig, SeveralConfig
from idc.rendered.differences import DIFFERENCES, OMNIDIFF_TYPES, differences_of
from idc.rendered.draw import (
    DEFAULT_JITTER,
    MAX_ATTEMPTS,
    UnplaceableScene,
    cast,
    draw_base,
    draw_view,
    radius_of,
    random_object,
)
from idc.rendered.look import Exposure, Look, draw_exposures, draw_look
from idc.rendered.referring import find_referring_options
from idc.rendered.scene import REVERSED, SceneObject, View, overlap, pair_record
from idc.rendered.sentences import several_captions

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


@dataclass(frozen=True)
class SeveralScene:
    """The content of the two images of one index.

    Attributes:
        before, after: the objects of the two images; one that stays as it is is equal in both.
        differences: what changed, as :mod:`idc.rendered.differences` has it in ``meta``.
        views: of the two images.
        look: what the images share besides their objects.
        exposures: of the two images.
        ids: for each image, int16 (H, W): -1 background, else place in the image's list of objects.
    """

    before: tuple[SceneObject, ...]
    after: tuple[SceneObject, ...]
    differences: list[dict[str, Any]]
    views: tuple[View, View]
    look: Look
    exposures: tuple[Exposure, ...]
    ids: tuple[np.ndarray, np.ndarray]

    @property
    def change_type(self) -> str | None:
        """The kind of the only difference, ``none`` without one, None if there are several."""
        if len(self.differences) > 1:
            return None
        return str(self.differences[0]["kind"]) if self.differences else "none"

    def changed_pixels(self, image: int) -> np.ndarray:
        """bool (H, W): visible pixels of what is not the same in the other image (0 before, 1 after)."""
        things, other = (self.before, self.after)[:: 1 - 2 * image]
        return np.isin(self.ids[image], [index for index, thing in enumerate(things) if thing not in other])

    def record(self) -> dict[str, Any]:
        """The scene graphs, views, differences and distractors as JSON-able values.

        ``types``: OmniDiff's names of the kinds that have one. ``changeflag``: 1 with a difference, else 0, as several
        have no change type. ``distractors``: ``camera`` and ``lamps``, the way of the camera and the longest way of a
        lamp (scene units), and ``brightness``, the lamps' power after over that before.
        """
        first, second = self.views
        ways = [_distance(a.position, b.position) for a, b in zip(first.lamps, second.lamps, strict=True)]
        power = [sum(lamp.radiance * lamp.half_edge**2 for lamp in view.lamps) for view in self.views]
        return {
            **pair_record(self.before, self.after, self.views),
            **_difference_fields(self.differences),
            "distractors": {
                "camera": round(_distance(first.origin, second.origin), 4),
                "lamps": round(max(ways), 4),
                "brightness": round(power[1] / power[0], 4),
            },
            "viewpoint_iou": round(overlap(self.before, self.after, *self.ids), 4),
        }


@dataclass(frozen=True)
class _Change:
    """A change before its objects have positions: the states of each object, None where it is not there."""

    kind: str
    states: tuple[tuple[SceneObject | None, SceneObject | None], ...]


def draw_several(config: RenderConfig, index: int) -> tuple[SeveralScene, np.random.Generator]:
    """Scene ``index`` of ``config.seed``, and the generator to draw its captions from.

    Raises:
        UnplaceableScene: no drawn scene met the settings.
    """
    several = config.several
    assert several is not None
    rng, look_rng = np.random.default_rng((config.seed, index)), np.random.default_rng((config.seed, index, 1))
    kinds = kinds_of_changes(several, config.seed, index)
    for attempt in range(MAX_ATTEMPTS):
        if kinds and attempt and attempt % PATIENCE == 0:
            kinds[int(rng.integers(len(kinds)))] = str(rng.choice(several.kinds))
        scene = _draw(config, several, kinds, rng, look_rng)
        if scene is not None and _describable(scene):
            return scene, rng
    raise UnplaceableScene(
        f"{MAX_ATTEMPTS} scenes with {len(kinds)} changes among {config.min_objects} to {config.max_objects} objects "
        f"were drawn and none fits; lower several.max_changes, min_gap or min_visible_pixels, or raise extent"
    )


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


def captions_of_differences(meta: Mapping[str, Any], count: int, rng: np.random.Generator) -> list[str]:
    """:func:`several_captions` of a pair with a list of differences in its ``meta``."""
    listed, views = differences_of(meta), [View.of_record(view) for view in meta["views"]]
    assert listed is not None
    return several_captions(listed, meta["before"], meta["after"], views, count, rng)


def reversed_record(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The ``meta`` of a rendered pair, with one change or several, for its images in reverse order."""
    swapped = {**meta, "before": meta["after"], "after": meta["before"], "views": meta["views"][::-1]}
    if DIFFERENCES in meta:
        listed = [
            {"kind": REVERSED.get(record["kind"], record["kind"]), "before": record["after"], "after": record["before"]}
            for record in meta[DIFFERENCES]
        ]
        swapped |= _difference_fields(listed)
        swapped["distractors"] = {**meta["distractors"], "brightness": round(1 / meta["distractors"]["brightness"], 4)}
    return swapped


def _difference_fields(differences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = {difference["kind"] for difference in differences}
    return {
        DIFFERENCES: differences,
        "types": sorted(OMNIDIFF_TYPES[kind] for kind in kinds if kind in OMNIDIFF_TYPES),
        "changeflag": int(bool(differences)),
    }


def _describable(scene: SeveralScene) -> bool:
    """Whether every difference has an unambiguous description, from what the pair's ``meta`` says."""
    meta = scene.record()
    listed, views = differences_of(meta), [View.of_record(view) for view in meta["views"]]
    assert listed is not None
    return all(
        find_referring_options(difference, meta["before"], meta["after"], views).describable for difference in listed
    )


def attributes_of(thing: SceneObject) -> tuple[str, ...]:
    """All attributes of an object."""
    return tuple(str(getattr(thing, name)) for name in ATTRIBUTES)


def _draw(
    config: RenderConfig,
    several: SeveralConfig,
    kinds: list[str],
    rng: np.random.Generator,
    look_rng: np.random.Generator,
) -> SeveralScene | None:
    base, shared = draw_base(config, look_rng), draw_look(config, look_rng)
    exposures = draw_exposures(config, 2, look_rng)
    changes = [_change(config, several, kind, rng) for kind in kinds]
    if not _tell_apart(changes):
        return None
    count = int(rng.integers(config.min_objects, config.max_objects + 1))
    needed = sum(state[0] is not None for change in changes for state in change.states)
    if needed >= config.max_objects:
        return None
    alone = {attributes_of(thing) for change in changes for thing in _things(change) if change.kind in _ALONE}
    staying = []
    for _ in range(max(count - needed, 1)):
        thing = _letter(several, random_object(config, rng), rng)
        if attributes_of(thing) in alone:
            return None
        staying.append(_Change("", ((thing, thing),)))
    changes = _placed(config, [*changes, *staying], rng)
    if not changes:
        return None
    before, after, differences = _listed(changes, rng)
    first = draw_view(rng, DEFAULT_JITTER, base)
    second = draw_view(rng, JITTERS[config.jitter], first)
    camera = second if rng.random() < several.camera_share else first
    lamps = second if rng.random() < several.lamp_share else first
    views = (first, View(camera.origin, camera.target, lamps.lamps, first.zoom))
    ids = []
    for image, (view, things) in enumerate(zip(views, (before, after), strict=True)):
        seen = cast(things, view, config.width, config.height)
        counts = np.bincount(seen.ravel() + 1, minlength=len(things) + 1)[1:]
        if counts.min() < config.min_visible_pixels:
            return None
        for difference in differences:
            for index in difference[("before", "after")[image]]:
                whole = cast((things[index],), view, config.width, config.height) == 0
                edge = whole[0].any() or whole[-1].any() or whole[:, 0].any() or whole[:, -1].any()
                if edge or counts[index] < CLEAR_SHARE.get(difference["kind"], CLEAR) * np.count_nonzero(whole):
                    return None
        ids.append(seen)
    return SeveralScene(before, after, differences, views, shared, exposures, (ids[0], ids[1]))


# --------------------------------------------------------------------------------------------------------- the changes

_ALONE = ("add", "drop", "move", "count")
"""Kinds whose objects look like no other object."""


def _letter(several: SeveralConfig, thing: SceneObject, rng: np.random.Generator, sure: bool = False) -> SceneObject:
    """The object, perhaps with a letter on it."""
    if "text" not in several.kinds or (thing.shape, thing.size) != ("cube", "large"):
        return thing
    return replace(thing, text=str(rng.choice(list(LETTERS)))) if sure or rng.random() < several.letter_share else thing


def _other(values: Iterable[str], but: str, rng: np.random.Generator) -> str:
    return str(rng.choice([value for value in values if value != but]))


def _change(config: RenderConfig, several: SeveralConfig, kind: str, rng: np.random.Generator) -> _Change:
    """A change of a kind, its objects at the origin."""
    if kind == "count":
        fewer, more = sorted(int(n) for n in rng.permutation(several.max_group)[:2] + 1)
        first = random_object(config, rng)
        group = [replace(first, turn=float(rng.uniform(0, 2 * np.pi))) for _ in range(more)]
        grows = rng.random() < 0.5
        rest = [(None, thing) if grows else (thing, None) for thing in group[fewer:]]
        return _Change(kind, (*((thing, thing) for thing in group[:fewer]), *rest))
    if kind in ("orientation", "text"):
        old = _letter(several, random_object(config, rng, "cube", "large"), rng, sure=kind == "text")
    elif kind in ("replace", "size"):
        old = random_object(config, rng)
    else:
        old = _letter(several, random_object(config, rng), rng)
    if kind == "add":
        return _Change(kind, ((None, old),))
    if kind == "drop":
        return _Change(kind, ((old, None),))
    new = old
    if kind == "replace":
        new = replace(old, shape=_other(config.shapes, old.shape, rng))
    elif kind == "size":
        size = _other(("large", "small"), old.size, rng)
        new = replace(old, size=size, radius=radius_of(config, size) * (old.radius / radius_of(config, old.size)))
    elif kind == "color":
        new = replace(old, color=_other(config.colors, old.color, rng))
    elif kind == "material":
        new = replace(old, material=_other(config.materials, old.material, rng))
    elif kind == "orientation":
        new = replace(old, turn=old.turn + float(np.radians(rng.uniform(*TURNS)) * rng.choice((-1, 1))))
    elif kind == "text":
        new = replace(old, text=_other(LETTERS, old.text, rng))
    else:
        assert kind == "move", kind
    return _Change(kind, ((old, new),))


def _things(change: _Change) -> list[SceneObject]:
    return [thing for states in change.states for thing in states if thing is not None]


def _tell_apart(changes: list[_Change]) -> bool:
    looks = [{attributes_of(thing) for thing in _things(change)} for change in changes]
    return len(set().union(*looks)) == sum(map(len, looks))


# ------------------------------------------------------------------------------------------------------- the positions


def _placed(config: RenderConfig, changes: list[_Change], rng: np.random.Generator) -> list[_Change]:
    """The changes with a position for every object, clear of all others before and after; empty if there is no room."""
    taken: list[tuple[float, float, float]] = []

    def free_position(radius: float, away_from: tuple[float, float] | None = None) -> tuple[float, float] | None:
        for _ in range(50):
            x, y = (float(v) for v in rng.uniform(-config.extent, config.extent, 2))
            if away_from is not None and np.hypot(x - away_from[0], y - away_from[1]) < config.min_move:
                continue
            if all(np.hypot(x - other[0], y - other[1]) >= radius + other[2] + config.min_gap for other in taken):
                return x, y
        return None

    placed = []
    for change in changes:
        states = []
        for old, new in change.states:
            radius = max(thing.footprint for thing in (old, new) if thing is not None)
            there = free_position(radius)
            moved = free_position(radius, there) if change.kind == "move" and there is not None else there
            if there is None or moved is None:
                return []
            taken += [(*at, radius) for at in {there, moved}]
            states.append(
                (
                    None if old is None else replace(old, x=there[0], y=there[1]),
                    None if new is None else replace(new, x=moved[0], y=moved[1]),
                )
            )
        placed.append(_Change(change.kind, tuple(states)))
    return placed


def _listed(
    changes: list[_Change], rng: np.random.Generator
) -> tuple[tuple[SceneObject, ...], tuple[SceneObject, ...], list[dict[str, Any]]]:
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
    differences = [
        {"kind": change.kind, "before": indices[number][0], "after": indices[number][1]}
        for number, change in enumerate(changes)
        if change.kind
    ]
    return tuple(lists[0]), tuple(lists[1]), differences


def _distance(a: Iterable[float], b: Iterable[float]) -> float:
    return float(np.linalg.norm(np.subtract(tuple(a), tuple(b))))
