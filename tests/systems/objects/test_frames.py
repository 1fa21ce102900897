"""Frames that show nothing, pictures in colours that no lamp makes, and dark ones: said as such, of real pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import skimage.data

import serve
from idc.captioning.contract import SearchOptions
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.comparison import compare
from idc.systems.objects.frames import dead_frame, other_colours
from idc.systems.objects.wording import look_sentence
from tests.systems.objects.test_text import compressed
from tests.systems.objects.test_text import noisy as with_noise

EXAMPLES = Path(serve.__file__).parent / "web" / "examples" / "photographs"
PICTURES = {
    **{path.stem: decode_image(path.read_bytes()) for path in sorted(EXAMPLES.glob("*.jpg"))},
    **{name: getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket")},
}
BEFORE, AFTER = PICTURES["bottle_00100"], PICTURES["bottle_00260"]
OTHER_WAY = {
    "The image after is less sharp.": "The image after is sharper.",
    "The image after is noisy.": "The image after is less noisy.",
}
Change = Callable[[np.ndarray], np.ndarray]


def plain(*colour: int) -> Change:
    return lambda image: np.full_like(image, 0) + np.array(colour, np.uint8)


def noisy(image: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).normal(4, 3, image.shape).clip(0, 255).astype(np.uint8)


def named_black(image: np.ndarray) -> np.ndarray:
    """A camera without a picture still writes its name and the time."""
    dark = np.zeros_like(image)
    return cv2.putText(dark, "CAM 1 12:30", (5, 30), cv2.FONT_HERSHEY_SIMPLEX, image.shape[1] / 900, (255,) * 3, 2)


def half(image: np.ndarray) -> np.ndarray:
    middle = int(0.4 * len(image))
    return np.concatenate([image[:middle], np.repeat(image[middle : middle + 1], len(image) - middle, axis=0)])


DEAD: dict[str, tuple[Change, str]] = {
    "black": (plain(0, 0, 0), "image {} is black"), "white": (plain(255, 255, 255), "image {} is white"),
    "grey": (plain(128, 128, 128), "image {} is grey"), "green": (plain(0, 135, 0), "image {} is green"),
    "blue": (plain(0, 0, 255), "image {} is blue"), "noise of the sensor": (noisy, "image {} is black"),
    "with a name": (named_black, "image {} is black"),
    "one row": (lambda image: np.repeat(image[90:91], len(image), axis=0), "image {} is "),
    "one column": (lambda image: np.repeat(image[:, 90:91], image.shape[1], axis=1), "image {} is "),
    "from a row on": (half, "lower part of the image {} is "),
}  # fmt: skip
SMEARED = ("one row", "one column", "from a row on")


@pytest.mark.parametrize("kind", DEAD)
def test_a_frame_that_shows_nothing_is_said_of_every_picture(kind: str) -> None:
    change, words = DEAD[kind]
    for name, picture in PICTURES.items():
        for role, pair in (("after", (picture, change(picture))), ("before", (change(picture), picture))):
            said = dead_frame(*pair) or ""
            assert said.startswith(f"The {words.format(role)}"), name
            assert said.endswith(("smeared.", " grey.", " white.")) or kind not in SMEARED, "a row may have one colour"


def dark(image: np.ndarray) -> np.ndarray:
    return (image * (20 / image.mean())).astype(np.uint8)


def test_pictures_that_show_something_are_not_dead() -> None:
    for picture in PICTURES.values():
        assert dead_frame(picture, np.roll(picture, 9, axis=1)) is None
        assert dead_frame(picture, dark(picture)) is None
        assert dead_frame(dark(picture), np.zeros_like(picture)) == "The image after is black."
    page = np.full((400, 600, 3), 255, np.uint8)
    assert dead_frame(page, cv2.rectangle(page.copy(), (40, 40), (300, 90), (200, 0, 0), -1)) is None, "a drawn thing"
    assert dead_frame(page, np.zeros_like(page)) is None, "neither shows anything: another colour is what changed"


def grey(image: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


LOOKS: dict[str, tuple[Change, tuple[str, str] | None]] = {
    "black and white": (grey, ("colour", "black and white")), "negative": (lambda x: 255 - x, ("positive", "negative")),
    "channels in another order": (lambda image: image[..., ::-1], ("its colours", "others")),
    "darker": (lambda image: image // 3, None), "yellow light": (lambda x: (x * [1, 0.9, 0.6]).astype(np.uint8), None),
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_colours_that_no_lamp_makes(look: str) -> None:
    change, expected = LOOKS[look]
    for name in ("astronaut", "coffee", "rocket"):
        picture = PICTURES[name]
        pair = (np.float32(image / 255) for image in (picture, change(picture)))
        assert other_colours(*pair) == expected, name


@pytest.mark.parametrize("tone", [150, 220])
@pytest.mark.parametrize("colours", [((250, 220, 40), (90, 40, 150)), ((220, 60, 40), (60, 120, 220))])
def test_coloured_things_that_left_a_grey_picture_are_no_other_look_of_it(tone: int, colours: list[Any]) -> None:
    """A line through the values of each channel would follow the things, and find the rest different."""
    across, down = np.meshgrid(np.linspace(0, 1, 640), np.linspace(0, 1, 360))
    plain = np.stack([tone + 50 * across * down] * 3, -1).clip(0, 255).astype(np.uint8)
    full = cv2.ellipse(plain.copy(), (250, 180), (70, 110), 0, 0, 360, colours[0], -1)
    cv2.ellipse(full, (380, 200), (60, 90), 0, 0, 360, colours[1], -1)
    assert other_colours(*(np.float32(image / 255) for image in (full, plain))) is None


def test_a_dead_frame_and_another_look_of_the_picture_are_what_is_said() -> None:
    captioner = ObjectsCaptioner(ObjectsConfig(text=False))
    dead, other = captioner.describe(
        [AFTER, PICTURES["coffee"]], [AFTER * 0, grey(PICTURES["coffee"])], SearchOptions(change_map=True)
    )
    assert (dead.best.caption, dead.verdict, dead.claims) == ("The image after is black.", "unsure", ())
    assert dead.change_map is not None
    assert dead.change_map.max() > 0.2
    [exact] = ObjectsCaptioner(ObjectsConfig(mode="exact", text=False)).describe([AFTER], [AFTER * 0])
    assert exact.verdict == "changed", "which says what differs, whatever the frames show"
    assert (other.verdict, [claim.object for claim in other.claims or ()]) == ("changed", ["picture"])
    assert other.best.caption.startswith("The whole picture changed from colour to black and white;")


def test_what_is_gone_is_named_in_a_dark_picture_and_the_light_is_that_of_the_files() -> None:
    captioner = ObjectsCaptioner(ObjectsConfig(text=False))
    [both, one] = captioner.describe([dark(BEFORE), BEFORE], [dark(AFTER), dark(AFTER)])
    assert both.best.caption == "A bottle on the left is gone."
    assert one.best.caption == "A bottle on the left is gone. The rest of the picture became darker."


def overexposed(image: np.ndarray) -> np.ndarray:
    return np.asarray((1.5 * image.astype(np.float32)).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("name", list(PICTURES)[::2])
def test_overexposure_changes_nothing_and_hides_nothing_that_is_exposed(name: str) -> None:
    picture = cv2.resize(PICTURES[name], (384, 288), interpolation=cv2.INTER_AREA)
    came = picture.copy()
    came[100:160, 100:170] = (90, 40, 20)
    assert not compare(picture, overexposed(picture)).regions
    assert not compare(overexposed(picture), picture).regions
    assert compare(picture, overexposed(came)).regions
    assert compare(overexposed(picture), came).regions


@pytest.mark.parametrize("factor", [0.6, 0.4, 0.15])
def test_the_light_of_a_picture_is_said_and_nothing_else(factor: float) -> None:
    """Of dark ones too, which are made brighter to be compared; a program's exact factor is no other look."""
    captioner = ObjectsCaptioner(ObjectsConfig(detector="none", text=False))
    said = re.compile(r"No region (?:clearly )?changed\. (?:.* )?The picture became (\w+)\.")
    for picture in [*PICTURES.values()][::4]:
        dimmed = (factor * picture).astype(np.uint8)
        for before, after, light in ((dimmed, picture, "brighter"), (picture, dimmed, "darker")):
            [caption] = captioner([before], [after])
            sentence = said.fullmatch(caption)
            assert sentence is not None, caption
            assert sentence[1] == light


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda image: cv2.GaussianBlur(image, (0, 0), max(image.shape) / 200), "The image after is less sharp."),
        (lambda image: with_noise(image, 25), "The image after is noisy."),
        (lambda image: compressed(image, 30), ""),
        (lambda image: np.roll(image, 3, axis=1), ""),
    ],
    ids=["blurred", "noisy", "compressed", "displaced"],
)
def test_of_every_picture_it_is_said_that_it_is_blurred_or_noisy(change: Change, words: str) -> None:
    for name, picture in PICTURES.items():
        assert look_sentence(compare(picture, change(picture))).strip() == words, name
    for name in ("astronaut", "table_00000"):
        assert look_sentence(compare(change(PICTURES[name]), PICTURES[name])).strip() == OTHER_WAY.get(words, ""), name


def trimmed(image: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    return image[height // 20 : -(height // 12), width // 15 : -(width // 10)]


def framed(image: np.ndarray) -> np.ndarray:
    return cv2.copyMakeBorder(image, 15, 15, 20, 10, cv2.BORDER_CONSTANT, value=(255, 255, 255))


CROPS: dict[str, tuple[Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], str, int]] = {
    "trimmed": (lambda image: (image, trimmed(image)), "The image after is a part of the one before.", 20),
    "framed": (lambda image: (image, framed(image)), "The image before is a part of the one after.", 20),
    "a large one": (
        lambda image: (large := cv2.resize(image, None, fx=4, fy=4), trimmed(large)),
        "The image after is a part of the one before.", 18,
    ),
    "resized": (lambda image: (image, cv2.resize(image, None, fx=0.97, fy=0.97)), "", 26),
    "each has its own edge": (lambda image: (image[:-40], image[:, 40:]), "", 26),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", CROPS)
def test_of_most_pictures_it_is_said_which_is_a_part_of_the_other(kind: str) -> None:
    """And of none the other way round, or that it is where it is not."""
    change, words, least = CROPS[kind]
    captioner = ObjectsCaptioner(ObjectsConfig(text=False, detector="none", mode="photographs"))
    captions = [
        captioner.describe([before], [after])[0].best.caption for before, after in map(change, PICTURES.values())
    ]
    said = [re.findall(r"The image (?:before|after) is a part of .*?\.", caption) for caption in captions]
    assert [words] * bool(words) in said
    assert all(each in ([], [words]) for each in said)
    assert sum(each == [words] * bool(words) for each in said) >= least


def test_a_picture_that_was_cut_is_a_part_of_the_one_before() -> None:
    [description] = ObjectsCaptioner(ObjectsConfig(text=False)).describe([BEFORE], [trimmed(BEFORE)])
    assert description.best.caption == "Nothing changed. The image after is a part of the one before."
    assert description.verdict == "unsure"
    captioner = ObjectsCaptioner(ObjectsConfig(mode="photographs", text=False))
    [description] = captioner.describe([BEFORE], [BEFORE[1:]])
    assert description.best.caption == "Nothing changed.", "a line of it is rounding"
