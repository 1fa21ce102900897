"""Settings and scenes: contradictions are refused, what is promised of a scene holds."""

from __future__ import annotations

import numpy as np
import pytest

from idc.config import ConfigError, load
from idc.rendered.config import RenderConfig
from idc.rendered.draw import draw_scene
from idc.rendered.render import scene_dict
from tests.rendered.conftest import CLEVR


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
