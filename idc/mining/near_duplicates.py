"""Near-duplicates of a collection: images whose thumbnails hardly differ from an earlier image's."""

from __future__ import annotations

import math
from itertools import pairwise

import faiss

from idc.mining.features_folder import THUMBNAIL_VALUES, read_thumbnails
from idc.util.progress import tracked


def near_duplicates(features: str, threshold: float, batch: int = 1024) -> dict[int, int]:
    """Which images are removed, and the image that each one duplicates, by an exact search over the thumbnails of all
    images, in this process, on all its cores (768 bytes per image in memory).

    In the order of the collection an image is removed if an earlier one that stays is a copy of it. A slow video keeps
    each frame that differs from the last one kept.

    Args:
        features: folder of features.
        threshold: largest difference of a copy, root mean square of 255.
    """
    thumbnails = read_thumbnails(features)
    index = faiss.IndexFlatL2(THUMBNAIL_VALUES)
    index.add(thumbnails)
    # Sums of squares of whole numbers up to 192 x 255^2 are exact in float32; faiss's limit is exclusive.
    limit = math.floor(threshold**2 * THUMBNAIL_VALUES + 1e-9) + 0.5
    removed: dict[int, int] = {}
    starts = range(0, len(thumbnails), batch)
    for first in tracked(starts, len(starts), "near-duplicates", "batch"):
        ends, _, near = index.range_search(thumbnails[first : first + batch], limit)
        for number, (start, stop) in enumerate(pairwise(ends), start=first):
            earlier = [other for other in near[start:stop].tolist() if other < number and other not in removed]
            if earlier:
                removed[number] = min(earlier)
    return removed
