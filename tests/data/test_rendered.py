"""Rendered pairs: scenes keep their promises, captions are true, pixels do not depend on who renders them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from idc.config import ConfigError, load
from idc.data.images import decode_image
from idc.data.pipeline import TooManyRejects, run_local
from idc.data.rendered.captions import SYNONYMS, TEMPLATES, descriptions, sights, true_captions
from idc.data.rendered.config import JITTERS, RenderConfig, RenderJob
from idc.data.rendered.draw import UnplaceableScene, cast, draw_scene, split_of
from idc.data.rendered.render import MASK_AFTER, MASK_BEFORE, RenderScenes, open_build, scene_dict
from idc.data.rendered.scene import Change, Scene, Thing
from idc.data.store import read_table
from idc.schema import ChangePair

ROOT = Path(__file__).parents[2]
SMALL = RenderConfig(
    num_scenes=10, width=32, height=32, samples_per_pixel=4, min_objects=2, max_objects=3, jitter="mild",
    large_radius=0.9, small_radius=0.5, extent=2.0, camera_distance=9.5, min_visible_pixels=8,
)  # fmt: skip
CLEVR = RenderConfig(width=120, height=80, min_visible_pixels=12)
"""CLEVR-Change's scenes in a quarter of its size."""


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(CLEVR, index)[0] for index in range(60)]


@pytest.fixture(scope="module")
def stage() -> RenderScenes:
    return RenderScenes(SMALL)


@pytest.fixture(scope="module")
def pairs(stage: RenderScenes) -> list[ChangePair]:
    return [pair for index in range(10) for pair in stage.pairs(index)]


# ------------------------------------------------------------------------------------------------ settings


def test_every_contradiction_is_named():
    with pytest.raises(ConfigError) as caught:
        load(RenderConfig, None, {"min_objects": 5, "max_objects": 4, "small_radius": 0.8, "val_share": 0.95})
    assert len(caught.value.faults) == 3


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"jitter": "extreem"}, "extreme"),
        ({"change_types": ["colour"]}, "color"),
        ({"change_types": ["color"], "colors": ["red"]}, "two colours"),
        ({"change_types": ["drop"], "min_objects": 1}, "min_objects"),
        ({"shapes": []}, "shapes"),
        ({"colors": ["red", "red"]}, "twice"),
    ],
)
def test_a_bad_setting_is_refused_with_the_reason(settings, word):
    with pytest.raises(ConfigError, match=word):
        load(RenderConfig, None, settings)


@pytest.mark.parametrize("name", ["demo", "clevr_change", "clevr_dc"])
def test_presets_load_and_can_be_placed(name):
    path = str(ROOT / "jobs" / "configs" / "render" / f"{name}.yaml")
    render = load(RenderJob, path, {"out": "unused"}).render
    scene, _ = draw_scene(render, 3)
    assert scene.ids[0].shape == (render.height, render.width)


def test_clevr_change_preset_is_the_size_of_clevr_change():
    render = load(RenderJob, str(ROOT / "jobs/configs/render/clevr_change.yaml"), {"out": "unused"}).render
    assert (2 * render.num_scenes, render.width, render.height) == (79_606, 480, 320)
    assert (render.min_objects, render.max_objects, render.min_visible_pixels) == (3, 10, 200)


# ------------------------------------------------------------------------------------------------ scenes


def test_objects_keep_their_distance_and_are_seen(scenes):
    for scene in scenes:
        for image in range(3):
            things = scene.things(image)
            for i, a in enumerate(things):
                assert np.count_nonzero(scene.ids[image] == i) >= CLEVR.min_visible_pixels
                assert max(abs(a.x), abs(a.y)) <= CLEVR.extent
                for b in things[:i]:
                    assert np.hypot(a.x - b.x, a.y - b.y) >= a.radius + b.radius + CLEVR.min_gap


def test_exactly_the_stated_change_happens(scenes):
    for index, scene in enumerate(scenes):
        kind, old, new = scene.change.kind, scene.change.before, scene.change.after
        assert kind == CLEVR.change_types[index % 5]
        assert set(scene.before) - set(scene.after) == ({old} - {None})
        assert set(scene.after) - set(scene.before) == ({new} - {None})
        assert CLEVR.min_objects <= len(scene.before) <= CLEVR.max_objects
        if kind in ("color", "material"):
            assert getattr(old, kind) != getattr(new, kind)
            assert replace(new, **{kind: getattr(old, kind)}) == old
        if kind == "move":
            assert np.hypot(new.x - old.x, new.y - old.y) >= CLEVR.min_move
            assert replace(new, x=old.x, y=old.y) == old


def test_change_types_are_balanced(scenes):
    assert set(Counter(scene.change.kind for scene in scenes).values()) == {12}


def test_moderate_viewpoints_differ_as_in_clevr_change(scenes):
    """The official IoU file has mean 0.508 and standard deviation 0.144."""
    values = [scene.viewpoint_iou(image) for scene in scenes for image in (1, 2)]
    assert 0.42 < np.mean(values) < 0.60
    assert 0.08 < np.std(values) < 0.20


def test_jitter_grows_from_none_to_extreme():
    means = []
    for name in ("none", "mild", "moderate", "extreme"):
        config = CLEVR.model_copy(update={"jitter": name, "max_objects": 5})
        drawn = [draw_scene(config, index)[0] for index in range(8)]
        means.append(np.mean([scene.viewpoint_iou(2) for scene in drawn]))
        for scene in drawn if name == "none" else []:
            for view in scene.views[1:]:
                assert view.origin == pytest.approx(scene.views[0].origin)
                assert (view.target, view.lamps) == (scene.views[0].target, scene.views[0].lamps)
    assert means[0] == 1.0
    assert means[0] > means[1] > means[2] > means[3]


def test_extreme_camera_turns_within_its_range():
    config = CLEVR.model_copy(update={"jitter": "extreme", "max_objects": 4})
    turns = []
    for index in range(12):
        views = draw_scene(config, index)[0].views
        angles = [np.degrees(np.arctan2(v.origin[1] - v.target[1], v.origin[0] - v.target[0])) for v in views]
        turns += [abs((angles[image] - angles[0] + 180) % 360 - 180) for image in (1, 2)]
    assert max(turns) <= JITTERS["extreme"].azimuth + 1e-6
    assert max(turns) > 30


@pytest.mark.parametrize("count", [500, 2750])
def test_split_shares_hold_within_each_change_type(count):
    config = RenderConfig(num_scenes=count, val_share=0.08, test_share=0.12)
    table = Counter((index % 5, split_of(config, index)) for index in range(count))
    for kind in range(5):
        assert table[kind, "test"] == pytest.approx(0.12 * count / 5, abs=2)
        assert table[kind, "val"] == pytest.approx(0.08 * count / 5, abs=2)


def test_split_of_a_scene_does_not_depend_on_the_number_of_scenes():
    few, many = RenderConfig(num_scenes=10), RenderConfig(num_scenes=10_000)
    assert [split_of(few, i) for i in range(10)] == [split_of(many, i) for i in range(10)]


def test_impossible_settings_end_with_advice():
    config = RenderConfig(width=64, height=64, min_objects=12, max_objects=12, extent=0.8, min_visible_pixels=1)
    with pytest.raises(UnplaceableScene, match="raise extent"):
        draw_scene(config, 0)


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


def test_cast_hides_what_is_behind():
    scene, _ = draw_scene(SMALL, 0)
    view = scene.views[0]
    toward = np.array(view.origin[:2]) / np.linalg.norm(view.origin[:2])
    front = Thing("cube", "red", "metal", "large", 0.9, *(float(v) for v in toward * 1.5), 0.0)
    behind = Thing("sphere", "red", "metal", "small", 0.3, *(float(v) for v in -toward), 0.0)
    assert set(np.unique(cast((behind, front), view, 64, 64))) == {-1, 1}
    assert set(np.unique(cast((behind,), view, 64, 64))) == {-1, 0}


# ------------------------------------------------------------------------------------------------ captions

WORDS = {
    "size": {"large": "large", "big": "large", "small": "small", "tiny": "small"},
    "color": {c: c for c in ["gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"]},
    "material": {"rubber": "rubber", "matte": "rubber", "metal": "metal", "metallic": "metal", "shiny": "metal"},
    "shape": {"sphere": "sphere", "ball": "sphere", "cube": "cube", "block": "cube", "cylinder": "cylinder"},
}
NOUNS = "sphere|ball|cube|block|cylinder|object|thing"
ADJECTIVES = "|".join([*WORDS["size"], *WORDS["color"], *WORDS["material"]])
NOUN_PHRASE = rf"((?:(?:{ADJECTIVES}) )*(?:{NOUNS}))"
DESCRIPTION = re.compile(rf"\b{NOUN_PHRASE}(?: that is ([a-z ]+?) the {NOUN_PHRASE})?")


def fits(thing: Thing, phrase: str) -> bool:
    """Whether every word of a noun phrase is true of an object."""
    for word in phrase.split():
        kind = next((kind for kind, words in WORDS.items() if word in words), None)
        if kind is not None and getattr(thing, kind) != WORDS[kind][word]:
            return False
    return True


def stands(a: Thing, relation: str, b: Thing, view) -> bool:
    """A relation read in camera coordinates: to which side of b, or how much nearer, a is."""
    forward = np.subtract(view.target, view.origin)[:2]
    forward = forward / np.linalg.norm(forward)
    offset = np.array([a.x - b.x, a.y - b.y])
    depth, side = float(offset @ forward), float(offset[0] * forward[1] - offset[1] * forward[0])
    if "left" in relation:
        return side < 0
    if "right" in relation:
        return side > 0
    return depth < 0 if relation == "in front of" else depth > 0


def named(caption: str, things: tuple[Thing, ...], view) -> list[Thing]:
    """The objects that the description in a caption fits, read by a parser that knows nothing of how it was made."""
    match = DESCRIPTION.search(caption)
    assert match, caption
    phrase, relation, anchor_phrase = match.groups()
    found = [thing for thing in things if fits(thing, phrase)]
    if relation is None:
        return found
    anchors = [thing for thing in things if fits(thing, anchor_phrase)]
    assert len(anchors) == 1, f"{caption}: {len(anchors)} second objects"
    return [thing for thing in found if thing is not anchors[0] and stands(thing, relation, anchors[0], view)]


@pytest.mark.parametrize("jitter", ["moderate", "extreme"])
def test_captions_name_the_changed_object_and_no_other(jitter):
    from idc.data.rendered.captions import change_captions

    config = CLEVR.model_copy(update={"jitter": jitter, "relation_share": 0.5, "min_objects": 5})
    relational = 0
    for index in range(60):
        scene, rng = draw_scene(config, index)
        change = scene.change
        captions = change_captions(scene, 8, config.relation_share, rng)
        assert len(set(captions)) == 8
        for caption in captions:
            relational += " that is " in caption
            if change.before is not None:
                assert named(caption, scene.before, scene.views[0]) == [change.before], caption
            if change.kind in ("add", "move"):
                assert named(caption, scene.after, scene.views[1]) == [change.after], caption
            if change.kind in ("color", "material"):
                last = caption.split()[-1]
                assert WORDS[change.kind][last] == getattr(change.after, change.kind), caption
    assert relational > 60


def test_captions_look_like_clevr_change():
    from idc.data.rendered.captions import change_captions, no_change_captions

    vocabulary, longest = set(), 0
    for index in range(80):
        scene, rng = draw_scene(CLEVR, index)
        for caption in change_captions(scene, 6, 0.25, rng) + no_change_captions(6, rng):
            assert re.fullmatch(r"[a-z]+( [a-z]+)*", caption), caption
            vocabulary |= set(caption.split())
            longest = max(longest, len(caption.split()))
    assert 65 <= len(vocabulary) <= 85
    assert longest <= 24


def test_every_type_has_enough_templates():
    assert all(len(set(templates)) == 8 for templates in TEMPLATES.values())


def twin_scene(*others: Thing) -> tuple[Change, tuple[Thing, ...], tuple[Thing, ...], tuple]:
    """A small red cube that turns blue, among other objects."""
    cube = Thing("cube", "red", "rubber", "small", 0.35, 0.0, 0.0, 0.0)
    blue = replace(cube, color="blue")
    return Change("color", cube, blue), (cube, *others), (blue, *others), draw_scene(SMALL, 0)[0].views[:2]


def test_an_ambiguous_object_is_described_by_a_relation():
    view = draw_scene(SMALL, 0)[0].views[0]
    (right_x, right_y), _ = view.ground_axes
    at = lambda d: {"x": d * right_x, "y": d * right_y}  # noqa: E731
    ball = Thing("sphere", "green", "metal", "large", 0.7, **at(1.5), turn=0.0)
    twin = Thing("cube", "red", "rubber", "small", 0.35, **at(3.0), turn=0.0)
    plain, relational = descriptions(*sights(*twin_scene(ball, twin)))
    assert plain == []
    assert {d.relation for d in relational} == {"left"}
    assert {d.anchor for d in relational} == {ball}


def test_a_scene_in_which_nothing_is_unique_is_not_describable():
    twins = [Thing("cube", "red", "rubber", "small", 0.35, float(x), 0.0, 0.0) for x in (-2, 2)]
    assert descriptions(*sights(*twin_scene(*twins))) == ([], [])


def test_a_relation_that_the_other_view_denies_is_not_used():
    change, before, after, (first, _) = twin_scene(Thing("sphere", "green", "metal", "large", 0.7, 1.5, 0.5, 0.0))
    opposite = replace(first, origin=(-first.origin[0], -first.origin[1], first.origin[2]))
    assert descriptions(*sights(change, before, after, (first, first)))[1]
    assert descriptions(*sights(change, before, after, (first, opposite)))[1] == []


# ------------------------------------------------------------------------------------------------ pairs


def test_pairs_are_what_the_scene_says(pairs):
    assert [p.pair_id for p in pairs[:4]] == ["r0-000000-s", "r0-000000-n", "r0-000001-s", "r0-000001-n"]
    assert Counter(p.change_type for p in pairs) == {
        "color": 2,
        "material": 2,
        "add": 2,
        "drop": 2,
        "move": 2,
        "none": 10,
    }
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


def test_the_truth_is_that_of_the_scene(pairs):
    for number, pair in enumerate(pairs):
        told = true_captions(pair.change_type, pair.meta["before"], pair.meta["after"])
        assert len(told) == len(TEMPLATES[pair.change_type])
        if pair.change_type == "none":
            continue
        change = draw_scene(SMALL, number // 2)[0].change
        thing = change.before or change.after
        assert all(f"{thing.size} {thing.color} {thing.material} {thing.shape}" in caption for caption in told)
        if pair.change_type in ("color", "material"):
            value = getattr(change.after, pair.change_type)
            assert all(caption.endswith(value) for caption in told)
            assert any(re.search(rf"\b({'|'.join(SYNONYMS.get(value, [value]))})$", c) for c in pair.captions)


def test_mask_marks_the_changed_object_in_both_images(pairs):
    for index, (changed, same) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        scene, _ = draw_scene(SMALL, index)
        mask = decode_image(changed.mask)[..., 0]
        assert set(np.unique(mask)) <= {0, MASK_BEFORE, MASK_AFTER, MASK_BEFORE + MASK_AFTER}
        assert (mask & 1 == 1).sum() == scene.changed_pixels(0).sum()
        assert (mask >= MASK_AFTER).sum() == scene.changed_pixels(1).sum()
        assert (mask == 0).any()
        assert mask.any()
        assert not decode_image(same.mask).any()


def test_a_recoloured_object_has_its_colours():
    config = SMALL.model_copy(update={"change_types": ("color",), "colors": ("red", "blue"), "materials": ("rubber",)})
    stage = RenderScenes(config)
    for index in range(4):
        scene, _ = draw_scene(config, index)
        pair, _ = stage.pairs(index)
        for image, data in ((0, pair.before), (1, pair.after)):
            red, _, blue = decode_image(data)[scene.changed_pixels(image)].mean(0)
            color = scene.change.before.color if image == 0 else scene.change.after.color
            assert (red > blue + 15) if color == "red" else (blue > red + 15)


def test_metal_is_not_rubber(stage):
    """Metal mirrors: its brightest spot stands out of its mean more than that of rubber."""
    stage = RenderScenes(SMALL.model_copy(update={"samples_per_pixel": 36, "width": 64, "height": 64}))
    scene, _ = draw_scene(SMALL, 0)
    contrast = {}
    for material in ("rubber", "metal"):
        ball = Thing("sphere", "purple", material, "large", 0.9, 0.0, 0.0, 0.0)
        pixels = stage.render((ball,), scene.views[0], 0)[cast((ball,), scene.views[0], 64, 64) == 0].mean(-1)
        contrast[material] = np.percentile(pixels, 98) / np.median(pixels)
    assert contrast["metal"] > 1.3 * contrast["rubber"]


def test_a_pair_is_the_same_whatever_was_rendered_before(stage, pairs):
    again = RenderScenes(SMALL)
    for index in (7, 2):
        assert again.pairs(index) == (pairs[2 * index], pairs[2 * index + 1])
        assert stage.pairs(index) == (pairs[2 * index], pairs[2 * index + 1])


def test_a_pair_is_the_same_in_another_process(pairs):
    code = (
        "import sys, json, hashlib\n"
        "from idc.data.rendered.config import RenderConfig\n"
        "from idc.data.rendered.render import RenderScenes\n"
        "stage = RenderScenes(RenderConfig.model_validate_json(sys.argv[1]))\n"
        "print(json.dumps([[hashlib.sha256(p.before + p.after + p.mask).hexdigest(), list(p.captions)]"
        " for p in stage.pairs(7)]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, SMALL.model_dump_json()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    mine = [[hashlib.sha256(p.before + p.after + p.mask).hexdigest(), list(p.captions)] for p in pairs[14:16]]
    assert json.loads(run.stdout) == mine


def test_another_seed_is_another_scene(pairs):
    other, _ = draw_scene(SMALL.model_copy(update={"seed": 1}), 0)
    assert other.before != draw_scene(SMALL, 0)[0].before


# ------------------------------------------------------------------------------------------------ the job


def job(out: Path, **render: object) -> RenderJob:
    return RenderJob(out=str(out), chunk_size=3, render=SMALL.model_copy(update={"num_scenes": 7} | render))


def test_a_folder_is_built_once_and_holds_the_pairs(tmp_path, pairs):
    manifest = run_local(*open_build(job(tmp_path)), progress=False)
    assert (manifest.num_rows, manifest.num_rejected, len(manifest.parts)) == (14, 0, 3)
    rows = read_table(str(tmp_path)).to_pylist()
    assert [ChangePair.from_row(row) for row in rows] == pairs[:14]
    folder, _, _ = open_build(job(tmp_path))
    assert folder.complete
    with pytest.raises(ValueError, match="overwrite"):
        open_build(job(tmp_path, seed=5))


def test_a_scene_that_cannot_be_placed_is_rejected(tmp_path):
    crowded = job(tmp_path, num_scenes=2, min_objects=12, max_objects=12, extent=0.5)
    with pytest.raises(TooManyRejects, match="2 x unplaceable scene"):
        run_local(*open_build(crowded), progress=False)


@pytest.mark.ray
def test_two_workers_render_the_same_folder(tmp_path, ray_session, pairs):
    from cluster.data import run

    run(*open_build(job(tmp_path)), progress=False)
    rows = read_table(str(tmp_path)).to_pylist()
    assert [ChangePair.from_row(row) for row in rows] == pairs[:14]


def test_the_command_renders(tmp_path):
    settings = [f"render.{k}={v}" for k, v in SMALL.model_copy(update={"num_scenes": 2}).model_dump().items()
                if k in ("num_scenes", "width", "height", "samples_per_pixel", "min_visible_pixels", "max_objects",
                         "min_objects")]  # fmt: skip
    command = [sys.executable, str(ROOT / "jobs/render.py"), "--local", f"out={tmp_path}/pairs", *settings]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=_environment())
    assert run.returncode == 0, run.stderr
    assert "4 pairs" in run.stdout
    bad = subprocess.run(
        [*command, "render.jitter=wild"], cwd=tmp_path, capture_output=True, text=True, env=_environment()
    )
    assert bad.returncode == 2
    assert "render.jitter" in bad.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
