"""The objects that a detector names on an image, merged from several views of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.detectors import Detector
from idc.systems.objects.geometry import Box, box_cover, box_iou
from idc.systems.objects.wording import FAMILIES, OBJECT

_SIDE = 1280
"""Longer side at which objects are detected, in pixels; detectors take 300 to 640, of a crop too."""
MOST_DETECTIONS = 400
"""Detections on an image, from all views, that are merged: the surest. Detectors give a few dozen; merging is
quadratic."""
_EDGE = 4
"""Boxes this near to an edge of a crop, in pixels, are cut off there, and dropped."""
_RIVAL = 0.6
"""Share of an object's score from which another class at the same place makes the name unsure."""
_KIN = 0.4
"""The same for another class of its family: a bulldog is a cat to one view, and a dog to another."""
_RARE_SCORE, _RARE_VOTES = 0.7, 3
"""Score and number of views from which a class of :data:`RARE` is said."""

VAGUE = {
    **dict.fromkeys(("horse", "sheep", "cow"), "animal"),
    **dict.fromkeys(
        (
            "cell phone", "remote", "mouse", "skis", "surfboard", "snowboard", "kite", "frisbee", "sports ball",
            "baseball bat", "baseball glove", "parking meter", "fire hydrant", "traffic light", "tie", "toothbrush",
            "hair drier", "bird", "vase", "tv", "toilet", "sink", "refrigerator", "toaster", "scissors", "clock",
        ),
        OBJECT,
    ),
}  # fmt: skip
"""Classes that detectors give to other things too, with high scores (a car from above is a "cell phone") -> what is
said instead."""
RARE = frozenset((
    "airplane", "boat", "train", "elephant", "bear", "zebra", "giraffe", "carrot", "hot dog", "sandwich", "donut",
    "pizza", "broccoli", "cake", "bowl", "stop sign", "bed", "teddy bear",
))  # fmt: skip
"""Classes that are rare in everyday pictures, so that more of their detections are mistakes."""


class Instance(NamedTuple):
    """An object on one image, merged from several views.

    Attributes:
        name: what it is called; :data:`OBJECT` where that is not sure.
        family: of :data:`FAMILIES`, or the name.
        classes: that the views gave it, with a score near the highest one.
        score: the highest one.
        votes: number of views in which it was detected.
        box: on its own image.
        place: the box on the image after.
    """

    name: str
    family: str
    classes: frozenset[str]
    score: float
    votes: int
    box: Box
    place: Box


def instances(
    image: np.ndarray,
    crops: Sequence[Box],
    detector: Detector,
    names: Sequence[str],
    to_after: Callable[[Box], Box],
) -> list[Instance]:
    """The objects on an image, from views of it: the whole, crops, and their mirror images; the surest first.
    ``names`` as of :func:`idc.systems.objects.claims.object_claims`; ``to_after`` takes a box to the image after."""
    scale = min(1.0, _SIDE / max(image.shape[:2]))
    small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else image
    height, width = small.shape[:2]
    parts = [tuple(round(scale * value) for value in crop) for crop in crops]
    parts = [(0, 0, width, height), *(part for part in parts if min(part[2] - part[0], part[3] - part[1]) > 4 * _EDGE)]
    cuts = [np.ascontiguousarray(small[y:bottom, x:right]) for x, y, right, bottom in parts]
    views = [view for cut in cuts for view in (cut, np.ascontiguousarray(cut[:, ::-1]))]
    detections = []
    for view, detected in enumerate(detector.detect(views)):
        x, y, x_end, y_end = parts[view // 2]
        for values, name, score in zip(*detected, strict=True):
            left, top, right, bottom = map(float, values)
            if view % 2:
                left, right = x_end - x - right, x_end - x - left
            left, top, right, bottom = left + x, top + y, right + x, bottom + y
            cut_off = (0 < x > left - _EDGE, 0 < y > top - _EDGE, right + _EDGE > x_end < width)
            if any(cut_off) or bottom + _EDGE > y_end < height:
                continue
            box = (max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom))
            if min(box[2] - box[0], box[3] - box[1]) >= _EDGE:
                left, top, right, bottom = (value / scale for value in box)
                detections.append(_Detection(float(score), name, view, (left, top, right, bottom)))
    return [item._replace(place=to_after(item.box)) for item in _merged(detections, names)]


class _Detection(NamedTuple):
    score: float
    name: str
    view: int
    box: Box

    @property
    def family(self) -> str:
        return FAMILIES.get(self.name, self.name)


def _merged(detections: Sequence[_Detection], names: Sequence[str]) -> list[Instance]:
    """The detections of one family at one place, from all views, as one object."""

    def is_one(box: Box, other: Box) -> bool:
        return box_iou(box, other) > 0.45 or (box_cover(box, other) > 0.8 and box_cover(other, box) > 0.3)

    groups: list[list[_Detection]] = []
    detections = sorted(detections, key=lambda detection: (-detection.score, detection))[:MOST_DETECTIONS]
    for detection in detections:
        for group in groups:
            if detection.family == group[0].family and is_one(detection.box, group[0].box):
                group.append(detection)
                break
        else:
            groups.append([detection])
    result: list[Instance] = []
    for group in groups:
        score, _, _, box = best = group[0]
        rivals = (
            other.name
            for other in detections
            if other.score >= (_KIN if other.family == best.family else _RIVAL) * score
            and box_iou(other.box, box) > 0.5
        )
        classes = frozenset((best.name, *rivals))
        votes = len({detection.view for detection in group})
        name = _name(best.family, classes, score, votes, names)
        if name == OBJECT:  # then views that name it differently agree that something is there
            votes = len({other.view for other in detections if box_iou(other.box, box) > 0.5})
        if not any(item.family == best.family and box_cover(box, item.box) > 0.8 for item in result):
            result.append(Instance(name, best.family, classes, score, votes, box, box))
    return result


def _name(family: str, classes: frozenset[str], score: float, votes: int, names: Sequence[str]) -> str:
    if len(classes) > 1:
        alike = {FAMILIES.get(name) for name in classes} == {family}
        return OBJECT if not alike else " or ".join(sorted(classes)) if len(classes) == 2 else family
    [name] = classes
    if names:
        return name
    if name in RARE and (votes < _RARE_VOTES or score < _RARE_SCORE):
        return OBJECT
    return VAGUE.get(name, name)
