"""Masks of a change with classes, as LEVIR-MCI's labels have them, as maps of classes: what a segmentation learns.

A mask that only marks what changed, in 0 and 255, reads as one of buildings.
"""

from __future__ import annotations

import numpy as np

from idc.changeimti.change_regions import CLASSES as CHANGED
from idc.changeimti.change_regions import class_masks
from idc.data.images import decode_image

CLASSES = ("background", *CHANGED)
"""Names of the classes; an index into them is a class of a class map."""


def class_map(mask: bytes) -> np.ndarray:
    """The class of every pixel of an encoded mask, uint8 (H, W).

    Raises:
        ValueError: it is not an image, or has another colour.
    """
    pixels = decode_image(mask)
    classes = np.zeros(pixels.shape[:2], np.uint8)
    for name, inside in class_masks(pixels).items():
        classes[inside] = CLASSES.index(name)
    return classes
