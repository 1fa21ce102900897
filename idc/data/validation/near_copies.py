"""Images that look the same in several splits, though their bytes differ: stored anew in another format, quality or
size. They are found by thumbnails."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from idc.data.schema import SPLITS

_SIDE = 8
"""Of a thumbnail, the means of so many cells along either axis, for each colour."""
_CLOSE = 3
"""Largest difference of two values of thumbnails of one image: that of 95 % of 281 photographs and their JPEGs of
quality 75, and of no other two but frames of one film that follow each other."""


def copy_thumbnail(pixels: np.ndarray) -> bytes:
    """Of an image, uint8 RGB (H, W, 3)."""
    import cv2  # not with the settings, for the help of commands

    return cv2.resize(pixels, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).tobytes()


class NearCopies:
    """The thumbnails of the images of a set: some 300 bytes for each image."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[bytes, str]] = {split: {} for split in SPLITS}
        self._thumbnails: dict[str, list[bytes]] = {split: [] for split in SPLITS}

    def add(self, pair_id: str, split: str, image: bytes, key: bytes) -> None:
        """Add the :func:`copy_thumbnail` of an image of a pair; ``key`` is the image's digest."""
        if key not in self._owners[split]:
            self._owners[split][key] = pair_id
            self._thumbnails[split].append(image)

    def across_splits(self) -> Iterator[tuple[str, str, str, str]]:
        """Each image that looks like one of an earlier split and is not the same file: pair and split of it, and of
        the first such image."""
        from scipy.spatial import KDTree  # slow to import

        splits = [split for split in SPLITS if self._thumbnails[split]]
        values = {split: np.frombuffer(b"".join(self._thumbnails[split]), np.uint8).reshape(-1, _SIDE, _SIDE, 3)
                  for split in splits}  # fmt: skip
        # Images that are close are so in the means of all quarters, of which there are few enough for a search.
        half = _SIDE // 2
        trees = {split: KDTree(small.reshape(-1, 2, half, 2, half, 3).mean(axis=(2, 4)).reshape(-1, 12))
                 for split, small in values.items()}  # fmt: skip
        for earlier, later in combinations(splits, 2):
            names = [list(self._owners[split].items()) for split in (earlier, later)]
            near = trees[later].query_ball_tree(trees[earlier], _CLOSE, p=np.inf)
            for (key, pair_id), small, candidates in zip(names[1], values[later].astype(int), near, strict=True):
                close = [i for i in candidates if abs(values[earlier][i] - small).max() <= _CLOSE]
                if close and key not in self._owners[earlier]:
                    yield pair_id, later, names[0][close[0]][1], earlier
