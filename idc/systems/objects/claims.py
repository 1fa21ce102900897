"""Claims about two images: the objects that a detector names on both, matched in the frame of the image after, where
pixels changed, and the changed regions that they do not explain. What is not sure is claimed more vaguely, not wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from idc.captioning.contract import Claim, ClaimKind
from idc.systems.objects.comparison import Comparison
from idc.systems.objects.detectors import Detector
from idc.systems.objects.geometry import Box, box_area, box_cover, box_iou, enlarged_box, rounded_box, warped_box
from idc.systems.objects.instances import MOST_DETECTIONS, Instance, instances
from idc.systems.objects.wording import OBJECT, PICTURE, SURROUNDINGS, joined, region_of, where_of

_CROPS = 3
"""Number of crops: squares around the largest regions, which are detected on both images."""
_CROP = 1.6
"""Side of a crop, as a multiple of its region's longer side: an object is recognised by what is around it too."""
_SMALLEST_CROP = 0.4
"""Smallest side of a crop, as a share of the image's shorter side."""
_SURE = 0.8
"""Score from which a name is trusted though another one was at its place in the other image."""
_TRUSTED = ((1.0, 2), (0.8, 3))
"""Share of the detector's high score, and number of views that it takes with it: one view alone may name anything."""
_CUT_OFF = 5.0
"""Multiple of a box's area up to which one around it may show the same object, of which the smaller one is a part."""
_CHANGED = 0.2
"""Smallest share of a box whose pixels changed: an object does not fill its box."""
_REPLACED = 0.9
"""The same where what is behind things was replaced: things that stayed are in boxes with much of it."""
_SAME_PLACE = 0.7
"""Overlap (IoU) of the boxes of an object that stayed where it was."""
_TOUCHED = 0.05
"""Share of a box whose pixels changed from which its object may have changed."""
_LARGE = 0.02
"""Share of the image from which a box is large: smaller objects are often missed, so that they cannot be counted."""
_MANY = 3
"""If more than this many of one kind came and went, they are said to be in other places: which of them is which, and
whether one was missed, cannot be decided."""
_EXPLAINED = 0.5
"""Share of a region inside the boxes of claims from which they explain it."""
_AROUND = 0.15
"""Share of a box's size by which it is enlarged for that, for shadows and reflections."""
_DISTINCT = 0.15
"""Difference of brightness, in [0, 1], from which what has several colours is called dark or light."""

CARRIED = frozenset((
    "tie", "skis", "snowboard", "surfboard", "skateboard", "backpack", "handbag", "suitcase", "umbrella", "cell phone",
    "remote", "sports ball", "frisbee", "kite", "book", "baseball bat", "baseball glove", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "toothbrush", "hair drier",
))  # fmt: skip
"""Classes that are not claimed of a person who wears or holds them: detectors see them in clothes and limbs."""
BACKGROUND = frozenset(("person", "chair", "couch", "bed", "dining table", "bench", "tv", "potted plant"))
"""Classes that things stand on, or in front of, or that stand in front of things: one does not replace the other."""


class ComparedPair:
    """The regions of a comparison, and boxes from one image to the other. ``around``: what the first region is called
    if it lies around the rest; ``least``: smallest share of a box whose pixels changed if its object did."""

    def __init__(self, comparison: Comparison, size_before: tuple[int, int], size_after: tuple[int, int]):
        height, width = comparison.difference.shape
        self.comparison, self.size_before, self.size_after = comparison, size_before, size_after
        self.regions = [region_of(mask, comparison.before, comparison.after, size_after) for mask in comparison.regions]
        around = SURROUNDINGS if comparison.background else PICTURE if comparison.replaced else None
        self.around, self.least = around, _REPLACED if around else _CHANGED
        self._scale = np.array([width / size_after[1], height / size_after[0]] * 2)
        self._mask = np.any([np.zeros((height, width), bool), *comparison.regions], axis=0)

    def share(self, box: Box, outside: Sequence[Box] = ()) -> float:
        """Share of a box on the image after whose pixels changed, not counting those in other boxes."""
        mask = self._mask.copy() if outside else self._mask
        for other in outside:
            mask[self.pixels(other)] = False
        part = mask[self.pixels(box)]
        return float(part.mean()) if part.size else 0.0

    def moved(self, box: Box) -> bool:
        """Whether most of what changed in a box on the image after is displaced."""
        parts = [mask[self.pixels(box)].sum() for mask in self.comparison.regions]
        displaced = sum(part for part, moved in zip(parts, self.comparison.displaced, strict=True) if moved)
        return bool(2 * displaced > sum(parts))

    def pixels(self, box: Box) -> tuple[slice, slice]:
        """A box on the image after as rows and columns of the comparison."""
        left, top, right, bottom = np.maximum(np.round(np.array(box) * self._scale), 0).astype(int)
        return slice(top, bottom), slice(left, right)

    def on_before(self, box: Box) -> Box:
        """A box of the image after, on the image before."""
        return warped_box(box, self.comparison.warp, self.size_before)

    def on_after(self, box: Box) -> Box:
        """A box of the image before, on the image after."""
        return warped_box(box, np.linalg.inv(self.comparison.warp), self.size_after)

    def places(self, claims: Sequence[Claim]) -> list[Box]:
        """The boxes of claims about single things, on the image after."""
        old = [self.on_after(claim.box_before) for claim in claims if claim.box_before]
        return [*old, *(claim.box_after for claim in claims if claim.box_after)]

    def unexplained(self, boxes: Sequence[Box]) -> list[int]:
        """Indices of the regions that are not in these boxes on the image after."""
        explained = np.zeros(self._mask.shape, bool)
        for box in boxes:
            explained[self.pixels(enlarged_box(box, _AROUND))] = True
        masks = enumerate(self.comparison.regions)
        return [index for index, mask in masks if explained[mask].mean() <= _EXPLAINED or (self.around and index == 0)]

    def ratio(self, index: int) -> float:
        """The largest difference in a region, divided by the threshold."""
        mask = self.comparison.regions[index]
        return float(self.comparison.difference[mask].max()) / self.comparison.threshold

    def lightness(self, index: int, of_after: int) -> str | None:
        """ "dark" or "light" by what the other image shows in a region; None where both are about as light."""
        mask, comparison = self.comparison.regions[index], self.comparison
        levels = [float(np.median(image[mask].mean(axis=1))) for image in (comparison.before, comparison.after)]
        distance = levels[of_after] - levels[1 - of_after]
        return None if abs(distance) < _DISTINCT else "light" if distance > 0 else "dark"

    def where(self, items: Sequence[Instance]) -> str:
        """The places of objects in words, from left to right."""
        ordered = sorted((item.place for item in items), key=lambda box: (box[0] + box[2], box[1] + box[3]))
        return joined(dict.fromkeys(where_of(box, self.size_after) for box in ordered))


class Named(NamedTuple):
    """The claims about objects.

    Attributes:
        claims: the surest first.
        places: boxes of their objects, one by one, on the image after.
        complete: the objects are large, and no other ones were seen where pixels changed. One that was missed, or seen,
            but not surely, may be the one that is said to be gone, or another one that came.
        stayed: the objects that both images show at the same place, as each shows them.
    """

    claims: list[Claim]
    places: list[Box]
    complete: bool
    stayed: list[Instance]


def object_claims(
    pair: ComparedPair, before: np.ndarray, after: np.ndarray, detector: Detector, names: Sequence[str] = ()
) -> Named:
    """The claims about the objects that a detector names on uint8 RGB images (H, W, 3) of any sizes; ``names`` as in
    :attr:`idc.captioning.objects_config.ObjectsConfig.names`."""
    if not pair.regions:
        return Named([], [], complete=True, stayed=[])
    crops = _crops(pair)
    old = instances(before, [pair.on_before(crop) for crop in crops], detector, names, pair.on_after)
    new = instances(after, crops, detector, names, lambda box: box)
    claims, boxes = _named_claims(old, new, pair, detector.high, names)
    height, width = pair.size_after
    complete = (
        max(len(old), len(new)) < MOST_DETECTIONS
        and all(box_area(box) >= _LARGE * height * width for box in boxes)
        and all(
            pair.share(item.place) < _TOUCHED or any(box_cover(item.place, box) > _EXPLAINED for box in boxes)
            for item in (*old, *new)
        )
    )
    trusted = [[item for item in items if _is_trusted(item, detector.high)] for items in (old, new)]
    pairs = ((first, second) for first, second in product(*trusted) if first.name == second.name != OBJECT)
    pairs = (both for both in pairs if box_iou(both[0].place, both[1].place) > _SAME_PLACE)
    stayed = [item for both in pairs for item in both]
    return Named(claims, boxes, complete, stayed)


def _named_claims(
    old: Sequence[Instance], new: Sequence[Instance], pair: ComparedPair, high: float, names: Sequence[str]
) -> tuple[list[Claim], list[Box]]:
    """The claims by the rules, and the boxes of their objects; of ``old`` and ``new`` the surest are first, and from
    a score of ``high`` on an object is trusted if two views agree."""
    sure_old, sure_new = (_sure(items, pair, high, names) for items in (old, new))
    gone = [item for item in sure_old if not any(_same(item, other) for other in new)]
    came = [item for item in sure_new if not any(_same(item, other) for other in old)]
    claims: list[Claim] = []
    boxes: list[Box] = []
    crowds: set[str] = set()

    def claim(
        kind: ClaimKind, first: Sequence[Instance], second: Sequence[Instance], *words: str, aspect: str | None = None
    ) -> None:
        claims.append(_claim(kind, first, second, pair, *words, aspect=aspect))
        boxes.extend(item.place for item in (*first, *second))

    for first, second in product(sure_old, sure_new):
        if not {first.place, second.place} & set(boxes) and _replaces(first, second, first in gone and second in came):
            claim("replaced", [first], [second], first.name, second.name)
    gone, came = ([item for item in items if item.place not in boxes] for items in (gone, came))
    gone, came = _without_hidden(gone, sure_new, old, pair), _without_hidden(came, sure_old, new, pair)
    for family in dict.fromkeys(item.family for item in sorted([*gone, *came], key=lambda item: -item.score)):
        left, arrived = ([item for item in items if item.family == family] for items in (gone, came))
        several = len(left) + len(arrived) > _MANY
        if left and arrived and family != OBJECT and (several or len(left) == len(arrived) == 1):
            claim("moved", left, arrived, *(() if several else (pair.where(left), pair.where(arrived))))
            crowds |= {family} if several else set()
            continue
        if left:
            claim("gone", left, [])
        if arrived:
            claim("appeared", [], arrived)
    for first, second in product(sure_old, sure_new):
        alike = first.family not in crowds and _same(first, second)
        if alike and pair.share(second.place, boxes) >= _CHANGED:
            if pair.moved(second.place):
                claim("moved", [first], [second], aspect="position")
            else:
                claim("changed", [first], [second])
    return claims, boxes


def _sure(items: Sequence[Instance], pair: ComparedPair, high: float, names: Sequence[str]) -> list[Instance]:
    """The objects that may be claimed: trusted, where pixels changed, and no part of another one."""
    people = [enlarged_box(item.box, 0.2) for item in items if item.family == "person" and item.score > high / 2]
    result: list[Instance] = []
    for item in items:
        if (
            _is_trusted(item, high)
            and not (names and not item.classes & set(names))
            and pair.share(item.place) >= pair.least
            and not (
                item.classes & CARRIED - set(names) and any(box_cover(item.box, person) > 0.6 for person in people)
            )
            and not any(box_cover(item.box, other.box) > 0.85 or box_iou(item.box, other.box) > 0.5 for other in result)
        ):
            result.append(item if item.name != OBJECT else item._replace(family=OBJECT))
    return result


def _is_trusted(item: Instance, high: float) -> bool:
    return any(item.score >= share * high and item.votes >= votes for share, votes in _TRUSTED)


def _replaces(first: Instance, second: Instance, unmatched: bool) -> bool:
    """Whether the second object is where the first one was, and is another one: of another kind, which takes up the
    same place, or of the same family if the detector is sure of both names."""
    if (
        not 0.4 < box_area(first.place) / max(box_area(second.place), 1.0) < 2.5
        or box_iou(first.place, second.place) < 0.4
    ):
        return False
    if first.family == second.family:
        return not first.classes & second.classes and min(first.score, second.score) >= _SURE
    return unmatched and not {first.family, second.family} & BACKGROUND


def _without_hidden(
    items: Sequence[Instance], others: Sequence[Instance], siblings: Sequence[Instance], pair: ComparedPair
) -> list[Instance]:
    """The objects of one image without those that a larger one of the other image hides or uncovers: they must also
    have changed where it is not. What is where it was, by ``siblings``, all objects of their image, hides nothing."""
    displaced = [
        other.place
        for other in others
        if not any(_same(other, item) and box_iou(other.place, item.place) > _SAME_PLACE for item in siblings)
    ]

    def changed(box: Box) -> float:
        return pair.share(box, [other for other in displaced if box_area(other) > box_area(box)])

    return [item for item in items if changed(item.place) >= _CHANGED]


def _claim(
    kind: ClaimKind, first: Sequence[Instance], second: Sequence[Instance], pair: ComparedPair,
    before: str | None = None, after: str | None = None, *, aspect: str | None = None,
) -> Claim:  # fmt: skip
    items = [*first, *second]
    names = {item.name for item in items}
    name = first[0].name if kind == "replaced" else items[0].family if len(names) > 1 else items[0].name
    return Claim(
        kind, name, max(len(first), len(second)), pair.where(second or first),
        _around(first, pair.size_before), _around(second, pair.size_after),
        min(item.score for item in items), before, after, aspect,
    )  # fmt: skip


def _around(items: Sequence[Instance], size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    if not items:
        return None
    boxes = np.array([item.box for item in items])
    return rounded_box((*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0)), size)


def _crops(pair: ComparedPair) -> list[Box]:
    """Squares around the largest regions, on the image after; none where an earlier one shows the region."""
    height, width = pair.size_after
    crops: list[Box] = []
    for left, top, right, bottom in (region.box for region in pair.regions):
        if len(crops) == _CROPS:
            break
        longer, shorter = max(right - left, bottom - top), min(height, width)
        side = max(min(_CROP * longer, shorter), longer, _SMALLEST_CROP * shorter)
        across, down = min(side, width), min(side, height)
        x = min(max((left + right - across) / 2, 0.0), width - across)
        y = min(max((top + bottom - down) / 2, 0.0), height - down)
        shows = any(box_cover((left, top, right, bottom), enlarged_box(crop, -0.1)) > 0.95 for crop in crops)
        if not shows and across * down < 0.8 * height * width:
            crops.append((x, y, x + across, y + down))
    return crops


def _same(item: Instance, other: Instance) -> bool:
    if item.name != OBJECT and item.family != other.family and not item.classes & other.classes:
        return False
    smaller, larger = sorted((item.place, other.place), key=box_area)
    return box_iou(smaller, larger) > 0.3 or (
        box_cover(smaller, larger) > 0.7 and box_area(larger) < _CUT_OFF * box_area(smaller)
    )
