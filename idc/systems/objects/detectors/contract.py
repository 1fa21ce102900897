"""What every detector does, and what it returns; the names of COCO's classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from idc.captioning.objects_config import COCO_NAMES

_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
"""Numbers of classes that were planned (street sign, hat, shoe, ...) and never annotated."""
NAME_OF_NUMBER = dict(zip((number for number in range(1, 91) if number not in _UNUSED), COCO_NAMES, strict=True))
"""The numbers 1 to 90 that the data set itself gives them."""


class Detections(NamedTuple):
    """The objects on one image.

    Attributes:
        boxes: float32 (N, 4), left, top, right and bottom in pixels of the image, inside it.
        names: of the classes, N.
        scores: float32 (N,) in [0, 1], descending.
    """

    boxes: np.ndarray
    names: tuple[str, ...]
    scores: np.ndarray


class Detector(Protocol):
    """A loaded detector; threads may share it.

    Attributes:
        classes: names that it can give.
        low: score from which boxes are returned.
        high: score from which a box is trusted where two views of an image agree.
    """

    classes: tuple[str, ...]
    low: float
    high: float

    def detect(self, images: Sequence[np.ndarray]) -> list[Detections]:
        """The objects on images, uint8 RGB (H, W, 3) of any sizes."""
        ...


def detections_of(
    boxes: np.ndarray, names: Sequence[str], scores: np.ndarray, image: np.ndarray, low: float
) -> Detections:
    """The detections of a score of ``low`` or more: clipped to the image, without those beside it, by score."""
    height, width = image.shape[:2]
    clipped = np.clip(np.asarray(boxes, np.float32).reshape(-1, 4), 0, np.array([width, height] * 2, np.float32))
    scores = np.asarray(scores, np.float32)
    inside = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
    order = [index for index in np.argsort(-scores, kind="stable") if inside[index] and scores[index] >= low]
    return Detections(clipped[order], tuple(names[index] for index in order), scores[order])
