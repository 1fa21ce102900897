"""Renders a scene's images with Mitsuba, and makes the rows of its pairs from an index."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from idc.data.images import encode_png
from idc.data.pipeline import Batch, NumberSource, StageSpec
from idc.data.schema import PAIR_SCHEMA_VERSION, ChangePair, pair_arrow_schema
from idc.data.store import DatasetFolder, fingerprint
from idc.rendered.config import RenderConfig, RenderJob
from idc.rendered.draw import draw_scene, pairs_of, rows_of_scenes, split_of
from idc.rendered.look import Exposure, Look, from_srgb, to_srgb
from idc.rendered.scene import IMAGES, PAIRS, SceneObject, View
from idc.rendered.sentences import captions_of_meta, change_captions

GENERATOR_VERSION = 1
"""Part of the fingerprint of every rendered folder; to be raised when a setting would produce other rows."""

COLORS: dict[str, tuple[int, int, int]] = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
"""CLEVR's eight colours, sRGB."""

STENCIL = 64
"""Edge of a stencil, pixels."""

_HEIGHT, _STROKE = 0.66, 0.025
"""Height of a letter and width of what is added around its strokes, as shares of the side."""

PLAIN, IDEAL = Look(), Exposure()
"""The look and the camera without variation."""

MASK_BEFORE, MASK_AFTER = 85, 170
"""Values of the change mask: the changed object shows in the before image, in the after image; the sum: in both."""


def open_rendering(job: RenderJob, overwrite: bool = False) -> tuple[DatasetFolder, NumberSource, list[StageSpec]]:
    """The folder, source and stages of a render job, for ``run_local`` or ``cluster.data.run_chunks_on_ray``.

    Raises:
        ValueError: the folder holds something else and ``overwrite`` is off.
    """
    source = NumberSource(job.render.num_scenes, job.chunk_size)
    config = job.model_dump(mode="json", exclude={"out", "workers", "max_reject_share"})
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="pairs",
        schema=pair_arrow_schema(),
        fingerprint=fingerprint("render", PAIR_SCHEMA_VERSION, GENERATOR_VERSION, config),
        config=config,
        num_chunks=source.num_chunks,
        overwrite=overwrite,
    )
    return folder, source, [StageSpec(_stage(job), {"config": job.render}, num_cpus=1.0, concurrency=job.workers)]


def _stage(job: RenderJob) -> type:
    if job.render.satellite is None:
        return RenderScenes
    from idc.rendered.satellite.satellite_pairs import RenderSatellitePairs  # loads OpenCV

    return RenderSatellitePairs


class RenderScenes:
    """The stage that converts the column ``index`` (scene numbers) to the columns of pairs, two or eight a scene.

    A scene that cannot be placed becomes one row with the error ``"unplaceable scene: ..."``. Mitsuba is loaded once
    and limited to one thread in this process: one stage is one core's work.
    """

    def __init__(self, config: RenderConfig):
        import drjit
        import mitsuba

        mitsuba.set_variant("scalar_rgb")
        drjit.set_thread_count(1)
        mitsuba.set_log_level(mitsuba.LogLevel.Error)  # else one line per image if samples_per_pixel is rounded
        self.config = config
        self.mi = mitsuba

    def __call__(self, batch: Batch) -> Batch:
        return rows_of_scenes(batch, self.pairs, lambda index: f"r{self.config.seed}-{index:06d}")

    def pairs(self, index: int) -> tuple[ChangePair, ...]:
        """The pairs of a scene, in the order of :func:`pairs_of`; with ``several`` its only one.

        Raises:
            UnplaceableScene: no scene meets the settings.
        """
        config = self.config
        scene, rng = draw_scene(config, index)
        seeds = np.random.SeedSequence((config.seed, index)).generate_state(len(scene.views))
        images = []
        for i, (seed, exposure) in enumerate(zip(seeds, scene.exposures, strict=True)):
            pixels = self.render(scene.things(i), scene.views[i], int(seed), scene.look, exposure)
            images.append(encode_exposed(pixels, exposure))
        pairs = []
        for number, (name, order) in enumerate(pairs_of(config, index).items()):
            before, after = order
            change_type = scene.pair(order).change_type
            meta = {"scene": index, **scene.record(order), "viewpoint_iou": round(scene.viewpoint_iou(order), 4)}
            if config.several is not None:
                captions = captions_of_meta(meta, change_type, config.captions_per_pair, 0.0, rng)
                images_named = "several"
            else:
                if name not in PAIRS:  # the scene's own generator is for the two pairs that every scene has
                    rng = np.random.default_rng((config.seed, index, number))
                captions = change_captions(scene, config.captions_per_pair, config.relation_share, rng, order)
                images_named = IMAGES[after] if name in PAIRS else f"{IMAGES[before]}-{IMAGES[after]}"
            pairs.append(
                ChangePair(
                    pair_id=f"r{config.seed}-{index:06d}" + (f"-{name}" if name else ""),
                    before=images[before],
                    after=images[after],
                    captions=tuple(captions),
                    change_type=change_type,
                    split=split_of(config, index),
                    mask=encode_png(two_masks(*scene.changed_pixels(order))),
                    source=f"rendered:seed={config.seed}:scene={index}:{images_named}",
                    meta=meta,
                )
            )
        return tuple(pairs)

    def render(
        self, things: tuple[SceneObject, ...], view: View, seed: int, look: Look = PLAIN, exposure: Exposure = IDEAL
    ) -> np.ndarray:
        """uint8 (H, W, 3), sRGB.

        Mitsuba's scene optimisation must be off: it merges equal objects in the order of memory addresses and so
        permutes the lamps, and with them the samples, from load to load.
        """
        mi, config = self.mi, self.config
        scene = mi.load_dict(scene_dict(mi, things, view, config, look), parallel=False, optimize=False)
        linear = np.array(mi.render(scene, seed=seed))[..., :3]
        return develop(without_sparks(linear), exposure, np.random.default_rng(seed))


def scene_dict(
    mi: Any, things: tuple[SceneObject, ...], view: View, config: RenderConfig, look: Look = PLAIN
) -> dict[str, Any]:
    """The scene as a dict for Mitsuba."""
    transform = mi.ScalarTransform4f
    tan_x, _ = view.tangents(config.width, config.height)
    scene: dict[str, Any] = {
        "type": "scene",
        "integrator": {"type": "path", "max_depth": 3, "hide_emitters": True},
        "sensor": {
            "type": "perspective",
            "fov": float(np.degrees(2 * np.arctan(tan_x))),
            "fov_axis": "x",
            "to_world": transform().look_at(origin=list(view.origin), target=list(view.target), up=[0, 0, 1]),
            "film": {
                "type": "hdrfilm",
                "width": config.width,
                "height": config.height,
                "pixel_format": "rgb",
                "component_format": "float32",
                "rfilter": {"type": "box"},
            },
            "sampler": {"type": "multijitter", "sample_count": config.samples_per_pixel},
        },
        "sky": {"type": "constant", "radiance": _rgb(mi, look.sky, look.sky, look.sky), "sampling_weight": 0.0},
        "ground": {
            "type": "rectangle",
            "to_world": transform().scale(60.0),
            "bsdf": {"type": "diffuse", "reflectance": _rgb(mi, *look.ground)},
        },
    }
    shares = (2.0, 1.0, 1.0)  # of the light paths: as the lamps' powers, and even in the sampler's 4, 8, ... strata
    for i, (lamp, share) in enumerate(zip(view.lamps, shares, strict=True)):
        scene[f"lamp{i}"] = {
            "type": "rectangle",
            "to_world": transform().look_at(origin=list(lamp.position), target=[0, 0, 0], up=[0, 0, 1])
            @ transform().scale(lamp.half_edge),
            "emitter": {
                "type": "area",
                "radiance": _rgb(mi, lamp.radiance, lamp.radiance, lamp.radiance),
                "sampling_weight": share,
            },
        }
    for i, thing in enumerate(things):
        scene.update({f"thing{i}{part}": shape for part, shape in _shapes(mi, thing, look).items()})
    return scene


def _shapes(mi: Any, thing: SceneObject, look: Look) -> dict[str, dict[str, Any]]:
    transform = mi.ScalarTransform4f
    bsdf = _bsdf(mi, thing, look)
    half = float(thing.half_height)
    if thing.shape == "sphere":
        return {"": {"type": "sphere", "center": [thing.x, thing.y, half], "radius": thing.radius, "bsdf": bsdf}}
    if thing.shape == "cube":
        to_scene = transform().translate([thing.x, thing.y, half]).rotate([0, 0, 1], float(np.degrees(thing.turn)))
        if thing.text:
            return _lettered_cube(mi, to_scene.scale(half), bsdf, thing)
        return {"": {"type": "cube", "to_world": to_scene.scale(half), "bsdf": bsdf}}
    top = transform().translate([thing.x, thing.y, 2 * half]).scale(thing.radius)
    ends = {"p0": [thing.x, thing.y, 0.0], "p1": [thing.x, thing.y, 2 * half], "radius": thing.radius}
    return {  # the lower cap would coincide with the ground
        "": {"type": "cylinder", **ends, "bsdf": bsdf},
        "cap": {"type": "disk", "to_world": top, "bsdf": bsdf},
    }


@lru_cache(maxsize=64)
def letter_stencil(letter: str) -> np.ndarray:
    """float32 (64, 64) in [0, 1]: how much of each point of a side is painted, from its upper left corner."""
    stroke = round(_STROKE * STENCIL)
    font = ImageFont.load_default(size=_HEIGHT * STENCIL / 0.7)  # a capital of this typeface is 0.7 of its size high
    image = Image.new("L", (STENCIL, STENCIL))
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = draw.textbbox((0, 0), letter, font=font, stroke_width=stroke)
    corner = ((STENCIL - left - right) / 2, (STENCIL - top - bottom) / 2)
    draw.text(corner, letter, fill=255, font=font, stroke_width=stroke)
    return np.asarray(image, np.float32) / 255


def _lettered_cube(mi: Any, to_scene: Any, bsdf: dict[str, Any], thing: SceneObject) -> dict[str, dict[str, Any]]:
    """The four sides with the upright letter, and the top; ``to_scene`` places the unit cube."""
    transform = mi.ScalarTransform4f
    stencil = np.ascontiguousarray(letter_stencil(thing.text)[::-1, :, None])  # a rectangle's v grows upward
    paint = 0.0 if np.mean(COLORS[thing.color]) > 110 else 0.9
    painted = {
        "type": "blendbsdf",
        "weight": {"type": "bitmap", "bitmap": mi.Bitmap(stencil), "raw": True, "wrap_mode": "clamp"},
        "plain": bsdf,
        "paint": {"type": "diffuse", "reflectance": _rgb(mi, paint, paint, paint)},
    }
    shapes = {"top": {"type": "rectangle", "to_world": to_scene.translate([0, 0, 1]), "bsdf": bsdf}}
    for side in range(4):
        upright = transform().rotate([0, 0, 1], 90.0 * side).translate([0, -1, 0]).rotate([1, 0, 0], 90.0)
        shapes[f"side{side}"] = {"type": "rectangle", "to_world": to_scene @ upright, "bsdf": painted}
    return shapes


def _bsdf(mi: Any, thing: SceneObject, look: Look) -> dict[str, Any]:
    linear = from_srgb(np.array(COLORS[thing.color]) / 255)
    if thing.color in look.tints:
        linear = np.minimum(linear * look.tints[thing.color], 1.0)
    if thing.material == "rubber":
        matte = {"type": "diffuse", "reflectance": _rgb(mi, *linear)}
        if not look.rubber_gloss:
            return matte
        shine = {"type": "roughconductor", "alpha": 0.25, "specular_reflectance": _rgb(mi, 1.0, 1.0, 1.0)}
        return {"type": "blendbsdf", "weight": look.rubber_gloss, "matte": matte, "shine": shine}
    gloss = {"type": "roughconductor", "alpha": look.roughness, "specular_reflectance": _rgb(mi, *(linear * 0.9 + 0.1))}
    base = {"type": "diffuse", "reflectance": _rgb(mi, *linear)}
    return {"type": "blendbsdf", "weight": 0.1, "gloss": gloss, "base": base}


def two_masks(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """uint8 (H, W) of the changed pixels of either image, bool (H, W): :data:`MASK_BEFORE`, :data:`MASK_AFTER`, or
    their sum."""
    return (before * MASK_BEFORE + after * MASK_AFTER).astype(np.uint8)


def without_sparks(image: np.ndarray) -> np.ndarray:
    """The image (H, W, C) with no pixel brighter than its brightest neighbour.

    This removes the single bright dots that paths from the ground over metal to a lamp leave at few samples.
    """
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    height, width = image.shape[:2]
    neighbours = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    return np.minimum(image, np.maximum.reduce(neighbours))


def develop(linear: np.ndarray, exposure: Exposure, rng: np.random.Generator) -> np.ndarray:
    """uint8 sRGB pixels (H, W, 3) of linear radiance (H, W, 3); ``rng`` draws the sensor's noise."""
    if exposure.blur:
        from scipy.ndimage import gaussian_filter  # slow to import, and settings import this module

        linear = gaussian_filter(linear, (exposure.blur, exposure.blur, 0.0), mode="nearest")
    pixels = to_srgb(linear * exposure.gain)
    if exposure.contrast != 1:
        pixels = (pixels - 0.5) * exposure.contrast + 0.5
    if exposure.noise:
        pixels = pixels + rng.normal(0.0, exposure.noise, pixels.shape)
    return (np.clip(pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)


def encode_exposed(pixels: np.ndarray, exposure: Exposure) -> bytes:
    """The image file: PNG, or JPEG of the exposure's quality."""
    if exposure.quality is None:
        return encode_png(pixels)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=exposure.quality)
    return stream.getvalue()


def _rgb(mi: Any, *values: float) -> dict[str, Any]:
    return {"type": "rgb", "value": [float(v) for v in values]}
