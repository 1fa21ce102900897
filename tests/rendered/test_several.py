"""Scenes with none to several changes: what is promised of each holds; their references are true, unambiguous and
complete; what reads rendered pairs reads them too."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.config import ConfigError, load
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.schema import CHANGE_TYPES
from idc.metrics.scene_scores import match_caption, true_differences
from idc.rendered.captions import find_referring_options, on_side, thing_of
from idc.rendered.config import RenderConfig, RenderJob, SeveralConfig
from idc.rendered.differences import KINDS, Difference
from idc.rendered.draw import LETTERS, UnplaceableScene, draw_scene, kinds_of_changes, split_of
from idc.rendered.render import MASK_AFTER, MASK_BEFORE, RenderScenes, letter_stencil, open_rendering
from idc.rendered.scene import Scene, SceneObject, View, reversed_record
from idc.rendered.sentences import DIRECTED_MOVES, captions_of_meta, several_captions
from idc.rendered.views import cast
from idc.systems.twincap.truth import PARTS, UNKNOWN, pair_truth
from tests.rendered.conftest import SEVERAL
from tests.robustness.test_robustness import rows

TINY = SEVERAL.model_copy(update={"width": 48, "height": 36, "min_visible_pixels": 3, "samples_per_pixel": 4})


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(SEVERAL, index)[0] for index in range(60)]


def test_numbers_of_changes_and_kinds_are_balanced(scenes: list[Scene]) -> None:
    assert [len(scene.differences) for scene in scenes[:12]] == [0, 1, 2, 3, 4, 5] * 2
    assert {difference["kind"] for scene in scenes for difference in scene.differences} == set(KINDS)
    config = SEVERAL.model_copy(update={"num_scenes": 600})
    splits = Counter((index % 6, split_of(config, index)) for index in range(600))
    assert all(splits[number, "test"] == pytest.approx(10, abs=2) for number in range(6))


def test_a_kind_that_a_scene_cannot_have_is_replaced_and_impossible_settings_end_with_advice() -> None:
    """Small objects are too small to be seen here, so nothing can have been small or become small."""
    several = SeveralConfig(min_changes=1, max_changes=1, kinds=("size", "color"))
    small = {"small_radius": 0.1, "min_visible_pixels": 60, "max_objects": 3, "several": several}
    assert {kinds_of_changes(several, 0, index)[0] for index in range(6)} == {"size", "color"}
    for index in range(6):
        scene, _ = draw_scene(SEVERAL.model_copy(update=small), index)
        assert [difference["kind"] for difference in scene.differences] == ["color"]
    with pytest.raises(UnplaceableScene, match=r"lower several\.max_changes"):
        draw_scene(SEVERAL.model_copy(update={"extent": 0.5}), 5)


def test_the_reverse_of_a_record_is_true_and_its_own_reverse(scenes: list[Scene]) -> None:
    num_captions = 0
    for scene in scenes:
        meta = scene.record()
        back = reversed_record(meta)
        kinds = {"add": "drop", "drop": "add"}
        assert [each["kind"] for each in back["differences"]] == [
            kinds.get(d["kind"], d["kind"]) for d in scene.differences
        ]
        again = reversed_record(back)
        brightness = again.pop("distractors")["brightness"], meta.pop("distractors")["brightness"]
        assert brightness[0] == pytest.approx(brightness[1], abs=1e-3)
        assert again == meta
        truth = true_differences(None, back)
        assert truth is not None
        for caption in captions_of_meta(back, None, 2, 0.0, np.random.default_rng(0)):
            num_captions += 1
            assert match_caption(caption, truth).verdicts == ("right",) * len(scene.differences)
    assert num_captions > 100


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"max_changes": 6}, "max_changes"), ({"min_changes": 3, "max_changes": 2}, "above max_changes 2"),
        ({"kinds": ["colour"]}, "color"), ({"kinds": ["add", "add"]}, "names a value twice"),
        ({"kinds": ["replace"], "shapes": ["cube"]}, "'replace', so shapes needs"),
        ({"kinds": ["color"], "colors": ["red"]}, "'color', so colors needs"),
        ({"kinds": ["text"], "shapes": ["sphere", "cylinder"]}, "only cubes show"),
        ({"max_changes": 5, "max_objects": 5}, "max_objects 5"),
        ({"max_changes": 2, "ordered_pairs": True}, "ordered_pairs is not used"),
        ({"max_changes": 2, "relation_share": 0.5}, "relation_share is not used"),
        ({"max_changes": 2, "change_types": ["add"]}, "change_types is not used"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_with_the_reason(settings: dict[str, object], word: str) -> None:
    names = {name: f"several.{name}" for name in SeveralConfig.model_fields}
    with pytest.raises(ConfigError, match=word):
        load(RenderConfig, None, {names.get(name, name): value for name, value in settings.items()})


def test_a_letter_is_upright_and_legible_from_all_four_sides() -> None:
    stage = RenderScenes(TINY.model_copy(update={"width": 64, "height": 64, "samples_per_pixel": 16}))
    target = (0.0, 0.0, 0.55)
    for side, letter in enumerate("LPEK"):
        cube = SceneObject("cube", "yellow", "rubber", "large", 0.8, 0.0, 0.0, 0.3, letter)
        angle = 0.3 + np.pi / 2 * side
        lamps = draw_scene(SEVERAL, 0)[0].views[0].lamps
        view = View((6 * float(np.cos(angle)), 6 * float(np.sin(angle)), 0.7), target, lamps, zoom=4.0)
        pixels = stage.render((cube,), view, 1)
        ids = cast((cube,), view, 64, 64)
        rows, columns = np.flatnonzero((ids == 0).any(1)), np.flatnonzero((ids == 0).any(0))
        face = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].mean(-1)
        seen = _small(np.asarray(face < 0.5 * np.percentile(face, 95), float))
        right = _fit(letter_stencil(letter), seen)
        assert right > 0.6
        assert right > max(_fit(letter_stencil(other), seen) for other in LETTERS if other != letter)
        assert right > _fit(letter_stencil(letter)[:, ::-1], seen), "not mirrored"
        if letter in "LP":
            assert right > _fit(letter_stencil(letter)[::-1], seen), "not upside down"


def _small(values: np.ndarray) -> np.ndarray:
    rows, columns = (np.linspace(0, length - 1, 16).round().astype(int) for length in values.shape)
    return values[np.ix_(rows, columns)]


def _fit(stencil: np.ndarray, seen: np.ndarray) -> float:
    return float(np.corrcoef(_small(stencil).ravel(), seen.ravel())[0, 1])


def test_pairs_have_their_masks_captions_and_images() -> None:
    stage = RenderScenes(TINY)
    for index in (0, 1, 5):
        (pair,) = stage.pairs(index)
        scene, _ = draw_scene(TINY, index)
        assert (pair.pair_id, pair.source) == (f"r0-{index:06d}", f"rendered:seed=0:scene={index}:several")
        assert (pair.change_type, pair.meta) == (
            scene.pair().change_type,
            {"scene": index, **scene.record(), "viewpoint_iou": round(scene.viewpoint_iou(), 4)},
        )
        assert len(pair.captions) == TINY.captions_per_pair
        assert pair.mask is not None
        mask = decode_image(pair.mask)[..., 0]
        assert np.array_equal((mask & MASK_BEFORE) > 0, scene.changed_pixels()[0])
        assert np.array_equal((mask & MASK_AFTER) > 0, scene.changed_pixels()[1])
        assert decode_image(pair.before).shape == decode_image(pair.after).shape == (36, 48, 3)
        assert pair.before != pair.after
    assert stage.pairs(5) == RenderScenes(TINY).pairs(5)


VIEW = View((8.0, -8.0, 6.0), (0.0, 0.0, 0.3), ())


def record(name: str, x: float, y: float, **more: str) -> dict[str, Any]:
    size, color, material, shape = name.split()
    thing = SceneObject(shape, color, material, size, 0.7 if size == "large" else 0.35, x, y, 0.0)
    return {**{key: value for key, value in asdict(thing).items() if key != "text"}, **more}


def test_what_looks_alike_is_told_by_its_side_or_not_at_all() -> None:
    left, right = record("small red metal cube", -2.0, -2.0), record("small red metal cube", 2.0, 2.0)
    gone = Difference("drop", (left,), ())
    assert on_side("left", thing_of(left), VIEW, 1.0)
    assert on_side("right", thing_of(right), VIEW, 1.0)
    captions = several_captions([gone], [left, right], [right], [VIEW, VIEW], 4, np.random.default_rng(0))
    assert len(captions) == 4
    assert all("left" in caption for caption in captions)
    near = record("small red metal cube", -1.6, -1.6)
    near_gone = Difference("drop", (near,), ())
    assert several_captions([near_gone], [near, left], [left], [VIEW, VIEW], 1, np.random.default_rng(0)) == []
    bare, written = record("large red metal cube", 0.0, 0.0), record("large red metal cube", 0.0, 0.0, text="A")
    unwritten = Difference("text", (bare,), (written,))
    assert not find_referring_options(unwritten, [bare], [written], [VIEW, VIEW]).describable


def test_a_direction_is_named_only_where_it_is_clear() -> None:
    start, end = record("small red metal cube", -2.0, -2.0), record("small red metal cube", 2.0, 2.0)
    other = record("large blue rubber sphere", 0.0, 0.0)
    moved = Difference("move", (start,), (end,))
    captions = several_captions([moved], [start, other], [end, other], [VIEW, VIEW], 8, np.random.default_rng(0))
    directed = [caption for caption in captions if "to the right" in caption]
    assert len(directed) == len(DIRECTED_MOVES)
    assert sum("from the left" in caption for caption in directed) == 2
    close = record("small red metal cube", -1.0, -2.0)
    assert (
        find_referring_options(
            Difference("move", (start,), (close,)), [start, other], [close, other], [VIEW, VIEW]
        ).moves
        == ()
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("several") / "pairs")
    render = TINY.model_copy(
        update={"num_scenes": 12, "several": SeveralConfig(max_changes=3), "val_share": 0.3, "test_share": 0.3}
    )
    run_local(*open_rendering(RenderJob(out=out, chunk_size=12, render=render)), progress=False)
    return out


def test_twincap_learns_all_objects_that_changed(folder: str) -> None:
    several = single = 0
    for row in rows(Path(folder)).values():
        meta = json.loads(row["meta"])
        truth = pair_truth(row["change_type"], row["captions"], meta, (36, 48))
        gone = [thing for thing in meta["before"] if thing not in meta["after"]]
        new = [thing for thing in meta["after"] if thing not in meta["before"]]
        assert (truth.kind == UNKNOWN) == (row["change_type"] not in CHANGE_TYPES)
        assert truth.has_scene
        for image, (side, changed) in enumerate((("before", gone), ("after", new))):
            assert truth.differs[image].tolist() == [thing in changed for thing in meta[side]]
            for number, label in enumerate(truth.parts[image]):
                kinds = [record["kind"] for record in meta["differences"] if number in record[side]]
                assert [PARTS[label]] == (kinds or ["none"])
        if max(len(gone), len(new)) > 1:
            several += 1
            assert (truth.changed == UNKNOWN).all()
        else:
            single += len(gone) + len(new) > 0
            assert [(labels != UNKNOWN).all() for labels in truth.changed] == [bool(gone), bool(new)]
    assert several >= 3
    assert single >= 2
