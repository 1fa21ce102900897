"""Masks of a change with classes, as LEVIR-MCI's labels have them: which pixels are of a changed road or building.

The mask of a pair is a PNG of which every pixel is a value of :data:`CLASS_VALUES`, in grey or with three equal
channels. A mask that only marks what changed has no classes; its 255 would read as a building.
"""

from __future__ import annotations

import numpy as np

from idc.data.images import decode_image

CLASSES = ("background", "road", "building")
"""Names of the classes; an index into them is a class of a class map."""
CLASS_VALUES = (0, 128, 255)
"""The grey value of each class in a mask."""

_SHOWN = 5


def class_map(mask: bytes) -> np.ndarray:
    """The class of every pixel of an encoded mask, uint8 (H, W).

    Raises:
        ValueError: it is no image, or has other colours.
    """
    pixels = decode_image(mask)
    grey = pixels[..., 0]
    if (pixels != grey[..., None]).any():
        raise ValueError(f"the mask has colours; its values are {_values()}")
    indices = np.full(256, len(CLASSES), np.uint8)
    indices[list(CLASS_VALUES)] = range(len(CLASSES))
    classes: np.ndarray = indices[grey]
    if (classes == len(CLASSES)).any():
        others = np.unique(grey[classes == len(CLASSES)]).tolist()
        shown = ", ".join(map(str, others[:_SHOWN])) + (", ..." if len(others) > _SHOWN else "")
        raise ValueError(f"the mask has the values {shown}; its values are {_values()}")
    return classes


def _values() -> str:
    return ", ".join(f"{value} ({name})" for value, name in zip(CLASS_VALUES, CLASSES, strict=True))
