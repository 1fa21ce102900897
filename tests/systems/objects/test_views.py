"""What differs between two views of real pictures, and what only seems to: another background, other tones, a thing
that moves before a camera that stands still."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import cv2
import numpy as np
import pytest

from idc.captioning.objects_config import ObjectsConfig
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.comparison import compare
from idc.systems.objects.frames import exposed
from tests.systems.objects.test_frames import PICTURES

TEXTURED = [name for name, image in PICTURES.items() if cv2.Laplacian(image[90:250, 120:360], cv2.CV_32F).std() > 12]
KINDS = {
    "as it is": lambda image: image,
    "dark": lambda image: (0.4 * image).astype(np.uint8),
    "foggy": lambda image: (0.6 * image + 90).astype(np.uint8),
    "grey": lambda image: np.repeat(image.mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2),
    "other size": lambda image: cv2.resize(image, None, fx=0.7, fy=0.7, interpolation=cv2.INTER_AREA),
    "JPEG": lambda image: cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])[1], 1),
}


def saturated(factor: float, image: np.ndarray) -> np.ndarray:
    grey = image @ [[0.299], [0.587], [0.114]]
    return (grey + factor * (image - grey)).clip(0, 1)


TONES = {
    "gamma 0.5": lambda image: image**0.5,
    "gamma 2": lambda image: image**2,
    "blue gamma 1.8": lambda image: image ** [1, 1, 1.8],
    **{f"saturation {factor}": partial(saturated, factor) for factor in (0.5, 0.75, 1.25, 1.6)},
}


def cut_out(picture: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A picture's middle on another one."""
    height, width = picture.shape[:2]
    mask = cv2.ellipse(np.zeros((height, width), np.uint8), (width // 2, height * 2 // 3),
                       (width // 4, height // 2), 0, 0, 360, 1, -1)  # fmt: skip
    return np.where(mask[..., None] > 0, picture, cv2.resize(other, (width, height)))


@pytest.mark.parametrize("offset", range(2))
def test_another_background_is_said_and_two_different_pictures_are_not_one(offset: int) -> None:
    assert len(TEXTURED) >= 20
    replaced = 0
    for index, (name, other) in enumerate(pairwise([*TEXTURED, TEXTURED[0]])):
        change = list(KINDS.values())[(index + 3 * offset) % len(KINDS)]
        background = cv2.flip(PICTURES[other], 0)
        images = (PICTURES[name], cut_out(PICTURES[name], background), background)
        before, edited, different = (exposed(change(image))[0] for image in images)
        replaced += compare(before, edited).replaced
        assert not compare(before, different).replaced, f"{name} and {other}"
    assert replaced >= 0.6 * len(TEXTURED)  # others are as plain or as dark as what replaced them


def test_the_background_is_a_claim_and_what_stayed_is_named_if_it_is_known() -> None:
    before, after = PICTURES["coffee"], cut_out(PICTURES["coffee"], PICTURES["rocket"])
    [description] = ObjectsCaptioner(ObjectsConfig(mode="photographs")).describe([before], [after])
    claim = (description.claims or ())[0]
    assert (claim.kind, claim.object, description.verdict) == ("changed", "background", "changed")
    assert description.best.caption.startswith("The background changed")
    assert description.best.caption.endswith(" is the same.")


@pytest.mark.parametrize("tone", TONES)
def test_other_tones_are_no_change(tone: str) -> None:
    pictures = [image / 255 for image in PICTURES.values()]
    tones = [(255 * TONES[tone](image)).round().astype(np.uint8) for image in pictures]
    regions = [len(compare(image, other).regions) for image, other in zip(PICTURES.values(), tones, strict=True)]
    assert np.mean(np.array(regions) == 0) >= 0.75


@pytest.mark.parametrize("name", TEXTURED)
def test_a_thing_that_turns_before_a_plain_wall_is_no_moving_camera(name: str) -> None:
    x, y = np.meshgrid(np.arange(320, dtype=np.float32), np.arange(240, dtype=np.float32))
    mask = cv2.ellipse(np.zeros((240, 320), np.float32), (160, 130), (60, 75), 0, 0, 360, 1, -1)
    picture = cv2.resize(PICTURES[name], (320, 240), interpolation=cv2.INTER_AREA).astype(np.float32)
    before = 150 + (picture - 150) * cv2.GaussianBlur(mask, (0, 0), 8)[..., None]
    across, down = x - 6 * np.sin(y / 25) * np.cos((x - 160) / 40), y + 3 * np.sin(x / 20)
    after = cv2.remap(before, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    assert not compare(before.astype(np.uint8), after.astype(np.uint8)).moved


def from_beside(back: np.ndarray, front: np.ndarray, behind: int, before: int) -> np.ndarray:
    """A thing before a picture, from a place at which they are displaced by different distances."""
    height, width = 300, 400
    scene = cv2.resize(back, (560, 420))[60 : 60 + height, 80 + behind : 80 + behind + width].copy()
    mask = cv2.ellipse(np.zeros((height, width), np.uint8), (width // 2 - before, 200), (80, 150), 0, 0, 360, 1, -1)
    thing = cv2.warpAffine(
        cv2.resize(front, (width, height)), np.array([[1.0, 0, -before], [0, 1, 0]]), (width, height)
    )
    return np.where(mask[..., None] > 0, thing, scene)


@pytest.mark.parametrize(("back", "front"), [("table_00000", "fruit_042"), ("fruit_042", "road_00208")])
def test_what_another_place_of_the_camera_uncovers_is_no_change(back: str, front: str) -> None:
    images = PICTURES[back], PICTURES[front]
    before, *afters = (from_beside(*images, *shift) for shift in ((0, 0), (6, 14), (10, 30), (20, 50)))
    described = ObjectsCaptioner(ObjectsConfig(detector="none", text=False)).describe([before] * len(afters), afters)
    assert "changed" not in [description.verdict for description in described]


def from_nearer(back: np.ndarray, fronts: list[np.ndarray], step: float) -> np.ndarray:
    """Things before a picture, from ``step`` of the way to it: what is near grows more, and moves out of the view."""
    height, width = 300, 400
    middle = np.array([width / 2, height / 2])

    def grown(image: np.ndarray, distance: float) -> np.ndarray:
        scale = distance / (distance - step)
        warp = np.column_stack([scale * np.eye(2), (1 - scale) * middle])
        return cv2.warpAffine(image, warp, (width, height), borderMode=cv2.BORDER_REFLECT)

    view = grown(cv2.resize(back, (width, height)), 1.0)
    for front, centre, distance in zip(fronts, [(70, 180), (320, 210), (190, 230)], [0.9, 0.7, 0.6], strict=True):
        mask = cv2.ellipse(np.zeros((height, width), np.uint8), centre, (45, 70), 0, 0, 360, 1, -1)
        thing = grown(cv2.resize(front, (width, height)), distance)
        view = np.where(grown(mask, distance)[..., None] > 0, thing, view)
    return view


def test_what_grows_as_the_camera_comes_nearer_is_no_change() -> None:
    pictures, alleged = [PICTURES[name] for name in TEXTURED], 0
    for index, back in enumerate(pictures):
        fronts = [pictures[(index + step) % len(pictures)] for step in (3, 7, 11)]
        before = from_nearer(back, fronts, 0.0)
        after = 0.85 * cv2.GaussianBlur(from_nearer(back, fronts, 0.2), (0, 0), 1.2)  # in motion, in other light
        comparison = compare(before, after.astype(np.uint8))
        alleged += comparison.comparable and bool(comparison.regions) and not comparison.moved
    assert alleged <= 0.1 * len(TEXTURED)


@pytest.mark.parametrize("pair", [("fruit_014", "fruit_028"), ("fruit_014", "fruit_100"), ("road_00208", "road_00260")])
def test_things_that_moved_over_a_plain_ground_are_no_moving_camera(pair: tuple[str, str]) -> None:
    comparison = compare(*(PICTURES[name] for name in pair))
    assert comparison.regions
    assert not comparison.moved
