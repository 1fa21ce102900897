"""From the neighbours of an image to its pairs: thresholds, candidates in both lists, clusters, targets, rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from idc.data.files import Reader
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError, stored_bytes
from idc.data.manifest import AnyPath
from idc.data.mapped_rows import MappedRows
from idc.data.pipeline import Batch, with_errors
from idc.data.schema import ChangePair
from idc.mining.config import FeatureThresholds, MiningConfig
from idc.mining.features_folder import FEATURES, LENGTHS, to_matrix

PAIRED = "paired"
NOT_BETWEEN = "{feature}: no neighbour between min and max"
BELOW_SET_MAX = "{feature}: most similar candidate below set_max"
BELOW_SET_MIN = "{feature}: least similar candidate below set_min"
NOT_IN_BOTH = "no candidate in both lists"
_FILES_KEPT = 64
"""Image files that a worker holds: an image is in several pairs of a chunk."""


def targets_schema() -> pa.Schema:
    """One row per searched image.

    ``outcome`` is :data:`PAIRED` or the filter that left nothing; ``listed``, ``between`` and ``both`` are the numbers
    of its neighbours, of those between the thresholds of each feature, and of the candidates; ``targets`` are the
    images that it is paired with, most similar first.
    """
    numbers, similarities = pa.list_(pa.int32()), pa.list_(pa.float32())
    return pa.schema(
        [
            pa.field("number", pa.int32(), False),
            pa.field("image_id", pa.string(), False),
            pa.field("outcome", pa.string(), False),
            *(pa.field(f"{name}_{what}", pa.int32(), False) for name in FEATURES for what in ("listed", "between")),
            pa.field("both", pa.int32(), False),
            pa.field("targets", numbers, False),
            *(pa.field(f"{name}_sims", similarities, False) for name in FEATURES),
            pa.field("sims", similarities, False),
        ]
    )


class ChooseTargets:
    """Stage: from rows of neighbours to rows of targets.

    Args:
        features: folder of features; they are memory-mapped, see :class:`idc.data.mapped_rows.MappedRows`.
    """

    def __init__(self, features: AnyPath, config: MiningConfig) -> None:
        self.vectors = MappedRows(features, [*FEATURES, *LENGTHS])
        self.config = config

    def __call__(self, batch: Batch) -> Batch:
        rows = [self._row({name: column[i] for name, column in batch.items()}) for i in range(len(batch["number"]))]
        names = targets_schema().names
        return with_errors({name: [row[name] for row in rows] for name in names})

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        lists = [(np.array(row[f"{name}_ids"], np.int64), np.array(row[f"{name}_sims"])) for name in FEATURES]
        record: dict[str, Any] = {"number": row["number"], "image_id": row["image_id"], "targets": [], "sims": []}
        record |= {f"{name}_listed": len(ids) for name, (ids, _) in zip(FEATURES, lists, strict=True)}
        outcome = ""
        between = []
        bounds = zip(FEATURES, self.config.feature_names(), self.config.thresholds(), lists, strict=True)
        for name, title, thresholds, (ids, sims) in bounds:
            kept, reason = in_range(ids, sims, thresholds)
            between.append(kept)
            record[f"{name}_between"], record[f"{name}_sims"] = len(kept), []
            outcome = outcome or reason.format(feature=title)
        both = sorted(between[0].keys() & between[1].keys())
        record["both"] = len(both)
        if outcome or not both:
            return record | {"outcome": outcome or NOT_IN_BOTH}
        sims = np.array([[kept[number] for number in both] for kept in between]).T
        candidates = [self.vectors[number] for number in both]
        weights = np.array([self._weights(vector) for vector in candidates])
        together = combined_similarities(sims, self._weights(self.vectors[row["number"]]), weights)
        labels = cluster(concatenated(candidates, weights), self.config.clusters, self.config.gamma)
        chosen = nearest_of_each(labels, together)
        record |= {f"{name}_sims": sims[chosen, n].tolist() for n, name in enumerate(FEATURES)}
        targets = [both[i] for i in chosen]
        return record | {"outcome": PAIRED, "targets": targets, "sims": together[chosen].tolist()}

    def _weights(self, row: Mapping[str, Any]) -> np.ndarray:
        """Lengths (2,) of the two parts of g(I), eq. 8, of an image."""
        lengths = np.array([row[name] for name in LENGTHS]) if self.config.scale == "encoder" else np.ones(2)
        return np.array([self.config.alpha, self.config.beta]) * lengths


def concatenated(rows: Sequence[Mapping[str, Any]], weights: np.ndarray) -> np.ndarray:
    """g(I) of eq. 8, float64 (N, D1 + D2), for rows of features and the lengths (N, 2) of their parts."""
    parts = [to_matrix([row[name] for row in rows]).astype(np.float64) for name in FEATURES]
    return np.hstack([weights[:, [n]] * part for n, part in enumerate(parts)])


def in_range(ids: np.ndarray, sims: np.ndarray, thresholds: FeatureThresholds) -> tuple[dict[int, float], str]:
    """Apply both sets of thresholds to the neighbours of an image under one feature.

    Returns:
        The neighbours between ``min`` and ``max`` with their similarities; and the reason why the whole set is filtered
        out, empty if it stays.
    """
    kept = (sims >= thresholds.min) & (sims <= thresholds.max)
    neighbours = dict(zip(ids[kept].tolist(), sims[kept].tolist(), strict=True))
    if not neighbours:
        return neighbours, NOT_BETWEEN
    if max(neighbours.values()) < thresholds.set_max:
        return neighbours, BELOW_SET_MAX
    return neighbours, BELOW_SET_MIN if min(neighbours.values()) < thresholds.set_min else ""


def combined_similarities(sims: np.ndarray, lengths: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Cosines of g (eq. 8) of an image with others, from the cosines of the two parts (N, 2) and the lengths of the
    image's parts, ``lengths`` (2,), and of the ``others`` (N, 2)."""
    products = (sims * lengths * others).sum(axis=1)
    # An image without any features is like no other one: 0, not 0 / 0.
    return np.asarray(products / np.maximum(np.linalg.norm(lengths) * np.linalg.norm(others, axis=1), 1e-12))


def cluster(points: np.ndarray, clusters: int, gamma: float) -> np.ndarray:
    """Labels (N,) of spectral clustering with the kernel exp(-gamma d^2); up to K points are a cluster each.

    Labels are read from the pivoted QR decomposition of the eigenvectors (Damle, Minden and Ying, 2019), which has
    neither random starts nor iterations; the paper does not name its method. On clear clusters the labels are those of
    k-means, in a third of the time.
    """
    if len(points) <= clusters:
        return np.arange(len(points))
    from sklearn.cluster import SpectralClustering

    squares = (points**2).sum(axis=1)
    # Rounding makes the distance of equal points a hair less than 0.
    distances = np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0)
    affinity = np.exp(-gamma * distances)
    # The iteration for the eigenvectors starts at random: equal points must give equal labels.
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    return np.asarray(model.fit_predict(affinity))


def nearest_of_each(labels: np.ndarray, sims: np.ndarray) -> list[int]:
    """Position of the most similar point of each cluster (eq. 10), most similar first; equal ones in their order."""
    order = np.argsort(-sims, kind="stable")
    first: dict[int, int] = {}
    for position in order.tolist():
        first.setdefault(int(labels[position]), position)
    return list(first.values())


class WritePairs:
    """Stage: from rows of targets to rows of pairs.

    Captions and change types are left empty; all pairs are of split train, because pairs share images. ``meta`` has the
    names of both images in the collection and their similarities. If image i chose j and j chose i, both are pairs, as
    eq. 12 counts them.
    """

    def __init__(self, reader: Reader, features: AnyPath, names: tuple[str, str], max_pixels: int) -> None:
        self.reader = reader
        self.images = MappedRows(features, ["image_id"])
        self.names, self.max_pixels = names, max_pixels
        self._bytes = lru_cache(_FILES_KEPT)(self._read)

    def __call__(self, batch: Batch) -> Batch:
        rows = []
        for i, number in enumerate(batch["number"]):
            for n, target in enumerate(batch["targets"][i]):
                sims = [float(batch[name][i][n]) for name in (*(f"{f}_sims" for f in FEATURES), "sims")]
                rows.append(self._pair(number, target, sims))
        names = [*ChangePair("-", b"", b"").to_row(), "error"]
        return with_errors({name: [row[name] for row in rows] for name in names})

    def _pair(self, number: int, target: int, sims: list[float]) -> dict[str, Any]:
        ids = [self.images[which]["image_id"] for which in (number, target)]
        similarity = dict(zip((*self.names, "both"), (round(value, 6) for value in sims), strict=True))
        data, error = [b"", b""], None
        for role, which in enumerate((number, target)):
            try:
                data[role] = self._bytes(which)
            except ImageError as fault:
                error = error or f"{fault.code}: {ids[role]}, {fault.detail}"
        pair = ChangePair(
            f"mined-{number:08d}-{target:08d}", data[0], data[1], source=f"mined:{ids[0]}",
            meta={"images": ids, "similarity": similarity},
        )  # fmt: skip
        return {**pair.to_row(), "error": error}

    def _read(self, number: int) -> bytes:
        return stored_bytes(cell_bytes(self.images[number]["image_id"], self.reader), self.max_pixels)
