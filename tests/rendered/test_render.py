"""Rendered pairs and their folder: equal everywhere, whatever the number of workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from idc.data.images import decode_image
from idc.data.pipeline import TooManyRejects, run_local
from idc.data.schema import ChangePair
from idc.data.store import read_table
from idc.rendered.captions import TEMPLATES
from idc.rendered.config import RenderJob
from idc.rendered.draw import cast, draw_scene
from idc.rendered.render import RenderScenes, open_rendering
from idc.rendered.scene import SceneObject
from tests.rendered.conftest import SMALL


def test_pairs_are_what_the_scene_says(pairs):
    assert [p.pair_id for p in pairs[:4]] == ["r0-000000-s", "r0-000000-n", "r0-000001-s", "r0-000001-n"]
    assert Counter(p.change_type for p in pairs) == {
        "color": 2, "material": 2, "add": 2, "drop": 2, "move": 2, "none": 10,
    }  # fmt: skip
    for changed, same in zip(pairs[::2], pairs[1::2], strict=True):
        assert changed.before == same.before
        assert changed.after != same.after != same.before
        assert changed.split == same.split
        assert same.meta["before"] == same.meta["after"] == changed.meta["before"] != changed.meta["after"]
        assert len(changed.captions) == len(same.captions) == 6
        assert all(caption in TEMPLATES["none"] for caption in same.captions)
        assert 0 < changed.meta["viewpoint_iou"] < 1
        for data in (changed.before, changed.after, same.after):
            assert decode_image(data).shape == (32, 32, 3)
    assert RenderScenes(SMALL).pairs(7) == tuple(pairs[14:16]), "whatever was rendered before"


def test_objects_look_as_they_are_called():
    """Metal mirrors: its brightest spot stands out of its mean more than that of rubber."""
    stage = RenderScenes(SMALL.model_copy(update={"samples_per_pixel": 36, "width": 64, "height": 64}))
    view = draw_scene(SMALL, 0)[0].views[0]

    def pixels(color: str, material: str) -> np.ndarray:
        ball = SceneObject("sphere", color, material, "large", 0.9, 0.0, 0.0, 0.0)
        return stage.render((ball,), view, 0)[cast((ball,), view, 64, 64) == 0]

    red, blue = (pixels(color, "rubber").mean(0) for color in ("red", "blue"))
    assert red[0] > red[2] + 15
    assert blue[2] > blue[0] + 15
    rubber, metal = (pixels("purple", material).mean(-1) for material in ("rubber", "metal"))
    assert np.percentile(metal, 98) / np.median(metal) > 1.3 * np.percentile(rubber, 98) / np.median(rubber)


def job(out: Path, **render: object) -> RenderJob:
    return RenderJob(out=str(out), chunk_size=3, render=SMALL.model_copy(update={"num_scenes": 7} | render))


def test_a_folder_is_built_once_and_holds_the_pairs(tmp_path, pairs):
    manifest = run_local(*open_rendering(job(tmp_path)), progress=False)
    assert (manifest.num_rows, manifest.num_rejected, len(manifest.parts)) == (14, 0, 3)
    rows = read_table(str(tmp_path)).to_pylist()
    assert [ChangePair.from_row(row) for row in rows] == pairs[:14]
    folder, _, _ = open_rendering(job(tmp_path))
    assert folder.complete
    with pytest.raises(ValueError, match="overwrite"):
        open_rendering(job(tmp_path, seed=5))


def test_a_scene_that_cannot_be_placed_is_rejected(tmp_path):
    crowded = job(tmp_path, num_scenes=2, min_objects=12, max_objects=12, extent=0.5)
    with pytest.raises(TooManyRejects, match="2 x unplaceable scene"):
        run_local(*open_rendering(crowded), progress=False)
