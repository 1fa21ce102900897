"""Reflectance and heights of a site at a date, and its light: shadows and slopes follow from the heights and the sun.

Reflectance is linear RGB as it looks on level ground in the sun; heights are metres. Everything is drawn finer than
the image (``supersampling``) and on a wider canvas, so that what is outside casts its shadow into it. Noise belongs to
the place and not to the date: what does not change has the same pixels at both.
:func:`photograph` makes pixels of the light: registration, haze, optics, tone, noise and compression.
"""

from __future__ import annotations

import math

import cv2
import numpy as np

from idc.rendered.look import to_srgb
from idc.rendered.satellite.canvas import MARGIN, Canvas, GroundNoise, Masked, Window, cover, roof_stains, srgb
from idc.rendered.satellite.site import (
    ALWAYS,
    Building,
    Car,
    Conditions,
    Patch,
    Road,
    RoofBlock,
    Site,
    SiteTree,
    Strip,
)

CURBS = 0.9
"""Width of a road's two curbs together."""

_SUN_COLOR = np.array((1.04, 1.0, 0.94), np.float32)
_SKY_COLOR = np.array((0.88, 0.98, 1.18), np.float32)
_WALL_SLOPE = 2.0
"""Steeper is a wall: it has no shading of its own."""


class Painting:
    """Reflectance and height of a site at a date."""

    def __init__(self, canvas: Canvas, noise: GroundNoise, conditions: Conditions):
        self.canvas, self.noise, self.conditions = canvas, noise, conditions
        self.color = np.zeros((canvas.height, canvas.width, 3), np.float32)
        self.tall = np.zeros((canvas.height, canvas.width), np.float32)
        self.leafy = np.zeros((canvas.height, canvas.width), np.float32)

    def lay(self, masked: Masked | None, color: np.ndarray | str, shade: float = 0.0, turn: float = 0.0) -> None:
        """Replace the reflectance where the mask (0 to 1) is, by a colour or a cover."""
        if masked is None:
            return
        window, mask = masked
        if isinstance(color, str):
            color = cover(color, self.noise, window, self.conditions, shade, turn, self.canvas.scale)
        share = mask.astype(np.float32)[..., None]
        self.color[window] += (color - self.color[window]) * share

    def rough(self, masked: Masked, metres: float) -> Masked:
        """A mask whose edge wanders."""
        window, mask = masked
        soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), metres * self.canvas.scale)
        edge = soft + 0.12 * self.noise.middle[window] + 0.05 * self.noise.fine[window]
        return window, np.clip((edge - 0.5) * 3 + 0.5, 0, 1) * (soft > 0.02)

    # ---------------------------------------------------------------------------------------------- the layers

    def patch(self, patch: Patch) -> None:
        masked = self.canvas.polygon(patch.polygon, 2.5 * patch.rough)
        if masked is not None:
            masked = self.rough(masked, patch.rough) if patch.rough else masked
            self.lay(masked, patch.cover, patch.shade, patch.turn)

    def roads(self, roads: list[Road]) -> None:
        """All roads: dirt ones, then walks, curbs and pavements; roads of both dates lie over new ones, so that a new
        one that joins them changes nothing of them but the curb."""
        roads = sorted(roads, key=lambda road: road.epochs == ALWAYS)
        for road in roads:
            if road.surface == "dirt":
                self._dirt_road(road)
        paved = [road for road in roads if road.surface != "dirt"]
        for wider, material, shade in ((5.6, "concrete", -0.12), (3.4, "lawn", 0.03)):
            for road in paved:
                if road.walks:
                    self.lay(self.canvas.road(road, wider), material, shade)
        for road in paved:
            self.lay(self.canvas.road(road), "concrete", -0.14)
        for road in paved:
            self._pavement(road)

    def _dirt_road(self, road: Road) -> None:
        canvas = self.canvas
        masked = canvas.road(road, 0.0)
        if masked is None:
            return
        self.lay(self.rough(masked, 0.5), "soil", road.shade)
        for side in (-0.22, 0.22):
            wheel = canvas.line(beside(road.points, side * road.width), road.width * 0.14, 1.0)
            self.lay(self._soft(wheel, 0.25, 0.35), "sand", road.shade)

    def _pavement(self, road: Road) -> None:
        canvas = self.canvas
        masked = canvas.road(road, -CURBS)
        if masked is None:
            return
        window = masked[0]
        base = srgb(92, 92, 93) if road.surface == "asphalt" else srgb(146, 143, 137)
        self.lay(masked, base * (1 + road.shade + roof_stains(self.noise, window))[..., None])
        for side in (-0.25, 0.25) if road.width < 11 else (-0.35, -0.13, 0.13, 0.35):
            worn = canvas.line(beside(road.points, side * road.width), road.width * 0.13, 1.5)
            self.lay(self._soft(worn, 0.4, 0.22), base * 0.78)
        if road.marks:
            self.lay(self._soft(canvas.line(road.points, 0.3), 0.0, 0.55), srgb(196, 168, 84))
            if road.width >= 11:
                for side in (-0.24, 0.24):
                    self._dashes(beside(road.points, side * road.width), 3.0, 6.0)

    def _soft(self, masked: Masked | None, metres: float, strength: float) -> Masked | None:
        if masked is None:
            return None
        window, mask = masked
        soft = mask.astype(np.float32)
        return window, strength * (cv2.GaussianBlur(soft, (0, 0), metres * self.canvas.scale) if metres else soft)

    def _dashes(self, points: np.ndarray, on: float, off: float) -> None:
        length = np.concatenate(([0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))))
        for start in np.arange(0, length[-1] - on, on + off):
            ends = [[np.interp(s, length, points[:, k]) for k in (0, 1)] for s in (start, start + on)]
            self.lay(self._soft(self.canvas.line(np.array(ends), 0.25), 0.0, 0.6), srgb(220, 218, 210))

    def strip(self, strip: Strip) -> None:
        masked = self.canvas.line(strip.points, strip.width, 0.0 if strip.height else 1.0)
        if masked is None:
            return
        window, mask = masked
        color = np.array(strip.color, np.float32)
        if strip.height:
            self.tall[window] = np.maximum(self.tall[window], mask * np.float32(strip.height))
            self.lay(masked, color)
            return
        soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 0.3 * self.canvas.scale)
        worn = np.clip(soft * (0.8 + 0.4 * self.noise.middle[window]), 0, 1) * strip.strength
        self.lay((window, worn), color)

    def car(self, car: Car) -> None:
        body = RoofBlock(car.x, car.y, car.long / 2, 0.95, car.turn)
        window = self.canvas.window(body.corners(), 0.3)
        if window is None:
            return
        u, v = self.canvas.local(window, body)
        inside = (abs(u) < body.along) & (abs(v) < body.across)
        glass = inside & (abs(v) < 0.8) & (((u > 0.35) & (u < 1.0)) | ((u < -1.1) & (u > -1.7)))
        self.color[window][inside] = car.color
        self.color[window][glass] = 0.012
        tall = self.tall[window]
        tall[inside] = np.maximum(tall, np.where(abs(u) < 1.4, np.float32(1.5), np.float32(1.0)))[inside]

    def building(self, building: Building, epoch: int) -> None:
        blocks = building.standing(epoch)
        if not blocks:
            return
        canvas = self.canvas
        window = canvas.window(np.concatenate([block.corners() for block in blocks]), 0.5)
        if window is None:
            return
        height = np.zeros(self.tall[window].shape, np.float32)
        color = np.zeros((*height.shape, 3), np.float32)
        rng = np.random.default_rng((building.texture, 3))
        stain = roof_stains(self.noise, window)
        roof = np.array(building.color, np.float32)
        for block in blocks:
            u, v = canvas.local(window, block)
            dv = block.across - abs(v)
            edge = np.minimum(block.along - abs(u), dv)
            inside = edge > 0
            tone = 1 + stain
            if block.roof == "flat":
                parapet = edge < 0.5
                rise = np.where(parapet, np.float32(block.eaves + 0.6), np.float32(block.eaves))
                tone = tone + np.where(parapet, 0.12, 0.03 * np.sign(np.sin(u * (2 * np.pi / 6.1))))
            else:
                rise = block.eaves + building.pitch * (dv if block.roof == "gable" else edge)
            upper = inside & (rise > height)
            height[upper] = np.broadcast_to(rise, height.shape)[upper]
            color[upper] = (roof * np.clip(tone, 0.3, 2)[..., None])[upper]
            if block.roof == "flat" and block.along * block.across > 60:
                self._boxes(block, window, height, color, rng)
        standing = height > 0
        self.color[window][standing] = color[standing]
        self.tall[window][standing] = height[standing]

    def _boxes(
        self, block: RoofBlock, window: Window, height: np.ndarray, color: np.ndarray, rng: np.random.Generator
    ) -> None:
        for _ in range(min(int(block.along * block.across / 70), 14)):
            x, y = block.at(*(rng.uniform(-0.8, 0.8, 2) * (block.along, block.across)))
            half = rng.uniform(0.5, 1.3, 2)
            box = RoofBlock(x, y, float(half[0]), float(half[1]), block.turn)
            u, v = self.canvas.local(window, box)
            inside = (abs(u) < box.along) & (abs(v) < box.across)
            height[inside] = block.eaves + 1.3
            color[inside] = srgb(*(np.array((150, 150, 148)) * rng.uniform(0.6, 1.2)))

    def tree(self, tree: SiteTree) -> None:
        conditions = self.conditions
        radius = tree.radius * (1 + conditions.growth)
        reach = radius * 1.2
        window = self.canvas.window(np.array(((tree.x, tree.y),)), reach)
        if window is None:
            return
        dx, dy = self.canvas.offsets(window, tree.x, tree.y)
        leaves = self.noise.leaves[window]
        crown = 1 - (dx * dx + dy * dy) * np.float32(1 / radius**2) - 0.32 * leaves - 0.18 * self.noise.middle[window]
        crown = np.sqrt(np.clip(crown, 0, 1))
        height = np.float32(tree.height) * (0.35 + 0.65 * crown) + np.float32(0.35 * min(radius, 3)) * leaves
        tall = self.tall[window]
        upper = (crown > 0.08) & (height > tall)
        if tree.deciduous and conditions.leaves < 1:
            thin = 0.75 - 1.8 * max(conditions.leaves, 0.3)
            upper &= leaves + 0.5 * self.noise.grain[window] > thin
        tall[upper] = height[upper]
        tone = 0.85 + 0.2 * leaves + 0.14 * self.noise.fine[window] + 0.25 * crown
        color = _tree_color(tree, conditions)
        self.color[window][upper] = color * np.maximum(tone[upper], 0.25)[:, None]
        self.leafy[window][upper] = 1.0

    # ------------------------------------------------------------------------------------------------ the light

    def lit(self) -> np.ndarray:
        """Linear radiance of the canvas."""
        c, scale = self.conditions, self.canvas.scale
        dx, dy = cv2.Sobel(self.tall, cv2.CV_32F, 1, 0, ksize=1), cv2.Sobel(self.tall, cv2.CV_32F, 0, 1, ksize=1)
        half = np.float32(0.5 * scale)
        dx, dy = dx * half, dy * half
        steep = np.sqrt(dx * dx + dy * dy)  # cv2.magnitude rounds differently with where its arrays lie in memory
        level = np.where(self.leafy > 0, 1.1 / np.maximum(steep, np.float32(1.1)), steep < _WALL_SLOPE)
        # Shadows fall along (cos sun, sin sun), so ground that rises in this direction faces the sun.
        rise = (np.float32(math.cos(c.sun)) * dx + np.float32(math.sin(c.sun)) * dy) * level
        facing = math.sin(c.sun_height) + math.cos(c.sun_height) * rise
        facing = np.maximum(facing, 0) / np.sqrt(1 + (steep * level) ** 2) / np.float32(math.sin(c.sun_height))
        box = max(int(4 * scale) | 1, 3)
        hollow = cv2.blur(self.tall, (box, box)) - self.tall
        open_sky = np.clip(1 - 0.09 * np.clip(hollow, 0, 6), 0.4, 1)
        direct = (1 - c.sky) * facing * (1 - self.shadows())
        light = direct.astype(np.float32)[..., None] * _SUN_COLOR + (c.sky * open_sky)[..., None] * _SKY_COLOR
        return self.color * light

    def shadows(self) -> np.ndarray:
        """0 in the sun to 1 in the shadow. The height that a shadow reaches at a point is the largest height towards
        the sun less the descent of the light up to here; it is found for all distances by doubling the step."""
        c = self.conditions
        drop = math.tan(c.sun_height) / self.canvas.scale
        reached, step = self.tall, 1.0
        longest = min(float(self.tall.max()) / drop, 1.5 * MARGIN * self.canvas.scale)
        while step <= longest:
            matrix = np.array(((1, 0, math.cos(c.sun) * step), (0, 1, math.sin(c.sun) * step)), np.float32)
            moved = cv2.warpAffine(reached, matrix, (self.canvas.width, self.canvas.height), flags=cv2.INTER_LINEAR)
            reached = np.maximum(reached, moved - np.float32(drop * step))
            step *= 2
        soft = 0.35 + 0.45 * self.leafy
        return np.clip((reached - self.tall - 0.25) / soft, 0, 1)


def beside(points: np.ndarray, offset: float) -> np.ndarray:
    """A line parallel to another one."""
    tangent = np.gradient(points, axis=0)
    tangent /= np.maximum(np.linalg.norm(tangent, axis=1, keepdims=True), 1e-9)
    return points + offset * np.stack((-tangent[:, 1], tangent[:, 0]), 1)


def _tree_color(tree: SiteTree, conditions: Conditions) -> np.ndarray:
    if not tree.deciduous:
        return srgb(43, 56, 40) * np.float32(1 + 0.35 * tree.tint)
    light = srgb(62, 76, 45) * np.float32(1 + 0.3 * tree.tint)
    fall = np.float32(min(1.4 * (1 - conditions.leaves), 1.0))
    return light + (srgb(94, 85, 68) - light) * fall


def paint(site: Site, epoch: int, canvas: Canvas, noise: GroundNoise) -> Painting:
    """The site at a date."""
    painting = Painting(canvas, noise, site.conditions[epoch])
    everywhere = (slice(0, canvas.height), slice(0, canvas.width))
    painting.color += cover(site.ground, noise, everywhere, painting.conditions, 0.0, 0.0, canvas.scale)
    for layer in (0, 1, 2):
        if layer == 1:
            painting.roads([road for road in site.roads if road.epochs[epoch]])
        for patch in site.patches:
            if patch.layer == layer and patch.epochs[epoch]:
                painting.patch(patch)
    for strip in site.strips:
        if strip.epochs[epoch]:
            painting.strip(strip)
    for car in site.cars:
        if car.epochs[epoch]:
            painting.car(car)
    for building in site.buildings:
        painting.building(building, epoch)
    for tree in site.trees:
        if tree.epochs[epoch]:
            painting.tree(tree)
    return painting


_HAZE = np.array((0.40, 0.43, 0.47), np.float32)
_GREY = np.array((0.3, 0.59, 0.11), np.float32)


def photograph(painting: Painting, seed: tuple[int, ...]) -> np.ndarray:
    """uint8 (H, W, 3), as downloaded; ``seed`` is of the sensor's noise."""
    canvas, c = painting.canvas, painting.conditions
    light = painting.lit()
    if any(c.shift):
        dx, dy = (value * canvas.supersampling for value in c.shift)
        matrix, size = np.array(((1, 0, dx), (0, 1, dy)), np.float32), (canvas.width, canvas.height)
        light = cv2.warpAffine(light, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    image = canvas.reduce(light)
    height, width = image.shape[:2]
    if c.haze:
        small = np.random.default_rng(c.cloud).standard_normal((4, 4)).astype(np.float32)
        cloud = np.clip(1 + 0.5 * cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), 0.1, 2)
        image = image + (_HAZE - image) * np.clip(c.haze * cloud, 0, 0.8)[..., None]
    if c.blur:
        image = cv2.GaussianBlur(image, (0, 0), c.blur)
    grey = (image @ _GREY)[..., None]
    image = grey + (image - grey) * np.float32(c.saturation)
    image = np.clip(image * np.float32(c.gain) * np.array(c.cast, np.float32), 0, None)
    pixels = to_srgb(image / (1 + np.float32(0.18) * image**2)).astype(np.float32)  # highlights saturate slowly
    pixels = pixels ** np.float32(c.gamma)
    if c.sharpening:
        pixels = pixels + np.float32(c.sharpening) * (pixels - cv2.GaussianBlur(pixels, (0, 0), 1.2))
    if c.noise:
        rng = np.random.default_rng(seed)
        sensor = rng.standard_normal((height, width, 4), np.float32) * np.float32(c.noise)
        pixels = pixels + 0.7 * sensor[..., :1] + 0.5 * sensor[..., 1:]
    whole = (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8)
    if c.quality < 100:
        _, packed = cv2.imencode(".jpg", whole[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, c.quality))
        decoded = cv2.imdecode(packed, cv2.IMREAD_COLOR)
        assert decoded is not None
        whole = np.ascontiguousarray(decoded[..., ::-1])
    return whole
