"""Rendered pairs and their folder: equal everywhere, whatever the number of workers; all ordered pairs of a scene."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from idc.data.images import decode_image
from idc.data.pipeline import StageSpec, TooManyRejects, run_local
from idc.data.schema import NO_CHANGE, ChangePair
from idc.data.store import read_table
from idc.metrics.scene_scores import hallucination, truth_of
from idc.rendered.captions import TEMPLATES
from idc.rendered.config import RenderConfig, RenderJob
from idc.rendered.draw import cast, draw_scene, split_of
from idc.rendered.render import MASK_AFTER, MASK_BEFORE, RenderScenes, open_rendering
from idc.rendered.scene import ORDERED_PAIRS, SceneObject
from idc.rendered.sentences import change_captions
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


ORDERED = SMALL.model_copy(update={"ordered_pairs": True, "val_share": 0.2, "test_share": 0.2})
TRAIN = [index for index in range(10) if split_of(ORDERED, index) == "train"]


@pytest.fixture(scope="module")
def ordered_rows() -> dict[int, dict[str, ChangePair]]:
    """Scene -> end of the pair id -> pair."""
    stage = RenderScenes(ORDERED)
    return {index: {pair.pair_id.split("-")[2]: pair for pair in stage.pairs(index)} for index in range(10)}


def test_a_training_scene_gives_every_order_and_others_their_two(ordered_rows) -> None:
    assert 4 <= len(TRAIN) < 10
    plain = RenderScenes(ORDERED.model_copy(update={"ordered_pairs": False}))
    for index, pairs in ordered_rows.items():
        if index not in TRAIN:
            assert [p.to_row() for p in plain.pairs(index)] == [p.to_row() for p in pairs.values()]
        assert list(pairs) == (list(ORDERED_PAIRS) if index in TRAIN else ["s", "n"])
        assert {pair.split for pair in pairs.values()} == {split_of(ORDERED, index)}
        changed = sum(pair.change_type != NO_CHANGE for pair in pairs.values())
        assert changed == len(pairs) / 2
    assert len(set(ORDERED_PAIRS.values())) == 8
    assert {(a, b) for a in range(3) for b in range(3) if a != b} < set(ORDERED_PAIRS.values())


def test_pairs_are_the_scenes_images_in_their_order(ordered_rows) -> None:
    for index in TRAIN:
        pairs = ordered_rows[index]
        images = (pairs["s"].before, pairs["s"].after, pairs["n"].after)
        assert len(set(images)) == 3
        for name, (before, after) in ORDERED_PAIRS.items():
            assert (pairs[name].before, pairs[name].after) == (images[before], images[after])
        forth, back = pairs["s"].meta, pairs["sd"].meta
        assert (back["before"], back["after"], back["views"]) == (forth["after"], forth["before"], forth["views"][::-1])
        assert back["viewpoint_iou"] == forth["viewpoint_iou"] < 1
        assert pairs["dd"].meta["viewpoint_iou"] == pairs["ss"].meta["viewpoint_iou"] == 1
        assert pairs["ss"].meta["before"] == pairs["ss"].meta["after"] == forth["after"]


def test_every_caption_is_true(ordered_rows) -> None:
    pairs = [pair for index in TRAIN for pair in ordered_rows[index].values()]
    truths = {p.pair_id: truth_of(p.change_type, p.meta["before"], p.meta["after"]) for p in pairs}
    rates = hallucination((caption, truths[p.pair_id]) for p in pairs for caption in p.captions)
    for rate in (rates.change_type, rates.object, rates.attribute):
        assert rate.right == rate.total > 0
    assert rates.invented_change.right == rates.missed_change.right == 0
    assert all(len(set(p.captions)) == ORDERED.captions_per_pair for p in pairs)
    assert len({p.captions for p in pairs}) == len(pairs), "each order has its own draws"
    scene, _ = draw_scene(ORDERED, TRAIN[0])
    for number, (name, order) in enumerate(ORDERED_PAIRS.items()):
        captions = change_captions(scene, 6, 0.25, np.random.default_rng((0, TRAIN[0], number)), order)
        assert number < 2 or ordered_rows[TRAIN[0]][name].captions == tuple(captions), "as seed, scene and number say"


def test_masks_are_those_of_the_order(ordered_rows) -> None:
    kinds: Counter[str] = Counter()
    for index in TRAIN:
        scene, _ = draw_scene(ORDERED, index)
        for name, (before, after) in ORDERED_PAIRS.items():
            pair = ordered_rows[index][name]
            mask = decode_image(pair.mask)[..., 0]
            if pair.change_type == NO_CHANGE:
                assert not mask.any()
                continue
            changed = {}
            for image, key, other in ((before, "before", "after"), (after, "after", "before")):
                graph = [t for t in pair.meta[key] if t not in pair.meta[other]]
                at = pair.meta[key].index(graph[0]) if graph else -2
                changed[key] = scene.ids[image] == at
            assert np.array_equal(mask & MASK_BEFORE > 0, changed["before"])
            assert np.array_equal(mask & MASK_AFTER > 0, changed["after"])
            kinds[pair.change_type] += 1
    assert set(kinds) == {"color", "material", "add", "drop", "move"}


ROOT = Path(__file__).parents[2]


class Killed(RenderScenes):
    """The stage in a process that is killed at a scene: while the marker file is not there."""

    def __init__(self, config: RenderConfig, marker: str) -> None:
        super().__init__(config)
        self.marker = Path(marker)

    def pairs(self, index):
        if index == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pairs(index)


def test_a_killed_process_is_an_error_and_the_build_continues(tmp_path):
    settings = job(tmp_path / "out", num_scenes=5)
    folder, source, stages = open_rendering(settings)
    killed = [StageSpec(Killed, {**stages[0].kwargs, "marker": str(tmp_path / "marker")})]
    with pytest.raises(RuntimeError, match="repeat the command"):
        run_local(folder, source, killed, processes=2, progress=False)
    manifest = run_local(*open_rendering(settings), processes=2, progress=False)
    assert (manifest.num_rows, manifest.complete) == (10, True)


@pytest.mark.slow
def test_no_process_is_left_when_the_command_is_killed(tmp_path):
    settings = {"width": 32, "height": 32, "samples_per_pixel": 1, "min_visible_pixels": 1}
    command = [sys.executable, str(ROOT / "jobs/render.py"), "--local", f"out={tmp_path}/pairs", "chunk_size=1"]
    command += [f"render.{name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as run:
        while b"rows " not in run.stdout.read1():  # a chunk is done, so the workers are at work
            assert run.poll() is None
        run.kill()
        run.stdout.read()  # ends when the last process that inherited the pipe has ended
