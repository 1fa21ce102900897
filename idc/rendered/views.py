"""Cameras and lamps: their draws, and which object shows at each pixel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from idc.rendered.config import Jitter, RenderConfig
from idc.rendered.look import stops
from idc.rendered.scene import Lamp, Point, SceneObject, View

BASE_AZIMUTH = -42.0
BASE_ELEVATION = 27.0
"""Direction of the base camera from the point it looks at, degrees."""

BASE_TARGET = (0.0, 0.0, 0.3)

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
