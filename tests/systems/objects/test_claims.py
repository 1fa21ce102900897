"""Claims about objects and their sentence, on drawn scenes in which a detector by colour knows what is where."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import pytest

from idc.captioning.contract import Claim, Description
from idc.captioning.objects_config import NONE, ObjectsConfig
from idc.metrics.changes import says_no_change
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.detectors import Detections
from idc.systems.objects.geometry import box_cover, box_iou
from idc.systems.objects.sentence import plural, sentence_of
from idc.systems.objects.wording import unchanged_sentence
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
)

COLOURS = {"red": RED, "blue": BLUE, "green": GREEN}
CLASSES = {"red": "car", "blue": "person", "green": "bottle"}
LEFT, MIDDLE, RIGHT = (60, 120), (160, 120), (260, 120)


class ColourDetector:
    """Names disks by their colour.

    Args:
        classes: colour -> class.
        scores: class -> score; 0.9 by default.
        lone: a class that is detected in the first of the views alone.
        shuffled: return the boxes of equal scores in another order.
    """

    classes = tuple(CLASSES.values())
    low, high = 0.2, 0.5

    def __init__(
        self,
        classes: Mapping[str, str] = CLASSES,
        scores: Mapping[str, float] | None = None,
        lone: str = "",
        shuffled: bool = False,
    ) -> None:
        self._classes, self._scores, self._lone, self._shuffled = classes, scores or {}, lone, shuffled

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        return [self._detect(image, view) for view, image in enumerate(images)]

    def _detect(self, image: np.ndarray, view: int) -> Detections:
        items: list[tuple[float, str, np.ndarray]] = []
        for colour, name in self._classes.items():
            near = (np.abs(image.astype(int) - COLOURS[colour]).max(axis=2) < 40).astype(np.uint8)
            for x, y, width, height, area in cv2.connectedComponentsWithStats(near)[2][1:]:
                if area > 100 and not (name == self._lone and view):
                    items.append((self._scores.get(name, 0.9), name, np.array([x, y, x + width, y + height])))
        items.sort(key=lambda item: (-item[0], *(item[2] * (-1 if self._shuffled else 1))))
        boxes = np.array([box for _, _, box in items], np.float32).reshape(-1, 4)
        return Detections(boxes, tuple(name for _, name, _ in items), np.array([score for score, *_ in items]))


def scene(*disks: tuple[str, tuple[int, int]], radius: int = 30) -> np.ndarray:
    image = ground()
    for colour, (x, y) in disks:
        image = with_disk(image, x, y, COLOURS.get(colour, (235, 210, 40)), radius)
    return image


def described(
    before: np.ndarray,
    after: np.ndarray,
    detector: ColourDetector | None = None,
    counted: np.ndarray | None = None,
    names: tuple[str, ...] = (),
) -> Description:
    captioner = ObjectsCaptioner(ObjectsConfig(mode="photographs", text=False, names=names))
    captioner._detector = detector or ColourDetector()  # type: ignore[misc]
    [description] = captioner.describe([before], [after], counted=[counted])
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
    "two came": (
        scene(), scene(("green", LEFT), ("green", RIGHT)), [("appeared", "bottle", 2, "on the left and on the right")],
        "Two bottles have appeared on the left and on the right.",
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
        [("changed", "region", 1, "in the middle")], "Something in the middle changed from grey to yellow.",
    ),
    "named and unnamed": (
        scene(), scene(("red", LEFT), ("yellow", RIGHT)),
        [("appeared", "car", 1, "on the left"), ("changed", "region", 1, "on the right")],
        "There is now a car on the left; something on the right changed from grey to yellow.",
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
    assert description.best.caption == sentence
    assert description.verdict == ("changed" if claims else "unchanged")
    assert description.objects_text == sentence
    assert description.to_dict()["claims"] == [claim.to_dict() for claim in description.claims or ()]


@pytest.mark.parametrize("name", SCENES)
def test_the_pair_in_the_other_order_turns_what_is_gone_into_what_appeared(name: str) -> None:
    before, after, *_ = SCENES[name]
    opposite = {"gone": "appeared", "appeared": "gone"}

    def essence(claim: Claim, swapped: bool) -> tuple[object, ...]:
        kind = opposite.get(claim.kind, claim.kind) if swapped else claim.kind
        boxes = (claim.box_before, claim.box_after)[:: -1 if swapped else 1]
        words = (claim.before, claim.after)[:: -1 if swapped else 1]
        return kind, claim.count, boxes, words

    pairs = [described(before, after), described(after, before)]
    first, second = (
        sorted((essence(claim, swapped) for claim in pair.claims or ()), key=str)
        for pair, swapped in zip(pairs, (False, True), strict=True)
    )
    assert [entry[:2] for entry in first] == [entry[:2] for entry in second]
    for one_way, other_way in zip(first, second, strict=True):
        assert one_way[3] == other_way[3]
        for box, other in zip(one_way[2], other_way[2], strict=True):  # type: ignore[call-overload]
            assert (box is None) == (other is None)
            assert box is None or np.abs(np.subtract(box, other)).max() <= 3


@pytest.mark.parametrize("name", SCENES)
def test_a_mirrored_pair_mirrors_left_and_right(name: str) -> None:
    before, after, *_ = SCENES[name]

    def mirrored(words: str) -> list[str]:
        sides = {"left": "right", "right": "left"}
        return sorted(re.split(r", | and ", re.sub("left|right", lambda match: sides[match[0]], words)))

    plain, mirror = (facts(described(*pair)) for pair in ((before, after), (before[:, ::-1], after[:, ::-1])))
    assert sorted((*fact[:3], *mirrored(fact[3])) for fact in plain) == sorted(
        (*fact[:3], *sorted(re.split(r", | and ", fact[3]))) for fact in mirror
    )


def test_equal_detections_in_another_order_give_the_same_claims() -> None:
    for before, after, *_ in SCENES.values():
        assert described(before, after).claims == described(before, after, ColourDetector(shuffled=True)).claims


@pytest.mark.parametrize("scale", [0.5, 1.7])
def test_boxes_are_in_pixels_of_their_image_and_inside_it(scale: float) -> None:
    for before, after, *_ in SCENES.values():
        small = cv2.resize(before, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        original, resized = (described(image, after).claims or () for image in (before, small))
        assert [claim.kind for claim in original] == [claim.kind for claim in resized]
        for claim, other in zip(original, resized, strict=True):
            for name, image in (("box_before", small), ("box_after", after)):
                if (box := getattr(other, name)) is None:
                    continue
                assert 0 <= box[0] < box[2] <= image.shape[1]
                assert 0 <= box[1] < box[3] <= image.shape[0]
                factor = scale if name == "box_before" else 1.0
                assert np.abs(np.array(box) - factor * np.array(getattr(claim, name))).max() <= 8


def test_boxes_of_a_shifted_view_are_on_their_images() -> None:
    before, after = scene(("red", LEFT)), shifted(scene(("green", RIGHT)), 9, -6)
    claims = {claim.kind: claim for claim in described(before, after).claims or ()}
    for box, expected in (
        (claims["gone"].box_before, (30, 90, 90, 150)),
        (claims["appeared"].box_after, (239, 84, 299, 144)),
    ):
        assert box is not None
        assert np.abs(np.subtract(box, expected)).max() <= 6


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_the_same_objects_under_noise_light_and_shift_are_no_claim(name: str) -> None:
    before = scene(("red", LEFT), ("blue", RIGHT))
    assert described(before, PERTURBATIONS[name](before)).claims == ()


def test_what_does_not_count_is_no_claim() -> None:
    before, after = scene(), scene(("red", LEFT), ("green", RIGHT))
    counted = np.ones((HEIGHT, WIDTH), bool)
    counted[:, : WIDTH // 2] = False
    description = described(before, after, counted=counted)
    assert facts(description) == [("appeared", "bottle", 1, "on the right")]
    assert {region.position for region in description.regions or ()} == {"on the right"}
    assert described(before, after, counted=np.zeros_like(counted)).claims == ()


def test_what_is_hidden_or_uncovered_is_no_claim() -> None:
    """A person before a car: the car is still there."""
    before, after = scene(("red", MIDDLE), radius=16), scene(("blue", MIDDLE), radius=40)
    assert facts(described(before, after)) == [("appeared", "person", 1, "in the middle")]
    assert facts(described(after, before)) == [("gone", "person", 1, "in the middle")]


def test_an_object_that_another_one_covers_in_part_looks_no_different() -> None:
    before = scene(("red", MIDDLE))
    after = with_disk(before, 160, 140, BLUE, 22)
    assert facts(described(before, after)) == [("appeared", "person", 1, "in the middle")]


def test_one_view_alone_names_nothing() -> None:
    description = described(scene(), scene(("red", LEFT)), ColourDetector(lone="car"))
    assert facts(description) == [("changed", "region", 1, "on the left")]


def test_a_trace_of_the_class_in_the_other_image_is_enough_to_claim_nothing_gone() -> None:
    """What is a car with a low score is no other thing."""

    class Faint(ColourDetector):
        def _detect(self, image: np.ndarray, view: int) -> Detections:
            boxes, names, scores = super()._detect(image, view)
            return Detections(boxes, tuple("car" for _ in names), np.where(np.array(names) == "person", 0.25, scores))

    description = described(scene(("red", LEFT)), scene(("blue", LEFT)), Faint())
    assert facts(description) == [("changed", "region", 1, "on the left")]


def test_a_detection_that_flickers_where_no_pixel_changed_is_no_claim() -> None:
    class Flickering(ColourDetector):
        def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
            self._classes = {"red": "car"} if (np.abs(images[0].astype(int) - BLUE).max(axis=2) < 60).any() else CLASSES
            return super().detect(images)

    before = scene(("green", RIGHT))
    description = described(before, with_disk(before, *LEFT, BLUE, 30), Flickering())
    assert facts(description) == [("changed", "region", 1, "on the left")]


@pytest.mark.parametrize(
    ("first", "second", "names", "sentence"),
    [
        ("", "cell phone", (), "There is now an object on the left."),
        ("", "cell phone", ("cell phone",), "A cell phone has appeared on the left."),
        ("", "car", ("cell phone",), "Something on the left changed from grey to red."),
        ("", "horse", (), "An animal has appeared on the left."),
        ("zebra", "cow", (), "A zebra on the left has been replaced by another animal."),
        ("bus", "car", (), "A bus on the left has been replaced by a car."),
        ("car", "car", (), "The car on the left has moved a little, or is another one."),
        ("tv", "tv", (), "The tv on the left looks different."),
        ("dining table", "person", (), "A dining table on the left is gone."),
    ],
)
def test_names_that_are_not_sure_are_said_vaguely(
    first: str, second: str, names: tuple[str, ...], sentence: str
) -> None:
    before, after = scene(*([("blue", LEFT)] if first else [])), scene(("red", LEFT))
    detector = ColourDetector({"blue": first, "red": second})
    if (first, second) == ("dining table", "person"):
        detector._scores = {"person": 0.3}  # what is in front of it may hide it, if it is surely there
    assert described(before, after, detector, names=names).best.caption == sentence


def test_views_that_name_it_differently_agree_on_an_object() -> None:
    class Torn(ColourDetector):
        def _detect(self, image: np.ndarray, view: int) -> Detections:
            boxes, names, scores = super()._detect(image, view)
            return Detections(boxes, tuple("boat" if view % 2 else "bottle" for _ in names), scores)

    assert facts(described(scene(), scene(("red", LEFT)), Torn())) == [("appeared", "object", 1, "on the left")]


def test_without_a_detector_every_region_is_a_claim() -> None:
    captioner = ObjectsCaptioner(ObjectsConfig(detector=NONE, mode="photographs", text=False))
    [description] = captioner.describe([scene()], [scene(("red", LEFT), ("yellow", RIGHT))])
    claims = description.claims or ()
    assert [(claim.kind, claim.object, claim.before, claim.after) for claim in claims] == [
        ("changed", "region", region.before, region.after) for region in description.regions or ()
    ]
    assert len(claims) == 2


BOX = (10, 20, 30, 40)


def claim(kind: str, name: str, count: int = 1, *words: str | None, where: str = "on the left") -> Claim:
    boxes = (None if kind == "appeared" else BOX, None if kind == "gone" else BOX)
    return Claim(kind, name, count, where, *boxes, 0.9, *words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claims", "explained", "sentence"),
    [
        ([claim("appeared", "orange")], True, "An orange has appeared on the left."),
        ([claim("appeared", "orange", 3)], True, "Three oranges have appeared on the left."),
        ([claim("appeared", "bench", 9)], True, "Several benches have appeared on the left."),
        ([claim("appeared", "bus", 2)], False, "There are now buses on the left."),
        ([claim("gone", "knife", 2)], True, "Two knives on the left are gone."),
        ([claim("gone", "person")], False, "A person on the left is no longer there."),
        ([claim("moved", "cup", 1, "on the left", "on the left")], True,
         "The cup on the left has moved or been replaced."),
        ([claim("appeared", "object")], True, "There is now an object on the left."),
        ([claim("replaced", "apple", 1, "apple", "orange")], True,
         "An apple on the left has been replaced by an orange."),
        ([claim("replaced", "object", 1, "object", "object")], True,
         "An object on the left has been replaced by another object."),
        ([claim("changed", "region"), claim("changed", "region", where="at the top")], False,
         "Something changed on the left and at the top."),
        ([claim("changed", "region", where=f"{where} left") for where in ("at the top", "on the", "far", "near")],
         False, "Something changed in several places, most at the top left."),
        ([claim("gone", name) for name in ("car", "cup", "dog", "cat")], True,
         "A car on the left is gone; a cup on the left is gone; a dog on the left is gone."),
    ],
)  # fmt: skip
def test_the_sentence_is_english(claims: list[Claim], explained: bool, sentence: str) -> None:
    assert sentence_of(claims, explained) == sentence


@pytest.mark.parametrize(
    ("name", "names"),
    [("person", "people"), ("sheep", "sheep"), ("wine glass", "wine glasses"), ("sandwich", "sandwiches"),
     ("toy", "toys"), ("berry", "berries"), ("fire hydrant", "fire hydrants")],
)  # fmt: skip
def test_plurals(name: str, names: str) -> None:
    assert plural(name) == names


def test_every_sentence_reads_as_the_verdict_of_its_claims() -> None:
    kinds = ("appeared", "gone", "moved", "replaced", "changed")
    words = {"moved": ("at the top", "on the left"), "replaced": ("car", "bus")}
    for kind, name, count, explained in itertools.product(kinds, ("car", "object", "animal"), (1, 2), (True, False)):
        assert not says_no_change(sentence_of([claim(kind, name, count, *words.get(kind, ()))], explained))
    for colours in ((None, None), ("grey", "red")):
        assert not says_no_change(sentence_of([claim("changed", "region", 1, *colours)], explained=False))
    for moved, small, shaded, light in itertools.product((True, False), (True, False), (True, False), (0.7, 1.0, 1.4)):
        assert says_no_change(unchanged_sentence("Nothing", moved, small, shaded, light))


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
