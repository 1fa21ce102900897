"""Near-duplicates of a collection, and the nearest images of every image under each feature, by faiss.

Each worker builds the indexes of the whole collection and holds them in memory: images x dimensions x 4 bytes for each
feature. The similarities of what faiss found are computed again one by one, and rounded to 6 decimals: the order of the
sums of a matrix product depends on its shape, and the lists must not depend on the batches.
"""

from __future__ import annotations

import math
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from idc.data.manifest import AnyPath
from idc.data.pipeline import Batch, good_rows, num_rows, with_errors
from idc.mining.features_folder import FEATURES, THUMBNAIL_VALUES, read_feature, read_thumbnails
from idc.util.progress import tracked

_SPARE = 8
"""Neighbours that the search lists beyond k: rounding in faiss's sums may exchange the last ones."""
_AXES = 16
"""Principal axes on which copies are looked for."""
_SAMPLE = 100_000
"""Thumbnails that the axes are computed from, and that are projected at a time."""


def near_duplicates(features: str, threshold: float) -> dict[int, int]:
    """Which images are removed, and the image that each one duplicates, exact over the thumbnails of all images.

    In the order of the collection an image is removed if an earlier one that stays is a copy of it. A slow video keeps
    each frame that differs from the last one kept. Each image that stays looks once for its copies among those near it
    on the first principal axes, where no two images are further apart than in full: no pair of images is compared for
    nothing, nor two copies of a third. In this process, with 0.6 kB per image.

    Args:
        features: folder of features.
        threshold: largest difference of a copy, root mean square of 255.
    """
    from scipy.spatial import KDTree  # slow to import

    thumbnails = read_thumbnails(features)
    sample = thumbnails[:: max(1, len(thumbnails) // _SAMPLE)].astype(np.float64)
    _, axes = np.linalg.eigh(np.cov(sample, rowvar=False, bias=True))
    blocks = np.array_split(thumbnails, len(thumbnails) // _SAMPLE + 1)  # as float64 all at once would fill the memory
    tree = KDTree(np.concatenate([block @ axes[:, -_AXES:] for block in blocks]))
    limit = math.floor(threshold**2 * THUMBNAIL_VALUES + 1e-9)  # distances are integers, the product is rounded
    removed: dict[int, int] = {}
    for number in tracked(range(len(thumbnails)), len(thumbnails), "near-duplicates", "image"):
        if number in removed:
            continue
        near = tree.query_ball_point(tree.data[number], math.sqrt(limit) + 1e-6)  # rounding of the projection
        later = [other for other in near if other > number and other not in removed]
        squares = np.square(thumbnails[later].astype(np.int32) - thumbnails[number]).sum(axis=1)
        removed.update((other, number) for other, square in zip(later, squares, strict=True) if square <= limit)
    return removed


def neighbours_schema() -> pa.Schema:
    """One row per image: numbers and similarities of its nearest images, descending, equal ones by number."""
    numbers, similarities = pa.list_(pa.int32()), pa.list_(pa.float32())
    lists = [pa.field(f"{name}_{what}", kind, False) for name in FEATURES
             for what, kind in (("ids", numbers), ("sims", similarities))]  # fmt: skip
    return pa.schema([pa.field("number", pa.int32(), False), pa.field("image_id", pa.string(), False), *lists])


class FindNeighbours:
    """Stage: ``first_ids``, ``first_sims``, ``second_ids``, ``second_sims`` of the images of a batch.

    Args:
        removed: numbers of the images that are not searched.
        k: neighbours per image, at most.
    """

    def __init__(self, features: AnyPath, removed: np.ndarray, k: int, threads: int) -> None:
        faiss.omp_set_num_threads(threads)
        self.k, self.indexes = k, dict[str, Any]()
        for name in FEATURES:
            matrix = read_feature(features, name)
            self.members = np.setdiff1d(np.arange(len(matrix)), removed)
            self.indexes[name] = index = faiss.IndexFlatIP(matrix.shape[1])
            index.add(matrix[self.members])  # type: ignore[call-arg]  # its type stubs are those of C++

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        good = good_rows(batch)
        out: Batch = {f"{name}_{what}": [[]] * num_rows(batch) for name in FEATURES for what in ("ids", "sims")}
        if good:
            numbers = np.array([batch["number"][i] for i in good])
            for name in FEATURES:
                queries = self.indexes[name].reconstruct_batch(np.searchsorted(self.members, numbers))
                lists = zip(*search(self.indexes[name], self.members, queries, numbers, self.k), strict=True)
                for i, (ids, sims) in zip(good, lists, strict=True):
                    out[f"{name}_ids"][i], out[f"{name}_sims"][i] = ids[ids >= 0].tolist(), sims[ids >= 0].tolist()
        return {**batch, **out}


def search(
    index: Any, members: np.ndarray, queries: np.ndarray, numbers: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k images of a flat index nearest to each query, without the query itself.

    Args:
        members: numbers of the images in the index (N,).
        queries: vectors (Q, D) of unit length; ``numbers`` (Q,) are theirs.

    Returns:
        Numbers and similarities (Q, k), descending, equal ones by number; -1 and -inf where there are fewer than k.
    """
    _, rows = index.search(queries, min(k + 1 + _SPARE, len(members)))
    sims = similarities(index, queries, rows)
    ids = members[rows]
    ids[ids == numbers[:, None]] = -1
    sims = np.where(ids >= 0, sims, -np.inf)
    order = np.lexsort((ids, -sims), axis=-1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(sims, order, 1)


def similarities(index: Any, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of queries (Q, D) with rows (Q, n) of a flat index, each on its own, to 6 decimals."""
    # swig_ptr passes raw memory: faiss reads it as contiguous float32 and int64 whatever the array is.
    queries, rows = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows, np.int64)
    out = np.empty(rows.shape, np.float32)
    functions: Any = faiss  # its type stubs lack this function
    x, ids, products = (functions.swig_ptr(array) for array in (queries, rows, out))
    functions.fvec_inner_products_by_idx(products, x, index.get_xb(), ids, index.d, *rows.shape)
    return out.astype(np.float64).round(6)
