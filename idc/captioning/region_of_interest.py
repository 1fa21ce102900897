"""The part of a pair in which differences count: ``ignore`` and ``only``, as boxes or masks over the image after.

A box is left, top, right and bottom (right and bottom are the first ones outside), from the top left corner of the
image after: in pixels, or, if none of the four is above 1, as shares of its width and height. A mask is an image, white
where the part is; it is stretched to the image after.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from idc.data.files import locate
from idc.data.images import ImageError, decode_image, image_of
from idc.data.textfiles import JsonError, parse_json

Box = tuple[float, float, float, float]
Area = Box | np.ndarray
"""A box, or a mask: uint8 RGB (H, W, 3) or bool (H, W)."""

_BOX_TEXT = re.compile(r"[-+.\deE\s]+(,[-+.\deE\s]+)*")
_BOX_HELP = "four numbers, left,top,right,bottom, in pixels of the image after or all as shares from 0 to 1"
_WHITE = 128
"""Grey value from which a mask is white."""


def areas_of(value: Any) -> list[Box | str]:
    """The boxes and the names of mask images in a text ("10,20,200,80", "mask.png", or JSON), a box, or a list of them.
    A ValueError names what is not a box, with the form that it should have."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                return areas_of(parse_json(text))
            except JsonError as error:
                raise ValueError(
                    f"{value!r:.80} cannot be read ({error}); give {_BOX_HELP}, or a list of them"
                ) from None
        return [_box(text)] if _BOX_TEXT.fullmatch(text) else [value]
    if isinstance(value, Sequence):
        if value and not isinstance(value[0], str | Sequence):
            return [_box(value)]
        return [part for item in value for part in (areas_of(item) if isinstance(item, str) else [_box(item)])]
    raise ValueError(f"{reprlib.repr(value)} is neither a box ({_BOX_HELP}) nor the name of a mask image")


def _box(box: Any) -> Box:
    try:
        values = box.split(",") if isinstance(box, str) else box
        left, top, right, bottom = (float(value) for value in values if not isinstance(value, bool))
    except (TypeError, ValueError, OverflowError):  # the last of an integer above all floats
        raise ValueError(f"{reprlib.repr(box)} is not a box; give {_BOX_HELP}") from None
    if not (0 <= left < right < math.inf and 0 <= top < bottom < math.inf):
        text = ",".join(f"{value:g}" for value in (left, top, right, bottom))
        raise ValueError(f"the box {text} is empty or begins outside the image; give {_BOX_HELP}, as in 10,20,200,80")
    return left, top, right, bottom


def read_areas(value: Any) -> list[Area]:
    """As :func:`areas_of`, with the pixels of masks, which may also be images of Pillow or arrays. Reads the files that
    are named (not for requests of others), or raises ValueError."""
    if isinstance(value, Image.Image | np.ndarray):
        return [value if isinstance(value, np.ndarray) and value.dtype == bool else image_of(value)]
    if isinstance(value, list | tuple) and any(isinstance(item, Image.Image | np.ndarray) for item in value):
        return [part for item in value for part in read_areas(item)]
    return [_read_mask(part) if isinstance(part, str) else part for part in areas_of(value)]


def _read_mask(name: str) -> np.ndarray:
    try:
        return decode_image(locate(name).read())
    except (OSError, ImageError) as error:
        raise ValueError(f"the mask {name}: {error}; give an image that is white there, or a box") from None


def region_from(size: tuple[int, int], ignore: Sequence[Area] = (), only: Sequence[Area] = ()) -> np.ndarray | None:
    """Where differences count: bool (H, W) over an image after of this height and width, in ``only`` (default: all of
    it) without ``ignore``; None for all of it. A box outside of the image, or nothing left to compare, is a
    ValueError."""
    if not len(ignore) and not len(only):
        return None
    region_of_interest = _covered(size, only) if len(only) else np.ones(size, bool)
    region_of_interest &= ~_covered(size, ignore)
    if not region_of_interest.any():
        raise ValueError("ignore and only leave nothing of the image to compare; give smaller parts to ignore")
    return region_of_interest


def _covered(size: tuple[int, int], parts: Sequence[Area]) -> np.ndarray:
    covered = np.zeros(size, bool)
    for part in parts:
        if isinstance(part, np.ndarray):
            covered |= _stretched_mask(part, size)
            continue
        # JSON of a browser has no 1.0, so that shares cannot be told by a dot.
        scale = np.array([size[1], size[0]] * 2) if max(part) <= 1 else np.ones(4)
        left, top, right, bottom = np.array(part) * scale
        if left >= size[1] or top >= size[0]:
            box = ",".join(f"{value:g}" for value in part)
            raise ValueError(
                f"the box {box} is outside of the image after, which has {size[1]} x {size[0]} pixels; give it in "
                "these pixels, or as shares from 0 to 1"
            )
        covered[math.floor(top) : math.ceil(bottom), math.floor(left) : math.ceil(right)] = True
    return covered


def _stretched_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    import cv2

    white = mask if mask.dtype == bool else mask.sum(axis=2, dtype=np.uint16) >= 3 * _WHITE
    return np.asarray(cv2.resize(white.astype(np.uint8), size[::-1], interpolation=cv2.INTER_NEAREST) > 0)
