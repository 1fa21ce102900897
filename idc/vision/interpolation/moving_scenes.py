"""Rendered scenes in motion: some objects and the camera move at constant speed along lines; three frames are rendered,
at the start, half way and at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from idc.data.rendered.config import MotionConfig
from idc.data.rendered.draw import draw_scene
from idc.data.rendered.render import RenderScenes
from idc.data.rendered.scene import Point, Thing, View

TIMES = (0.0, 0.5, 1.0)
"""Times of the first, the middle and the last frame."""

_MOVING_SHARE = 0.5
_LARGEST_TURN = 0.3
_ATTEMPTS = 30

Shot = tuple[tuple[Thing, ...], View]


def draw_motion(config: MotionConfig, index: int) -> tuple[Shot, Shot, Shot]:
    """Draw the objects' places and the camera at the three times, for scene ``index`` of ``config.seed``.

    About half of the objects move, at least one if any has room; at the three times no two are nearer than half of
    ``min_gap``. The camera goes from the scene's default view to that of its after image (``config.jitter``); the
    lamps stay.

    Raises:
        UnplaceableScene: if no scene meets the settings.
    """
    scene, rng = draw_scene(config, index)
    ends = list(scene.before)
    moving = rng.random(len(ends)) < _MOVING_SHARE
    moving[int(rng.integers(len(ends)))] = True
    for n in np.flatnonzero(moving):
        ends[n] = _moved(config, scene.before, ends, int(n), rng)
    start, end = scene.views[:2]
    shots = [
        (
            tuple(_between(a, b, time) for a, b in zip(scene.before, ends, strict=True)),
            replace(start, origin=_mix(start.origin, end.origin, time), target=_mix(start.target, end.target, time)),
        )
        for time in TIMES
    ]
    return shots[0], shots[1], shots[2]


def _moved(
    config: MotionConfig, starts: tuple[Thing, ...], ends: list[Thing], at: int, rng: np.random.Generator
) -> Thing:
    """The object ``at`` at its end position, or unmoved if it has no room."""
    thing = starts[at]
    for _ in range(_ATTEMPTS):
        angle, way, turn = rng.uniform(0, 2 * np.pi), config.max_move * rng.uniform(0.2, 1), rng.uniform(-1, 1)
        end = replace(
            thing,
            x=float(thing.x + way * np.cos(angle)),
            y=float(thing.y + way * np.sin(angle)),
            turn=float(thing.turn + turn * _LARGEST_TURN),
        )
        if max(abs(end.x), abs(end.y)) > config.extent:
            continue
        gaps = [
            np.hypot(mine.x - other.x, mine.y - other.y) - mine.footprint - other.footprint
            for time in TIMES[1:]
            for n in range(len(starts))
            if n != at
            for mine, other in [(_between(thing, end, time), _between(starts[n], ends[n], time))]
        ]
        if min(gaps, default=np.inf) >= config.min_gap / 2:
            return end
    return thing


def _between(start: Thing, end: Thing, time: float) -> Thing:
    x, y, turn = (a + time * (b - a) for a, b in ((start.x, end.x), (start.y, end.y), (start.turn, end.turn)))
    return replace(start, x=x, y=y, turn=turn)


def _mix(start: Point, end: Point, time: float) -> Point:
    x, y, z = (a + time * (b - a) for a, b in zip(start, end, strict=True))
    return x, y, z


class MotionRenderer:
    """Renders the scenes of :func:`draw_motion`; loads Mitsuba once."""

    def __init__(self, config: MotionConfig) -> None:
        self.config = config
        self.scenes = RenderScenes(config)

    def frames(self, index: int) -> list[np.ndarray]:
        """uint8 (H, W, 3), sRGB: first, middle, last; each with its own light paths, as a camera has its own noise."""
        shots = draw_motion(self.config, index)
        seeds = np.random.SeedSequence((self.config.seed, index, 1)).generate_state(len(shots))
        return [self.scenes.render(things, view, int(seed)) for (things, view), seed in zip(shots, seeds, strict=True)]
