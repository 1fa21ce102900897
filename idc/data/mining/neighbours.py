"""The nearest images of every image under each feature, by faiss, shard by shard.

A shard is a range of images. A worker takes a chunk of query images, loads one shard after another and merges the
lists, so it never holds more than one shard of one feature. With the exact index the similarities of what faiss found
are computed again one by one, and rounded to 6 decimals: the order of the sums of a matrix product depends on its
shape, and the lists must not depend on the shards.
"""

from __future__ import annotations

import math
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from idc.data import files
from idc.data.manifest import AnyPath
from idc.data.mining.config import IndexConfig
from idc.data.mining.features_folder import FEATURES, THUMBNAIL_VALUES, FeatureRows
from idc.data.parquet_files import open_parquet
from idc.data.pipeline import Batch, good_rows, num_rows, with_errors
from idc.data.store import complete_manifest, undamaged

_SPARE = 8
"""Neighbours that an exact search lists beyond k: rounding in faiss's sums may exchange the last ones."""
_LINKS, _BUILD_WIDTH, _SEARCH_WIDTH = 32, 100, 128
"""Of hnsw: M, efConstruction, efSearch (at least the number of neighbours, by faiss itself)."""


def neighbours_schema() -> pa.Schema:
    """One row per image: numbers and similarities of its nearest images, descending, equal ones by number."""
    numbers, similarities = pa.list_(pa.int32()), pa.list_(pa.float32())
    lists = [pa.field(f"{name}_{what}", kind, False) for name in FEATURES
             for what, kind in (("ids", numbers), ("sims", similarities))]  # fmt: skip
    return pa.schema([pa.field("number", pa.int32(), False), pa.field("image_id", pa.string(), False), *lists])


def index_schema() -> pa.Schema:
    """One row per shard: faiss's own serialisation of the index of each feature."""
    fields = [pa.field(name, pa.large_binary(), False) for name in FEATURES]
    return pa.schema([pa.field("shard", pa.int32(), False), *fields])


class Shards:
    """The images of a folder of features that are searched, in ranges of ``shard_size`` rows.

    Args:
        removed: numbers of the images that are not searched.
    """

    def __init__(self, path: AnyPath, shard_size: int, removed: np.ndarray) -> None:
        self.rows = FeatureRows(path)
        self.size = shard_size
        self.removed = removed

    def __len__(self) -> int:
        return -(-self.rows.num_rows // self.size)

    def vectors(self, shard: int, feature: str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (N,) and vectors (N, D) of a shard."""
        start = shard * self.size
        stop = min(start + self.size, self.rows.num_rows)
        numbers = np.arange(start, stop)
        kept = ~np.isin(numbers, self.removed)
        return numbers[kept], self.rows.matrix(start, stop, feature)[kept]


class BuildIndex:
    """Stage: builds the index of each feature for the shards of a batch."""

    def __init__(self, shards: Shards, config: IndexConfig, threads: int) -> None:
        faiss.omp_set_num_threads(threads)
        self.shards, self.config = shards, config

    def __call__(self, batch: Batch) -> Batch:
        built: dict[str, list[bytes]] = {name: [] for name in FEATURES}
        for shard in batch["shard"]:
            for name in FEATURES:
                index = build_index(self.shards.vectors(shard, name)[1], self.config)
                built[name].append(faiss.serialize_index(index).tobytes())
        return {**with_errors(batch), **built}


class ShardNumbers:
    """A source of the shards' numbers, one per chunk."""

    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks

    def read(self, chunk_id: int) -> Batch:
        return {"shard": [chunk_id], "row_id": [str(chunk_id)]}


def build_index(vectors: np.ndarray, config: IndexConfig) -> Any:
    """The faiss index of vectors (N, D) of unit length, for inner products."""
    dimensions = vectors.shape[1]
    index: Any
    if config.kind == "exact" or not len(vectors):
        index = faiss.IndexFlatIP(dimensions)
    else:
        index = faiss.IndexHNSWFlat(dimensions, _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _BUILD_WIDTH
        index.hnsw.efSearch = _SEARCH_WIDTH
    index.add(vectors)
    return index


class FindNeighbours:
    """Stage: ``first_ids``, ``first_sims``, ``second_ids``, ``second_sims`` of the images of a batch.

    Args:
        built: folder of indexes, None for the exact index, which is built while it is loaded.
        k: neighbours per image, at most.
    """

    def __init__(self, shards: Shards, config: IndexConfig, built: AnyPath | None, k: int, threads: int) -> None:
        faiss.omp_set_num_threads(threads)
        self.shards, self.config, self.k = shards, config, k
        self.built = None if built is None else files.locate(built)
        self._kept: dict[str, tuple[np.ndarray, Any]] = {}  # the indexes, if there is one shard

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        good = good_rows(batch)
        out: Batch = {f"{name}_{what}": [[]] * num_rows(batch) for name in FEATURES for what in ("ids", "sims")}
        if good:
            first, last = batch["number"][good[0]], batch["number"][good[-1]]
            numbers = np.array([batch["number"][i] for i in good])
            for name in FEATURES:
                queries = self.shards.rows.matrix(first, last + 1, name)[numbers - first]
                for i, (ids, sims) in zip(good, self._nearest(name, numbers, queries), strict=True):
                    out[f"{name}_ids"][i], out[f"{name}_sims"][i] = ids, sims
        return {**batch, **out}

    def _nearest(self, name: str, numbers: np.ndarray, queries: np.ndarray) -> list[tuple[list[int], list[float]]]:
        ids = np.zeros((len(queries), 0), np.int64)
        sims = np.zeros((len(queries), 0))
        for shard in range(len(self.shards)):
            members, index = self._load(shard, name)
            if not len(members):
                continue
            more_ids, more_sims = search(index, members, queries, numbers, self.k)
            ids, sims = best(np.hstack([ids, more_ids]), np.hstack([sims, more_sims]), self.k)
        rows = zip(ids, sims, strict=True)
        return [(row[valid].tolist(), sim[valid].tolist()) for row, sim in rows for valid in (row >= 0,)]

    def _load(self, shard: int, name: str) -> tuple[np.ndarray, Any]:
        if name in self._kept:
            return self._kept[name]
        if self.built is None:
            members, vectors = self.shards.vectors(shard, name)
            loaded = members, build_index(vectors, self.config)
        else:
            loaded = self._members(shard), self._stored(shard, name)
        if len(self.shards) == 1:
            self._kept[name] = loaded
        return loaded

    def _members(self, shard: int) -> np.ndarray:
        start = shard * self.shards.size
        numbers = np.arange(start, min(start + self.shards.size, self.shards.rows.num_rows))
        return numbers[~np.isin(numbers, self.shards.removed)]

    def _stored(self, shard: int, name: str) -> Any:
        assert self.built is not None
        file = self.built / complete_manifest(self.built, "mining_index").parts[shard].file
        with undamaged(file), file.open() as stream:
            data = open_parquet(stream, file).read([name])[name][0].as_buffer()
        return faiss.deserialize_index(np.frombuffer(data, np.uint8))


def search(
    index: Any, members: np.ndarray, queries: np.ndarray, numbers: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k images of one index nearest to each query, without the query itself.

    Args:
        members: numbers of the images in the index (N,).
        queries: vectors (Q, D) of unit length; ``numbers`` (Q,) are theirs.

    Returns:
        Numbers and similarities (Q, k), descending; -1 and -inf where there are fewer than k.
    """
    exact = isinstance(index, faiss.IndexFlat)
    wanted = min(k + 1 + (_SPARE if exact else 0), len(members))
    scores, rows = index.search(queries, wanted)
    sims = similarities(index, queries, rows) if exact else scores.astype(np.float64).round(6)
    ids = np.where(rows >= 0, members[rows], -1)
    ids[ids == numbers[:, None]] = -1
    return best(ids, np.where(ids >= 0, sims, -np.inf), k)


def similarities(index: Any, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inner products of queries (Q, D) with rows (Q, n) of a flat index, each on its own, to 6 decimals."""
    # swig_ptr passes raw memory: faiss reads it as contiguous float32 and int64 whatever the array is.
    queries, rows = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(rows, np.int64)
    out = np.empty(rows.shape, np.float32)
    functions: Any = faiss  # its type stubs lack this function
    x, ids, products = (functions.swig_ptr(array) for array in (queries, rows, out))
    functions.fvec_inner_products_by_idx(products, x, index.get_xb(), ids, index.d, *rows.shape)
    return out.astype(np.float64).round(6)


def best(ids: np.ndarray, sims: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k most similar of each row, descending; equal ones by number."""
    order = np.lexsort((ids, -sims), axis=-1)[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(sims, order, 1)


def earlier_copies(index: Any, members: np.ndarray, queries: np.ndarray, numbers: np.ndarray, threshold: float
                   ) -> list[list[int]]:  # fmt: skip
    """For each thumbnail (Q, 192), the images of an L2 index with a smaller number that differ by at most
    ``threshold`` (root mean square of 255)."""
    # Sums of squares of whole numbers up to 192 x 255^2 are exact in float32; faiss's limit is exclusive.
    limit = math.floor(threshold**2 * THUMBNAIL_VALUES + 1e-9) + 0.5
    starts, _, rows = index.range_search(queries, limit)
    copies = []
    for query, number in enumerate(numbers):
        near = members[rows[starts[query] : starts[query + 1]]]
        copies.append(sorted(near[near < number].tolist()))
    return copies
