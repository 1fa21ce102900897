"""Where a pair differs for a vision-language model: distances of the images' tokens, position by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idc.vlm.family import Family


def change_map(family: Family, before: Tensor, after: Tensor, sizes: tuple[Sequence[int], Sequence[int]]) -> np.ndarray:
    """The change map over the image after.

    Args:
        before, after: tokens of the images as the language model reads them (T, D).
        sizes: height and width of the images as given.

    Returns:
        Float32 (Y, X) in [0, 1], without padding: 1 minus the cosine similarity of the tokens in the same position,
        cut at 1. Equal images have 0 everywhere. A map of another shape than the image after's grid is resized to
        it first.
    """
    grids = [family.grid(size) for size in sizes]
    placed_YXD = [
        tokens[: rows * columns].float().view(rows, columns, -1)
        for tokens, (rows, columns) in zip((before, after), grids, strict=True)
    ]
    first = placed_YXD[0].permute(2, 0, 1)[None]
    if grids[0] != grids[1]:
        first = F.interpolate(first, size=grids[1], mode="bilinear", align_corners=False)
    distance_YX = 1 - F.cosine_similarity(first[0].permute(1, 2, 0), placed_YXD[1], dim=-1)
    return _without_padding(family, distance_YX.clamp(0, 1).cpu().numpy(), sizes[1])


def placed_map(family: Family, distances: Tensor, positions: Tensor, size: Sequence[int]) -> np.ndarray:
    """The change map of distances between tokens of the tower.

    Args:
        distances: in [0, 1] (T,).
        positions: row and column of each (T, 2), all of a grid's.
        size: height and width of the image after as given.

    Returns:
        Float32 (Y, X), without padding.
    """
    rows, columns = (int(count) for count in positions.max(dim=0).values + 1)
    distance_YX = distances.new_zeros(rows, columns)
    distance_YX[positions[:, 0], positions[:, 1]] = distances
    return _without_padding(family, distance_YX.float().cpu().numpy(), size)


def _without_padding(family: Family, distances: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """The part of a map over a padded image that is over the image itself; its edges need not be those of tokens."""
    top, left, height, width = family.content(size)
    seen = family.seen_size(size)
    if (height, width) == seen:
        return distances
    rows, columns = (count / length for count, length in zip(distances.shape, seen, strict=True))
    box = (left * columns, top * rows, (left + width) * columns, (top + height) * rows)
    shape = (max(1, round(width * columns)), max(1, round(height * rows)))
    cut = Image.fromarray(distances).resize(shape, Image.Resampling.BILINEAR, box=box)
    return np.asarray(cut, np.float32)


def peak_and_mean(change: np.ndarray) -> tuple[float, float]:
    """The largest and the mean distance of a map."""
    return float(change.max()), float(change.mean())
