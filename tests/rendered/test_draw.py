"""Settings, scenes and variation: contradictions are refused, promises hold; without variation nothing varies."""

from __future__ import annotations

import numpy as np
import pytest

from idc.config import ConfigError, load
from idc.data.images import decode_image
from idc.rendered.config import RenderConfig, VariationConfig
from idc.rendered.draw import draw_scene
from idc.rendered.look import JPEG_QUALITIES, Exposure, to_srgb
from idc.rendered.render import RenderScenes, develop, scene_dict, without_sparks
from tests.rendered.conftest import CLEVR, SMALL, WIDE


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"jitter": "extreem"}, "extreme"),
        ({"change_types": ["colour"]}, "color"),
        ({"change_types": ["color"], "colors": ["red"]}, "two colours"),
        ({"change_types": ["drop"], "min_objects": 1}, "min_objects"),
        ({"shapes": []}, "shapes"),
        ({"colors": ["red", "red"]}, "twice"),
        ({"min_objects": 5, "max_objects": 4}, "max_objects"),
        ({"small_radius": 0.8}, "small_radius"),
        ({"val_share": 0.95}, "val_share"),
        ({"max_objects": 4, "satellite": {}}, "max_objects is not used with satellite"),
        ({"satellite.works": ["road", "road"]}, "works names a value twice"),
    ],
)
def test_a_bad_setting_is_refused_with_the_reason(settings, word):
    with pytest.raises(ConfigError, match=word):
        load(RenderConfig, None, settings)


def test_jitter_grows_from_none_to_extreme():
    means = []  # CLEVR-Change's official IoU file, moderate: 0.508
    for name in ("none", "mild", "moderate", "extreme"):
        config = CLEVR.model_copy(update={"jitter": name, "max_objects": 5})
        drawn = [draw_scene(config, index)[0] for index in range(8)]
        means.append(np.mean([scene.viewpoint_iou((0, 2)) for scene in drawn]))
        for scene in drawn if name == "none" else []:
            for view in scene.views[1:]:
                assert view.origin == pytest.approx(scene.views[0].origin)
                assert (view.target, view.lamps) == (scene.views[0].target, scene.views[0].lamps)
    assert means[0] == 1.0
    assert means[0] > means[1] > 0.6 > means[2] > 0.42 > means[3]


def test_cast_sees_what_the_renderer_sees(stage):
    """The ids of the numpy ray cast against Mitsuba's first hits through the pixels' centres."""
    mi = stage.mi
    config = RenderConfig(width=96, height=64, min_objects=6, max_objects=8, min_visible_pixels=10)
    for index in range(3):
        scene, _ = draw_scene(config, index)
        loaded = mi.load_dict(scene_dict(mi, scene.before, scene.views[0], config), optimize=False)
        sensor = loaded.sensors()[0]
        theirs = np.full((64, 96), -1)
        for y, x in np.ndindex(64, 96):
            ray, _ = sensor.sample_ray(0.0, 0.0, [(x + 0.5) / 96, (y + 0.5) / 64], [0.5, 0.5])
            name = loaded.ray_intersect(ray).shape.id()
            if name.startswith("thing"):
                theirs[y, x] = int(name.removeprefix("thing").removesuffix("cap"))
        differing = np.count_nonzero(theirs != scene.ids[0])
        assert differing <= 3, f"{differing} pixels differ"  # rays along an edge may round either way


PICTURE = ("exposure", "contrast", "blur", "noise", "jpeg_share")


def test_pictures_without_variation_are_the_light_paths_on_the_srgb_curve(stage: RenderScenes) -> None:
    scene, _ = draw_scene(SMALL, 0)
    mi = stage.mi
    described = scene_dict(mi, scene.before, scene.views[0], SMALL)
    assert described == scene_dict(mi, scene.before, scene.views[0], SMALL, scene.look)
    assert described["ground"]["bsdf"]["reflectance"]["value"] == [0.33] * 3
    assert described["sky"]["radiance"]["value"] == [0.18] * 3
    linear = np.array(mi.render(mi.load_dict(described, parallel=False, optimize=False), seed=5))[..., :3]
    plain = (to_srgb(without_sparks(linear)) * 255 + 0.5).astype(np.uint8)
    assert np.array_equal(stage.render(scene.before, scene.views[0], 5), plain)
    assert np.array_equal(stage.render(scene.before, scene.views[0], 5, scene.look, scene.exposures[0]), plain)
    assert scene.exposures == (Exposure(),) * 3


@pytest.mark.parametrize("name", [name for name in VariationConfig.model_fields if name != "object_size"])
def test_each_setting_changes_the_pictures_and_not_the_scene(stage: RenderScenes, name: str) -> None:
    variation = VariationConfig(**{name: getattr(WIDE, name) if name != "jpeg_share" else 1.0})
    config = SMALL.model_copy(update={"variation": variation})
    render = RenderScenes(config)
    differs = False
    for index in (0, 1):  # a scene of two, of which at least one has metal, rubber and a change of its own
        scene, plain = draw_scene(config, index)[0], draw_scene(SMALL, index)[0]
        assert (scene.before, scene.after, scene.differences) == (plain.before, plain.after, plain.differences)
        assert (scene.views == plain.views) == (name in PICTURE or name in LOOK)
        varying, still = render.pairs(index), stage.pairs(index)
        differs |= any(a.before != b.before and a.after != b.after for a, b in zip(varying, still, strict=True))
        for a, b in zip(varying, still, strict=True):
            assert (a.captions, a.change_type, a.meta["before"]) == (b.captions, b.change_type, b.meta["before"])
            assert isinstance(a.after, bytes)
            assert a.after.startswith(b"\xff\xd8") == (name == "jpeg_share")
            assert decode_image(a.after).shape == (32, 32, 3)
    assert differs


LOOK = ("sky", "ground", "ground_tint", "object_tint", "roughness", "rubber_gloss")


def test_what_belongs_to_the_scene_is_shared_and_what_to_a_picture_is_not() -> None:
    config = SMALL.model_copy(update={"variation": WIDE})
    scenes = [draw_scene(config, index)[0] for index in range(20)]
    for scene in scenes:
        assert len({exposure.noise for exposure in scene.exposures}) == 1
        assert len({exposure.quality for exposure in scene.exposures}) == 1
        for name in ("gain", "contrast", "blur"):
            assert len({getattr(exposure, name) for exposure in scene.exposures}) == 3
        quality = scene.exposures[0].quality
        assert quality is None or JPEG_QUALITIES[0] <= quality <= JPEG_QUALITIES[1]
    assert len({(scene.views[0].zoom, scene.look.ground) for scene in scenes}) == len(scenes)


def test_a_camera_does_to_a_picture_what_its_exposure_says() -> None:
    linear = np.full((40, 40, 3), 0.18)
    linear[:, 20:] = 0.36
    rng = lambda: np.random.default_rng(0)  # noqa: E731
    plain = develop(linear, Exposure(), rng()).astype(int)
    brighter = develop(linear, Exposure(gain=2.0), rng()).astype(int)
    assert np.array_equal(brighter[:, :20], plain[:, 20:])
    flat = develop(linear, Exposure(contrast=0.5), rng()).astype(int)
    assert np.ptp(flat) == pytest.approx(np.ptp(plain) / 2, abs=1)
    noisy = develop(linear, Exposure(noise=0.02), rng()).astype(int)
    assert (noisy - plain).std() == pytest.approx(0.02 * 255, rel=0.1)
    blurred = develop(linear, Exposure(blur=2.0), rng()).astype(int)
    assert plain[0, 18, 0] < blurred[0, 18, 0] < blurred[0, 21, 0] < plain[0, 21, 0]
    assert np.array_equal(blurred[:, 0], plain[:, 0])
    dark = develop(linear * 0, Exposure(contrast=1.3, noise=0.1), rng())
    assert dark.min() == 0


def test_objects_that_vary_too_much_in_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="object_size"):
        load(RenderConfig, None, {"variation.object_size": 0.3, "small_radius": 0.5})
