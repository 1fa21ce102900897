"""What is known to be noise in the descriptions of rendered pairs: words that the oracle made wrong, and regions that
show an object which no phrase of the description fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from idc.data.images import decode_image
from idc.data.rendered.captions import ATTRIBUTES
from idc.data.rendered.draw import cast
from idc.data.rendered.scene import Thing, View
from idc.data.text import words
from idc.metrics.hallucination import named_objects


def noisy_words(text: str, noise: Sequence[dict[str, Any]] | None, image: str) -> list[int] | None:
    """Of each word 1 if it is known to be wrong (an injected one), else 0; None if nothing is known. A missing detail
    is no word."""
    if noise is None:
        return None
    spans = [(one["start"], one["end"]) for one in noise if one["image"] == image and one["end"] > one["start"]]
    flags, position, lower = [], 0, text.lower().replace("\u2019", "'")
    for word in words(text):
        position = lower.index(word, position)
        flags.append(int(any(start <= position < end for start, end in spans)))
        position += len(word)
    return flags


def undescribed_patches(
    text: str, meta: Mapping[str, Any], side: int, image: bytes, positions: int
) -> np.ndarray | None:
    """What the centre of each patch shows: 1 an object that no phrase of the text fits, 0 one that a phrase fits, -1 no
    object.

    Args:
        text: the description of the image.
        meta: of a rendered pair.
        side: 0 for the image before, 1 for the one after.
        image: its file, for its proportions.
        positions: P, patches of a square grid.

    Returns:
        (P,); None if the pair has no scene.
    """
    if not {"before", "after", "views"} <= meta.keys():
        return None
    things = tuple(Thing(**thing) for thing in meta[("before", "after")[side]])
    named = named_objects(text)
    undescribed = [not any(one and one <= look for one in named) for look in map(_look, things)]
    height, width, _ = decode_image(image).shape
    shown = cast(things, View.of_record(meta["views"][side]), width, height)
    grid = math.isqrt(positions)
    rows, columns = (((np.arange(grid) + 0.5) / grid * length).astype(int) for length in (height, width))
    centres = shown[np.ix_(rows, columns)].reshape(-1)
    return np.array([*undescribed, -1], int)[centres]


def area_under_roc(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Of arrays of scores, and arrays of flags of the same shape: 1 is noise, 0 is none, -1 does not count. None unless
    both occur."""
    from sklearn.metrics import roc_auc_score

    known = [(scores[flags >= 0], flags[flags >= 0]) for scores, flags in parts]
    if not known:
        return None
    values, flags = (np.concatenate(column) for column in zip(*known, strict=True))
    return float(roc_auc_score(flags, values)) if 0 < flags.sum() < len(flags) else None


def _look(thing: Thing) -> frozenset[tuple[str, str]]:
    return frozenset((name, str(getattr(thing, name))) for name in ATTRIBUTES)
