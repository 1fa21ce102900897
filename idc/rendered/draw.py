"""Draws scenes at random: objects, change, views, and which object each pixel shows.

A scene is drawn from two ``numpy.random.Generator`` seeded by (seed, index), so it depends on nothing else: one draws
objects, change and jitter, the other what ``variation`` sets, so that the scenes of a seed are the same whatever varies
of their look (as long as no draw is rejected).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from idc.rendered.captions import describable
from idc.rendered.config import JITTERS, ChangeType, Jitter, RenderConfig
from idc.rendered.look import draw_exposures, draw_look, stops
from idc.rendered.scene import IMAGES, ORDERED_PAIRS, PAIRS, Change, Lamp, Order, Point, Scene, SceneObject, View

BASE_AZIMUTH = -42.0
BASE_ELEVATION = 27.0
"""Direction of the base camera from the point it looks at, degrees."""

BASE_TARGET = (0.0, 0.0, 0.3)

MAX_ATTEMPTS = 500
"""Most scenes drawn for an index before it is given up."""

DEFAULT_JITTER = Jitter(azimuth=6.0, elevation=2.0, distance=0.02, target=0.1, lamp=0.7, brightness=0.1)
"""Difference of the default images from scene to scene (CLEVR jitters every camera and lamp)."""

BASE_LAMPS: tuple[Lamp, ...] = (
    Lamp((6.5, -2.0, 7.5), 1.0, 26.0),
    Lamp((-5.0, -6.0, 5.0), 1.6, 3.2),
    Lamp((-2.0, 6.5, 7.0), 1.4, 6.0),
)
"""Key, fill and back lamp."""


@dataclass(frozen=True)
class EmptyScene:
    """Centre of the draws of the default image's view: the camera's height angle (degrees), distance, zoom; lamps."""

    elevation: float
    distance: float
    zoom: float
    lamps: tuple[Lamp, ...]


class UnplaceableScene(Exception):
    """No scene that meets the settings was found for an index."""


def draw_scene(config: RenderConfig, index: int) -> tuple[Scene, np.random.Generator]:
    """Scene ``index`` of ``config.seed``, and the generator to draw its captions from.

    Raises:
        UnplaceableScene: no drawn scene met the settings.
    """
    rng, look_rng = np.random.default_rng((config.seed, index)), np.random.default_rng((config.seed, index, 1))
    kind = config.change_types[index % len(config.change_types)]
    orders = pairs_of(config, index).values()
    for _ in range(MAX_ATTEMPTS):
        scene = _draw(config, kind, rng, look_rng)
        if scene is not None and all(pair is None or describable(pair) for pair in map(scene.changed_pair, orders)):
            return scene, rng
    raise UnplaceableScene(
        f"{MAX_ATTEMPTS} scenes with {config.min_objects} to {config.max_objects} objects were drawn and none "
        f"fits; lower max_objects, min_gap or min_visible_pixels, or raise extent"
    )


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
    """The pairs that scene ``index`` gives: end of the pair id -> order."""
    return ORDERED_PAIRS if config.ordered_pairs and split_of(config, index) == "train" else PAIRS


def _draw(
    config: RenderConfig, kind: ChangeType, rng: np.random.Generator, look_rng: np.random.Generator
) -> Scene | None:
    base, look = draw_base(config, look_rng), draw_look(config, look_rng)
    exposures = draw_exposures(config, len(IMAGES), look_rng)
    before = _placed_things(config, rng, int(rng.integers(config.min_objects, config.max_objects + 1)))
    if before is None:
        return None
    changed = _change(config, kind, before, rng)
    if changed is None:
        return None
    change, after = changed
    first = draw_view(rng, DEFAULT_JITTER, base)
    jitter = JITTERS[config.jitter]
    views = (first, draw_view(rng, jitter, first), draw_view(rng, jitter, first))
    ids = []
    for view, things in zip(views, (before, after, before), strict=True):
        image = cast(things, view, config.width, config.height)
        counts = np.bincount(image.ravel() + 1, minlength=len(things) + 1)[1:]
        if counts.min() < config.min_visible_pixels:
            return None
        ids.append(image)
    return Scene(before, after, change, views, look, exposures, (ids[0], ids[1], ids[2]))


def draw_base(config: RenderConfig, rng: np.random.Generator) -> EmptyScene:
    """The base of a scene."""
    wide = config.variation
    tilt, away, lens, turn = rng.uniform(-1, 1, 4)
    zoom = float(1 + lens * wide.lens)
    angle, size = math.radians(turn * wide.lamp_turn), stops(wide.lamp_size, rng)
    lamps = []
    for lamp in BASE_LAMPS:
        x, y, z = lamp.position
        position = (
            x * math.cos(angle) - y * math.sin(angle),
            x * math.sin(angle) + y * math.cos(angle),
            float(z * (1 + wide.lamp_height * rng.uniform(-1, 1))),
        )
        radiance = lamp.radiance * stops(wide.lamp_power, rng) / size**2
        lamps.append(Lamp(position, lamp.half_edge * size, radiance))
    return EmptyScene(
        elevation=BASE_ELEVATION + float(tilt) * wide.elevation,
        distance=config.camera_distance * zoom * (1 + float(away) * wide.distance),
        zoom=zoom,
        lamps=tuple(lamps),
    )


def _placed_things(config: RenderConfig, rng: np.random.Generator, count: int) -> tuple[SceneObject, ...] | None:
    things: list[SceneObject] = []
    for _ in range(count):
        thing = _free_thing(config, things, rng)
        if thing is None:
            return None
        things.append(thing)
    return tuple(things)


def _free_thing(config: RenderConfig, others: list[SceneObject], rng: np.random.Generator) -> SceneObject | None:
    """A random object that keeps its distance from the others, or ``None`` after 50 failed attempts."""
    return _elsewhere(config, random_object(config, rng), others, rng, 0.0)


def random_object(
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
        radius=radius_of(config, size) * (float(1 + vary * rng.uniform(-1, 1)) if vary else 1.0),
        x=0.0,
        y=0.0,
        turn=float(rng.uniform(0, 2 * np.pi)),
    )


def radius_of(config: RenderConfig, size: str) -> float:
    return config.large_radius if size == "large" else config.small_radius


def _elsewhere(
    config: RenderConfig, thing: SceneObject, others: list[SceneObject], rng: np.random.Generator, min_move: float
) -> SceneObject | None:
    for _ in range(50):
        x, y = (float(v) for v in rng.uniform(-config.extent, config.extent, 2))
        if np.hypot(x - thing.x, y - thing.y) < min_move:
            continue
        gaps = (np.hypot(x - o.x, y - o.y) - thing.footprint - o.footprint for o in others)
        if all(gap >= config.min_gap for gap in gaps):
            return replace(thing, x=x, y=y)
    return None


def _change(
    config: RenderConfig, kind: ChangeType, before: tuple[SceneObject, ...], rng: np.random.Generator
) -> tuple[Change, tuple[SceneObject, ...]] | None:
    if kind == "add":
        new = _free_thing(config, list(before), rng)
        return None if new is None else (Change(kind, None, new), (*before, new))
    at = int(rng.integers(len(before)))
    old = before[at]
    rest = before[:at] + before[at + 1 :]
    if kind == "drop":
        return Change(kind, old, None), rest
    new = old
    if kind == "color":
        new = replace(old, color=str(rng.choice([c for c in config.colors if c != old.color])))
    elif kind == "material":
        new = replace(old, material=str(rng.choice([m for m in config.materials if m != old.material])))
    else:
        moved = _elsewhere(config, old, list(rest), rng, config.min_move)
        if moved is None:
            return None
        new = moved
    return Change(kind, old, new), (*before[:at], new, *before[at + 1 :])


def draw_view(rng: np.random.Generator, jitter: Jitter, base: EmptyScene | View) -> View:
    """A view near ``base``."""
    lamps = base.lamps
    if isinstance(base, EmptyScene):
        azimuth, elevation, distance, target = BASE_AZIMUTH, base.elevation, base.distance, BASE_TARGET
    else:
        target = base.target
        x, y, z = _shifted(base.origin, base.target, -1.0)
        distance = math.hypot(x, y, z)
        azimuth, elevation = math.degrees(math.atan2(y, x)), math.degrees(math.asin(z / distance))
    turn, tilt, zoom, dx, dy = rng.uniform(-1, 1, 5)
    azimuth = math.radians(azimuth + turn * jitter.azimuth)
    elevation = math.radians(elevation + tilt * jitter.elevation)
    distance *= 1 + zoom * jitter.distance
    target = _shifted(target, (dx, dy, 0.0), jitter.target)
    level = distance * math.cos(elevation)
    arm = (level * math.cos(azimuth), level * math.sin(azimuth), distance * math.sin(elevation))
    lamps = tuple(
        Lamp(
            position=_shifted(lamp.position, (x, y, z), jitter.lamp),
            half_edge=lamp.half_edge,
            radiance=float(lamp.radiance * (1 + power * jitter.brightness)),
        )
        for lamp, (x, y, z, power) in zip(lamps, rng.uniform(-1, 1, (len(lamps), 4)), strict=True)
    )
    return View(_shifted(target, arm, 1.0), target, lamps, base.zoom)


def _shifted(point: Point, offset: Point, scale: float) -> Point:
    x, y, z = (float(p + o * scale) for p, o in zip(point, offset, strict=True))
    return x, y, z


def cast(things: tuple[SceneObject, ...], view: View, width: int, height: int) -> np.ndarray:
    """The object at each pixel's centre: int16 (H, W), -1 for none.

    The rays are the renderer's, the shapes analytic; each object is intersected only in the window that its bounding
    sphere covers.
    """
    right, up, forward = view.axes
    tan_x, tan_y = view.tangents(width, height)
    px = ((np.arange(width) + 0.5) / width * 2 - 1) * tan_x
    py = (1 - (np.arange(height) + 0.5) / height * 2) * tan_y
    origin = np.array(view.origin)
    ids = np.full((height, width), -1, np.int16)
    depth = np.full((height, width), np.inf)
    for i, thing in enumerate(things):
        centre = np.array([thing.x, thing.y, thing.half_height]) - origin
        ahead = float(centre @ forward)
        bound = thing.radius * np.sqrt(2.0)
        if ahead <= bound:
            continue
        reach = bound / (ahead - bound) * 1.5
        cx, cy = float(centre @ right) / ahead, float(centre @ up) / ahead
        x0, x1 = np.searchsorted(px, (cx - reach, cx + reach))
        y0, y1 = np.searchsorted(-py, (-cy - reach, -cy + reach))
        if x0 >= x1 or y0 >= y1:
            continue
        rays = forward + px[x0:x1, None] * right + py[y0:y1, None, None] * up
        distance = _hit(thing, -centre, rays)
        window = np.s_[y0:y1, x0:x1]
        nearer = distance < depth[window]
        depth[window][nearer] = distance[nearer]
        ids[window][nearer] = i
    return ids


def _hit(thing: SceneObject, origin: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """Ray parameter of the first hit, inf where missed. ``origin`` (3,) is relative to the object's centre."""
    # A ray parallel to a face divides by 0; the comparisons are right with the infinities that result.
    with np.errstate(divide="ignore", invalid="ignore"):
        if thing.shape == "sphere":
            near, _ = _roots((rays**2).sum(-1), rays @ origin, origin @ origin - thing.radius**2)
            return np.where(near > 0, near, np.inf)
        if thing.shape == "cube":
            c, s = np.cos(thing.turn), np.sin(thing.turn)
            to_local = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1.0]])
            rays, origin = rays @ to_local.T, to_local @ origin
            low, high = (-thing.half_height - origin) / rays, (thing.half_height - origin) / rays
            near, far = np.minimum(low, high).max(-1), np.maximum(low, high).min(-1)
        else:
            flat = rays[..., :2]
            side = _roots((flat**2).sum(-1), flat @ origin[:2], origin[:2] @ origin[:2] - thing.radius**2)
            low, high = (-thing.half_height - origin[2]) / rays[..., 2], (thing.half_height - origin[2]) / rays[..., 2]
            near = np.maximum(side[0], np.minimum(low, high))
            far = np.minimum(side[1], np.maximum(low, high))
        return np.where((near < far) & (near > 0), near, np.inf)


def _roots(a: np.ndarray, half_b: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """Both roots of a t^2 + 2 half_b t + c; NaN where there is none."""
    root = np.sqrt(half_b**2 - a * c)
    return (-half_b - root) / a, (-half_b + root) / a
