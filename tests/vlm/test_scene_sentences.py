"""Sentences about rendered scenes are true: held against the objects' visible pixels and the scenes themselves."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from idc.data.rendered.config import RenderConfig
from idc.data.rendered.draw import draw_scene
from idc.data.rendered.scene import CHANGED, Scene
from idc.vlm.scene_sentences import (
    ABOUT_AN_IMAGE,
    COLUMNS,
    LISTED,
    NUMBERS,
    ROWS,
    SeenObject,
    list_one,
    listing_hits,
    moved,
    named_change,
    object_listing,
    seen_objects,
    which_image,
)

CONFIG = RenderConfig(num_scenes=40, width=64, height=48, min_objects=2, max_objects=4, min_visible_pixels=10)
NAME = r"(?:small|large) \w+ (?:rubber|metal) (?:cube|sphere|cylinder)"


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(CONFIG, index)[0] for index in range(40)]


def objects_of(scene: Scene, image: int) -> list[SeenObject]:
    record = scene.record((image, image))
    return seen_objects(record["before"], record["views"][0], scene.ids[image].shape)


def names(scene: Scene, image: int) -> list[str]:
    return [f"{thing.size} {thing.color} {thing.material} {thing.shape}" for thing in scene.things(image)]


def test_a_listing_is_scored_entry_by_entry() -> None:
    truth = "back left: small red metal cube, front right: large blue rubber sphere"
    right = listing_hits(truth, truth)
    assert right == {**dict.fromkeys(LISTED, 2), "objects": 2}
    shape = listing_hits(truth, truth.replace("cube", "cylinder"))
    assert shape == {**right, "object": 1, "shape": 1}
    assert listing_hits(truth, "back left: small red metal cube") == {**dict.fromkeys(LISTED, 1), "objects": 2}
    assert listing_hits(truth, "a sentence, of another kind") == {**dict.fromkeys(LISTED, 0), "objects": 2}


def test_objects_are_where_their_pixels_are(scenes: list[Scene]) -> None:
    """The middle of the visible pixels, of objects that are mostly visible; also in mirrored and shifted images."""
    far: list[float] = []
    for scene in scenes:
        height, width = scene.ids[0].shape
        for mirrored, shift in ((False, (0.0, 0.0)), (True, (0.0, 0.0)), (True, (4 / width, -3 / height))):
            seen = {shown.name: shown for shown in moved(objects_of(scene, 0), mirrored, shift)}
            ids = scene.ids[0][:, ::-1] if mirrored else scene.ids[0]
            for number, name in enumerate(names(scene, 0)):
                if names(scene, 0).count(name) > 1:
                    continue
                y, x = np.argwhere(ids == number).mean(axis=0) + 0.5
                middle = np.array([x / width + shift[0], y / height + shift[1]])
                far.append(float(np.abs(middle - (seen[name].x, seen[name].y)).max()))
    assert len(far) > 250
    assert np.quantile(far, 0.9) < 0.05, "nearly all within three pixels: others are partly hidden"


def test_positions_are_the_thirds_of_the_image() -> None:
    at = [SeenObject(x, y, "small", "red", "metal", "cube").position for x, y in ((0.1, 0.1), (0.5, 0.45), (0.9, 0.9))]
    assert at == ["back left", "center middle", "front right"]
    assert {name for _, name in ROWS} == {"back", "center", "front"}
    assert {name for _, name in COLUMNS} == {"left", "middle", "right"}


def test_mirrored_objects_change_sides() -> None:
    cube = SeenObject(0.1, 0.1, "small", "red", "metal", "cube")
    (other,) = moved([cube], mirrored=True)
    assert (cube.position, other.position) == ("back left", "back right")


def test_a_listing_names_every_object_from_left_to_right(scenes: list[Scene]) -> None:
    for scene in scenes:
        seen = objects_of(scene, 0)
        said = re.findall(rf"(\w+ \w+): ({NAME})", object_listing(seen).answer)
        assert Counter(name for _, name in said) == Counter(names(scene, 0))
        ahead = [next(shown.x for shown in seen if (shown.position, shown.name) == entry) for entry in said]
        assert ahead == sorted(ahead)


def test_answers_about_an_image_are_true(scenes: list[Scene]) -> None:
    rng = np.random.default_rng(0)
    kinds: Counter[str] = Counter()
    for scene in scenes:
        seen = objects_of(scene, 0)
        for ask in ABOUT_AN_IMAGE * 4:
            question, answer = ask(seen, rng)
            kinds[question.split()[0] + (" nothing" if answer == "nothing" else "")] += 1
            if match := re.fullmatch(r"What is at the (\w+ \w+)\?", question):
                there = [shown.name for shown in seen if shown.position == match[1]]
                assert re.findall(NAME, answer) == there
            elif match := re.fullmatch(rf"Where is the ({NAME})\?", question):
                assert re.findall(r"at the (\w+ \w+)", answer) == [
                    shown.position for shown in seen if shown.name == match[1]
                ]
            else:
                match = re.fullmatch(r"How many (?:objects|(\w+) objects|(\w+)s) are there\?", question)
                assert match is not None, question
                words = [name.split() for name in names(scene, 0)]
                value = match[1] or match[2]
                expected = len(words) if value is None else sum(value in described for described in words)
                assert answer == NUMBERS[expected], question
    assert set(kinds) == {"What", "What nothing", "Where", "How"}


def test_answers_about_two_images_are_true(scenes: list[Scene]) -> None:
    rng = np.random.default_rng(0)
    answers: Counter[str] = Counter()
    for scene in scenes:
        both = objects_of(scene, 0), objects_of(scene, 1)
        for _ in range(6):
            question, answer = which_image(*both, rng)
            answers[answer] += 1
            (name,) = re.findall(NAME, question)
            shown = {f"the {word} image" for i, word in enumerate(("first", "second")) if name in names(scene, i)}
            assert shown == ({"the first image", "the second image"} if answer == "both" else {answer} - {"none"})
        question, answer = list_one(*both, rng)
        number = 0 if "the first image" in question else 1
        assert Counter(re.findall(NAME, answer)) == Counter(names(scene, number))
    assert set(answers) == {"the first image", "the second image", "both", "none"}


def test_the_named_change_is_that_of_the_scene(scenes: list[Scene]) -> None:
    kinds = set()
    for scene in scenes:
        record, change = scene.record(CHANGED), scene.change
        answer = named_change(change.kind, record["before"], record["after"]).answer
        shown = change.before or change.after
        assert shown is not None
        kinds.add(change.kind)
        end = f", {getattr(change.after, change.kind)}" if change.kind in ("color", "material") else ""
        assert answer == f"{change.kind}: {shown.size} {shown.color} {shown.material} {shown.shape}{end}"
        assert named_change("none", record["before"], record["before"]).answer == "none"
    assert kinds == {"color", "material", "add", "drop", "move"}
