"""How well change maps show where a pair changed: scores against its true mask, with two baselines.

Three numbers per pair, none of which has a threshold to be tuned:

pointing  1 if the map's highest pixel lies in the mask, else 0 (the pointing game, Zhang et al. 2018)
AP        average precision of the pixels, ranked by the map
IoU       intersection over union of the mask and the pixels above the map's own threshold by Otsu (1979)

The baselines are maps that need no model: the mean absolute difference of both images' pixels, and a blob in the middle
of the image. A map of any resolution is upsampled bilinearly to the image after first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict

from idc.data.images import resize_image

MODEL, PIXELS, BLOB = "the captioner's", "baseline: pixel difference", "baseline: blob in the middle"
WAYS = (MODEL, PIXELS, BLOB)
NUMBERS = ("pointing", "AP", "IoU")


def upsample(change_map: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize a change map (Y, X) bilinearly to another height and width, float32."""
    floats = Image.fromarray(change_map.astype(np.float32))
    return np.asarray(floats.resize((size[1], size[0]), Image.Resampling.BILINEAR))


class ChangeMaps(BaseModel):
    """Means over the changed pairs that have a mask."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    mask_share: float
    """Mean share of an image that the mask covers: AP and pointing of a random map."""
    scores: dict[str, dict[str, float]]
    """Way -> number."""


def score_map(values: np.ndarray, mask: np.ndarray) -> list[float]:
    """:data:`NUMBERS` of a map (H, W) and a non-empty mask (H, W, bool)."""
    from skimage.filters import threshold_otsu

    points = mask[np.unravel_index(values.argmax(), values.shape)]
    # A constant map has no threshold: none of its pixels is above it.
    above = values > threshold_otsu(values) if values.min() < values.max() else np.zeros_like(mask)
    overlap = (above & mask).sum() / (above | mask).sum()
    return [float(points), average_precision(mask, values), float(overlap)]


def average_precision(mask: np.ndarray, values: np.ndarray) -> float:
    """Precision of the pixels above each value, weighted by the share of the mask that the value adds: scikit-learn's
    ``average_precision_score`` without its import, which takes as long as hundreds of maps.

    Args:
        mask: bool, not empty.
        values: of the same shape.
    """
    order = np.argsort(-values, axis=None)
    ends = np.append(np.flatnonzero(np.diff(values.ravel()[order])), values.size - 1)  # equal values count together
    hits = mask.ravel()[order].cumsum()[ends]
    return float((np.diff(hits, prepend=0) / hits[-1]) @ (hits / (ends + 1)))


def score_pair(change_map: np.ndarray, before: np.ndarray, after: np.ndarray, mask: np.ndarray) -> list[float] | None:
    """The share that the mask covers, then :data:`NUMBERS` of each of :data:`WAYS`; None if nothing changed.

    Args:
        change_map: the captioner's, (Y, X).
        before, after: uint8 RGB (H, W, 3).
        mask: uint8 RGB (H, W, 3) as decoded, not zero where the scene changed.
    """
    size = after.shape[:2]
    whole = Image.fromarray(mask.max(axis=-1)).resize((size[1], size[0]), Image.Resampling.NEAREST)
    truth = np.asarray(whole) > 0
    if not truth.any():
        return None
    pixels = np.abs(resize_image(before, size).astype(np.float32) - after).mean(axis=-1)
    row = [float(truth.mean())]
    for values in (upsample(change_map, size), pixels, blob(size)):
        row += score_map(values, truth)
    return row


def blob(size: Sequence[int]) -> np.ndarray:
    """A Gaussian in the middle, as wide and as high as a quarter of the image, (H, W)."""
    rows, columns = (((np.arange(length) - (length - 1) / 2) / (length / 4)) ** 2 for length in size)
    return np.exp(-(rows[:, None] + columns[None]) / 2)


def summarise_maps(rows: Iterable[Sequence[float] | None]) -> ChangeMaps | None:
    """Means of :func:`score_pair`; None if no pair has a number."""
    scored = np.array([row for row in rows if row is not None])
    if not len(scored):
        return None
    share, *means = scored.mean(axis=0).tolist()
    width = len(NUMBERS)
    scores = {
        way: dict(zip(NUMBERS, means[width * slot : width * (slot + 1)], strict=True)) for slot, way in enumerate(WAYS)
    }
    return ChangeMaps(pairs=len(scored), mask_share=share, scores=scores)


def change_map_table(maps: ChangeMaps) -> str:
    """As plain text, numbers times 100."""
    lines = [f"change maps of {maps.pairs} changed pairs against their masks ({maps.mask_share:.1%} of an image), x100"]
    lines.append(f"{'':28}" + "".join(f"{name:>10}" for name in NUMBERS))
    rows: Mapping[str, Mapping[str, float]] = maps.scores
    return "\n".join(
        [*lines, *(f"  {way:26}" + "".join(f"{100 * row[n]:10.1f}" for n in NUMBERS) for way, row in rows.items())]
    )
