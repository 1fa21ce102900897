"""Claims about objects and their sentence, on drawn scenes in which a detector by colour knows what is where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from idc.captioning.contract import Claim, Description
from idc.captioning.objects_config import ObjectsConfig
from idc.metrics.change_types import says_no_change
from idc.systems.objects import instances as instances_module
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.detectors import Detections
from idc.systems.objects.geometry import box_cover, box_iou
from idc.systems.objects.wording import sentence_of
from tests.systems.objects.test_regions import (
    BLUE,
    GREEN,
    HEIGHT,
    PERTURBATIONS,
    RED,
    WIDTH,
    ground,
    shifted,
    with_disk,
)  # fmt: skip

COLOURS = {"red": RED, "blue": BLUE, "green": GREEN}
CLASSES = {"red": "car", "blue": "person", "green": "bottle"}
LEFT, MIDDLE, RIGHT = (60, 120), (160, 120), (260, 120)


class ColourDetector:
    """Names disks by their colour; the class ``lone`` in the first view alone."""

    classes = tuple(CLASSES.values())
    low, high = 0.2, 0.5

    def __init__(self, classes: Mapping[str, str] = CLASSES, lone: str = "", shuffled: bool = False) -> None:
        self._classes, self._lone, self._shuffled, self.scores = classes, lone, shuffled, dict[str, float]()

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        return [self._detect(image, view) for view, image in enumerate(images)]

    def _detect(self, image: np.ndarray, view: int) -> Detections:
        items: list[tuple[float, str, np.ndarray]] = []
        for colour, name in self._classes.items():
            near = (np.abs(image.astype(int) - COLOURS[colour]).max(axis=2) < 40).astype(np.uint8)
            for x, y, width, height, area in cv2.connectedComponentsWithStats(near)[2][1:]:
                if area > 100 and not (name == self._lone and view):
                    items.append((self.scores.get(name, 0.9), name, np.array([x, y, x + width, y + height])))
        items.sort(key=lambda item: (-item[0], *(item[2] * (-1 if self._shuffled else 1))))
        boxes = np.array([box for _, _, box in items], np.float32).reshape(-1, 4)
        return Detections(boxes, tuple(name for _, name, _ in items), np.array([score for score, *_ in items]))


def scene(*disks: tuple[str, tuple[int, int]], radius: int = 30) -> np.ndarray:
    image = ground()
    for colour, (x, y) in disks:
        image = with_disk(image, x, y, COLOURS.get(colour, (235, 210, 40)), radius)
    return image


def described(
    before: np.ndarray, after: np.ndarray, detector: ColourDetector | None = None,
    region_of_interest: np.ndarray | None = None, names: tuple[str, ...] = (),
) -> Description:  # fmt: skip
    captioner = ObjectsCaptioner(ObjectsConfig(mode="photographs", text=False, names=names))
    captioner._detector = detector or ColourDetector()  # type: ignore[misc]
    [description] = captioner.describe([before], [after], region_of_interest=[region_of_interest])
    assert description.claims is not None
    assert says_no_change(description.best.caption) == (not description.claims)
    return description


def facts(description: Description) -> list[tuple[str, str, int, str]]:
    return [(claim.kind, claim.object, claim.count, claim.where) for claim in description.claims or ()]


SCENES = {
    "came": (scene(), scene(("red", LEFT)), [("appeared", "car", 1, "on the left")], "A car has appeared on the left."),
    "went": (
        scene(("red", LEFT), ("blue", RIGHT)), scene(("red", LEFT)),
        [("gone", "person", 1, "on the right")], "A person on the right is gone.",
    ),
    "moved": (
        scene(("blue", LEFT)), scene(("blue", RIGHT)), [("moved", "person", 1, "on the right")],
        "A person on the left is no longer there, but there is now one on the right.",
    ),
    "many moved": (
        scene(("blue", (40, 60)), ("blue", (160, 60)), ("blue", (280, 60))),
        scene(("blue", (40, 180)), ("blue", (160, 180)), ("blue", (280, 180))),
        [("moved", "person", 3, "at the bottom left, at the bottom and at the bottom right")],
        "The people are in other places than before.",
    ),
    "came and went": (
        scene(("red", LEFT)), scene(("green", RIGHT)),
        [("appeared", "bottle", 1, "on the right"), ("gone", "car", 1, "on the left")],
        "A car on the left is gone; a bottle has appeared on the right.",
    ),
    "replaced": (
        scene(("red", RIGHT)), scene(("green", RIGHT)),
        [("replaced", "car", 1, "on the right")], "A car on the right has been replaced by a bottle.",
    ),
    "unnamed": (
        scene(), scene(("yellow", MIDDLE)),
        [("appeared", "region", 1, "in the middle")], "There is now something yellow in the middle.",
    ),
    "named and unnamed": (
        scene(), scene(("red", LEFT), ("yellow", RIGHT)),
        [("appeared", "car", 1, "on the left"), ("appeared", "region", 1, "on the right")],
        "There is now a car on the left; there is now something yellow on the right.",
    ),
    "small": (
        scene(), scene(("blue", LEFT), radius=14),
        [("appeared", "person", 1, "on the left")], "There is now a person on the left.",
    ),
    "nothing": (scene(("red", LEFT)), scene(("red", LEFT)), [], "Nothing changed."),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_what_changed_is_claimed_and_said(name: str) -> None:
    before, after, claims, sentence = SCENES[name]
    description = described(before, after)
    assert sorted(facts(description)) == claims
    assert description.best.caption == description.objects_text == sentence
    assert description.verdict == ("changed" if claims else "unchanged")
    assert description.claims == described(before, after, ColourDetector(shuffled=True)).claims, "in any order"


@pytest.mark.parametrize("name", SCENES)
def test_the_pair_in_the_other_order_turns_what_is_gone_into_what_appeared(name: str) -> None:
    before, after, *_ = SCENES[name]
    turned = {"gone": "appeared", "appeared": "gone"}
    claims = described(before, after).claims or ()
    others = list(described(after, before).claims or ())
    for claim in claims:
        (other,) = [
            other
            for other in others
            if (turned.get(other.kind, other.kind), other.count, other.before, other.after)
            == (claim.kind, claim.count, claim.after, claim.before)
        ]
        others.remove(other)
        for box, same in ((claim.box_before, other.box_after), (claim.box_after, other.box_before)):
            assert (box is None) == (same is None)
            assert box is None or np.abs(np.subtract(box, same)).max() <= 3
    assert not others


@pytest.mark.parametrize("scale", [0.5, 1.7])
def test_boxes_are_in_pixels_of_their_image_and_inside_it(scale: float) -> None:
    for name in ("moved", "replaced", "named and unnamed"):
        before, after, *_ = SCENES[name]
        small = cv2.resize(before, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        original, resized = (described(image, after).claims or () for image in (before, small))
        for claim, other in zip(original, resized, strict=True):
            for side, image, factor in (("box_before", small, scale), ("box_after", after, 1.0)):
                if (box := getattr(other, side)) is None:
                    continue
                assert 0 <= box[0] < box[2] <= image.shape[1]
                assert 0 <= box[1] < box[3] <= image.shape[0]
                assert np.abs(np.array(box) - factor * np.array(getattr(claim, side))).max() <= 8


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_the_same_objects_under_noise_light_and_shift_are_no_claim(name: str) -> None:
    before = scene(("red", LEFT), ("blue", RIGHT))
    assert described(before, PERTURBATIONS[name](before)).claims == ()


def test_what_does_not_count_is_no_claim() -> None:
    before, after = scene(), scene(("red", LEFT), ("green", RIGHT))
    region_of_interest = np.ones((HEIGHT, WIDTH), bool)
    region_of_interest[:, : WIDTH // 2] = False
    description = described(before, after, region_of_interest=region_of_interest)
    assert facts(description) == [("appeared", "bottle", 1, "on the right")]
    assert {region.position for region in description.regions or ()} == {"on the right"}
    assert described(before, after, region_of_interest=np.zeros_like(region_of_interest)).claims == ()


class Torn(ColourDetector):
    """Names things differently in each view."""

    def _detect(self, image: np.ndarray, view: int) -> Detections:
        boxes, names, scores = super()._detect(image, view)
        return Detections(boxes, tuple("boat" if view % 2 else "bottle" for _ in names), scores)


DOUBTS = {
    "hidden behind": ([("red", MIDDLE, 16)], [("blue", MIDDLE, 40)], None, ("appeared", "person", 1, "in the middle")),
    "uncovered": ([("blue", MIDDLE, 40)], [("red", MIDDLE, 16)], None, ("gone", "person", 1, "in the middle")),
    "covered in part": (
        [("red", MIDDLE, 30)], [("red", MIDDLE, 30), ("blue", (160, 140), 22)], None,
        ("appeared", "person", 1, "in the middle"),
    ),
    "another size": ([("red", MIDDLE, 14)], [("red", MIDDLE, 44)], None, ("appeared", "car", 1, "in the middle")),
    "in one view alone": (
        [], [("red", LEFT, 30)], ColourDetector(lone="car"), ("appeared", "region", 1, "on the left"),
    ),
    "views that differ": ([], [("red", LEFT, 30)], Torn(), ("appeared", "object", 1, "on the left")),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTS)
def test_what_is_in_doubt_is_claimed_vaguely_or_not(name: str) -> None:
    *sides, detector, claim = DOUBTS[name]
    images = []
    for disks in sides:
        images.append(ground())
        for colour, place, radius in disks:
            images[-1] = with_disk(images[-1], *place, COLOURS[colour], radius)
    assert facts(described(*images, detector)) == [claim]


def test_what_a_car_of_its_kind_covers_or_uncovers_has_neither_gone_nor_appeared() -> None:
    before = with_disk(with_disk(ground(), 120, 120, RED, 45), 190, 120, RED, 16)
    after = with_disk(ground(), 160, 120, RED, 52)
    assert {kind for kind, *_ in facts(described(before, after))} == {"changed"}
    assert {kind for kind, *_ in facts(described(after, before))} == {"changed"}


def test_a_region_inside_an_object_that_stayed_is_said_to_be_at_it() -> None:
    before = scene(("blue", MIDDLE), radius=70)
    after = with_disk(before, 170, 110, (235, 210, 40), 14)
    assert described(before, after).best.caption == "There is now something yellow at the person in the middle."


@pytest.mark.parametrize(
    ("first", "second", "names", "sentence"),
    [
        ("", "cell phone", (), "There is now an object on the left."),
        ("", "orange", ("orange",), "An orange has appeared on the left."),
        ("zebra", "cow", (), "A zebra on the left has been replaced by another animal."),
        ("bus", "car", (), "A bus on the left has been replaced by a car."),
        ("car", "car", (), "The car on the left has moved a little, or is another one."),
        ("tv", "tv", (), "The object on the left looks different."),
        ("dining table", "person", (), "A dining table on the left is gone."),
    ],
)
def test_names_that_are_not_sure_are_said_vaguely(
    first: str, second: str, names: tuple[str, ...], sentence: str
) -> None:
    before, after = scene(*([("blue", LEFT)] if first else [])), scene(("red", LEFT))
    detector = ColourDetector({"blue": first, "red": second})
    if (first, second) == ("dining table", "person"):
        detector.scores = {"person": 0.3}  # what is in front of it may hide it, if it is surely there
    assert described(before, after, detector, names=names).best.caption == sentence


class Doubtful(ColourDetector):
    """Names all things a dog, in each view, and also something else with another score."""

    def __init__(self, other: str, score: float) -> None:
        super().__init__({"red": "dog"})
        self._other = other, score

    def _detect(self, image: np.ndarray, view: int) -> Detections:
        boxes, names, scores = super()._detect(image, view)
        other, score = self._other
        twice = np.concatenate([boxes, boxes + 1]), (*names, *(other for _ in names))
        return Detections(*twice, np.concatenate([scores, np.full_like(scores, score)]))


@pytest.mark.parametrize(
    ("other", "score", "sentence"),
    [
        ("cat", 0.4, "A cat or dog has appeared on the left."),
        ("cat", 0.3, "A dog has appeared on the left."),
        ("chair", 0.6, "There is now an object on the left."),
        ("chair", 0.5, "A dog has appeared on the left."),
    ],
)
def test_another_name_of_the_same_thing_makes_it_vague_if_it_is_nearly_as_sure(
    other: str, score: float, sentence: str
) -> None:
    assert described(scene(), scene(("red", LEFT)), Doubtful(other, score)).best.caption == sentence


class Fading(ColourDetector):
    """Sure of one image, the first or the second that it is shown, and not of the other."""

    def __init__(self, sure_of: int) -> None:
        super().__init__({"red": "car"})
        self._sure_of, self._shown = sure_of, 0

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        self.scores["car"] = 0.9 if self._shown == self._sure_of else 0.3
        self._shown += 1
        return super().detect(images)


@pytest.mark.parametrize("sure_of", [0, 1])
def test_what_is_seen_on_the_other_image_though_not_surely_has_neither_gone_nor_come(sure_of: int) -> None:
    before = scene(("red", LEFT))
    after = with_disk(before, *LEFT, (235, 210, 40), 18)
    detector = Fading(sure_of)
    claims = described(before, after, detector).claims or ()
    assert detector._shown == 2
    assert [claim.kind for claim in claims if claim.object == "car"] in ([], ["changed"])


def test_the_light_that_was_evened_out_is_said_next_to_a_claim() -> None:
    darker = (0.6 * scene()).astype(np.uint8)
    caption = described(darker, scene(("red", LEFT))).best.caption
    assert caption == "A car has appeared on the left. The rest of the picture became brighter."


def test_what_is_gone_from_a_picture_on_a_screen_is_named() -> None:
    photograph = load_sample_image("china.jpg")[:300, :400]
    pages = [np.full((400, 800, 3), 255, np.uint8) for _ in range(2)]
    for page, picture in zip(pages, (with_disk(photograph, 200, 150, BLUE, 60), photograph), strict=True):
        page[50:350, 50:450] = picture
    captioner = ObjectsCaptioner(ObjectsConfig(text=False))
    captioner._detector = ColourDetector()  # type: ignore[misc]
    [description] = captioner.describe(*([page] for page in pages))
    region, person = description.claims or ()
    assert (region.object, person.object, person.kind) == ("region", "person", "gone")
    assert person.box_before is not None
    assert np.abs(np.subtract(person.box_before, (190, 140, 311, 261))).max() < 8
    assert description.best.caption.endswith(" In the picture on the left: A person in the middle is no longer there.")


def test_of_too_many_detections_the_surest_are_merged() -> None:
    places = [(float(x), float(y)) for x in range(0, 900, 30) for y in range(0, 900, 30)]
    boxes = [
        instances_module._Detection(1 - at / 2000, "car", 0, (x, y, x + 9, y + 9)) for at, (x, y) in enumerate(places)
    ]
    merged = instances_module._merged(boxes[::-1], ())
    assert [item.box[:2] for item in merged] == places[: instances_module.MOST_DETECTIONS]


BOX = (10, 20, 30, 40)


def claim(kind: str, name: str, count: int = 1, *words: str | None, where: str = "on the left") -> Claim:
    boxes = (None if kind == "appeared" else BOX, None if kind == "gone" else BOX)
    return Claim(kind, name, count, where, *boxes, 0.9, *words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claims", "explained", "sentence"),
    [
        ([claim("appeared", "bench", 9)], True, "Nine benches have appeared on the left."),
        ([claim("appeared", "bus", 2)], False, "There are now buses on the left."),
        ([claim("gone", "knife", 2)], True, "Two knives on the left are gone."),
        ([claim("gone", "berry", 2)], False, "Berries on the left are no longer there."),
        ([claim("replaced", "object", 1, "object", "object")], True,
         "An object on the left has been replaced by another object."),
        ([claim("changed", "region"), claim("changed", "region", where="at the top")], False,
         "Two things on the left and at the top look different."),
        ([claim("changed", "region", where=f"{where} left") for where in ("at the top", "on the", "far", "near")],
         False, "Four things in several places (most at the top left) look different."),
        ([claim("gone", name) for name in ("car", "cup", "dog", "cat")], True,
         "A car on the left is gone; a dog on the left is gone; a cat on the left is gone."),
    ],
)  # fmt: skip
def test_the_sentence_is_english(claims: list[Claim], explained: bool, sentence: str) -> None:
    assert sentence_of(claims, explained) == sentence


def test_overlaps_of_boxes_are_those_of_their_pixels() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        masks, boxes = [], []
        for _ in range(2):
            (left, right), (top, bottom) = np.sort(rng.choice(12, (2, 2)), axis=1) + np.array([0, 1])
            mask = np.zeros((13, 13), bool)
            mask[top:bottom, left:right] = True
            masks.append(mask)
            boxes.append((float(left), float(top), float(right), float(bottom)))
        first, second = masks
        assert box_iou(*boxes) == pytest.approx((first & second).sum() / (first | second).sum())
        assert box_cover(*boxes) == pytest.approx((first & second).sum() / first.sum())


def test_boxes_of_a_shifted_view_are_on_their_images() -> None:
    before, after = scene(("red", LEFT)), shifted(scene(("green", RIGHT)), 9, -6)
    claims = {claim.kind: claim for claim in described(before, after).claims or ()}
    for box, expected in (
        (claims["gone"].box_before, (30, 90, 90, 150)),
        (claims["appeared"].box_after, (239, 84, 299, 144)),
    ):
        assert box is not None
        assert np.abs(np.subtract(box, expected)).max() <= 6
