"""Things that moved a little, on real pictures: told from things that came and from others at their place."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from idc.captioning.contract import Claim
from idc.captioning.objects_config import ObjectsConfig
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.comparison import compare
from idc.systems.objects.wording import sentence_of
from tests.systems.objects.test_frames import PICTURES
from tests.systems.objects.test_regions import ground

SIDE = 73
PETALS = cv2.resize(load_sample_image("flower.jpg")[100:300, 150:350], (SIDE, SIDE))
ROOFS = cv2.resize(load_sample_image("china.jpg")[150:350, 50:250], (SIDE, SIDE))


def reduced(image: np.ndarray) -> np.ndarray:
    scale = 512 / max(image.shape[:2])
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def with_thing(image: np.ndarray, thing: np.ndarray, to_the_right: int = 0) -> np.ndarray:
    """A round thing left of the centre."""
    centre = image.shape[1] // 3 + to_the_right, image.shape[0] // 2
    mask = cv2.circle(np.zeros(image.shape[:2], np.float32), centre, SIDE // 2, 1.0, -1)
    mask = cv2.GaussianBlur(mask, (0, 0), 1.0)[..., None]
    layer = np.zeros_like(image)
    left, top = (at - SIDE // 2 for at in centre)
    layer[top : top + SIDE, left : left + SIDE] = thing
    return np.asarray((image * (1 - mask) + layer * mask).astype(np.uint8))


@pytest.mark.parametrize("name", PICTURES)
def test_what_moved_is_told_from_what_came_and_from_another_thing(name: str) -> None:
    picture = reduced(PICTURES[name])
    thing = with_thing(picture, PETALS)
    assert compare(thing, with_thing(picture, PETALS, to_the_right=16)).displaced == [True]
    assert not any(compare(picture, thing).displaced)
    assert not any(compare(thing, picture).displaced)
    assert not any(compare(with_thing(picture, ROOFS), thing).displaced)


def test_what_also_became_another_colour_has_not_only_moved() -> None:
    picture = reduced(PICTURES["road_00332"])
    [changed] = compare(with_thing(picture, PETALS), with_thing(picture, PETALS[..., ::-1], to_the_right=16)).displaced
    assert not changed


def test_a_dark_thing_without_an_edge_that_left_a_rough_ground_has_not_moved() -> None:
    """The flow takes other parts of the ground to where it was, which are as bright and look otherwise."""
    rough, other = (0.3 * (ground(seed, 480, 640).astype(np.float32) - 130) for seed in (0, 5))
    mask = cv2.circle(np.zeros(rough.shape[:2], np.float32), (160, 240), 60, 1.0, -1)
    mask = cv2.GaussianBlur(mask, (0, 0), 20)[..., None]
    empty, thing = rough + 130, other + np.array([50.0, 60.0, 70.0])
    before = (empty * (1 - mask) + thing * mask).clip(0, 255).astype(np.uint8)
    assert compare(before, empty.clip(0, 255).astype(np.uint8)).displaced == [False]


def test_it_is_said_to_have_moved() -> None:
    picture = reduced(PICTURES["road_00332"])
    [description] = ObjectsCaptioner(ObjectsConfig(mode="photographs", text=False)).describe(
        [with_thing(picture, PETALS)], [with_thing(picture, PETALS, to_the_right=16)]
    )
    assert description.best.caption == "Something in the middle moved."
    assert description.verdict == "changed"
    [claim] = description.claims or ()
    assert (claim.kind, claim.object, claim.aspect, claim.before, claim.after) == (
        "moved",
        "region",
        "position",
        None,
        None,
    )


def test_clauses_of_things_that_moved() -> None:
    def moved(name: str, where: str) -> Claim:
        return Claim("moved", name, 1, where, (0, 0, 9, 9), (3, 0, 12, 9), 1.0, aspect="position")

    person, region = moved("person", "on the left"), moved("region", "at the top")
    assert sentence_of([person, person], explained=True) == "The person on the left moved.", "two of one place"
    assert (
        sentence_of([region, person], explained=False)
        == "The person on the left moved; something else at the top moved."
    )
    others = [region, moved("region", "in the middle")]
    assert sentence_of(others, explained=False) == "Two things at the top and in the middle moved."


@pytest.mark.parametrize(("degrees", "side"), [(9, "left"), (-4, "right")])
def test_a_page_that_was_scanned_again_is_turned_and_nothing_on_it_is_another_word(degrees: float, side: str) -> None:
    page = Image.new("RGB", (640, 420), "white")
    text = "\n".join(
        f"{word.capitalize()} of the {word}s is {number}." for number, word in enumerate(sorted(PICTURES)[:14])
    )
    ImageDraw.Draw(page).text((30, 20), text, fill="black", font=ImageFont.load_default(22))
    turned = page.rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    [description] = ObjectsCaptioner(ObjectsConfig()).describe([np.array(page)], [np.array(turned)])
    assert f"The image after is turned by {abs(degrees)} degrees to the {side}." in description.best.caption
    assert description.verdict == "unsure"
    assert not description.claims


def test_a_person_who_turned_the_head_moved() -> None:
    before = PICTURES["astronaut"]
    rows, columns = np.mgrid[0 : before.shape[0], 0 : before.shape[1]].astype(np.float32)
    bump = 24 * np.exp(-(((columns - 225) / 50) ** 2) - ((rows - 130) / 60) ** 2)
    after = cv2.remap(before, columns + bump, rows, cv2.INTER_LINEAR)
    [description] = ObjectsCaptioner(ObjectsConfig(mode="photographs", text=False)).describe([before], [after])
    assert description.best.caption == "The person over most of it moved."
