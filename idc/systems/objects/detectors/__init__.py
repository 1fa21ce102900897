"""Object detectors behind one interface: images in, boxes with names and scores out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from idc.captioning.objects_config import NONE


class Detections(NamedTuple):
    """The objects on one image.

    Attributes:
        boxes: float32 (N, 4), left, top, right and bottom in pixels of the image.
        names: of the classes, N.
        scores: float32 (N,) in [0, 1], descending.
    """

    boxes: np.ndarray
    names: tuple[str, ...]
    scores: np.ndarray


class Detector(Protocol):
    """A loaded detector.

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


def load_detector(source: str, names: Sequence[str] = ()) -> Detector:
    """Load a detector.

    Args:
        source: as :attr:`idc.captioning.objects_config.ObjectsConfig.detector`, but ``none``.
        names: classes, for a detector that takes them as words.

    Raises:
        ValueError: it is not on this machine, damaged, or of a kind that is not supported.
    """
    raise NotImplementedError


def detector_identity(source: str) -> str | None:
    """What the results of a detector depend on: the hash of its weights; None for :data:`NONE`.

    Raises:
        ValueError: as :func:`load_detector`.
    """
    return None if source == NONE else source
