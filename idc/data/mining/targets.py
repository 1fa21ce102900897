"""From the neighbours of an image to its pairs: thresholds, candidates in both lists, clusters, one target each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from idc.data.manifest import AnyPath
from idc.data.mapped_rows import MappedRows
from idc.data.mining.config import FeatureThresholds, MiningConfig
from idc.data.mining.features_folder import FEATURES, to_matrix
from idc.data.pipeline import Batch, with_errors

PAIRED = "paired"
NOT_BETWEEN = "{feature}: no neighbour between min and max"
BELOW_SET_MAX = "{feature}: most similar candidate below set_max"
BELOW_SET_MIN = "{feature}: least similar candidate below set_min"
NOT_IN_BOTH = "no candidate in both lists"


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
        features: folder of features; their vectors are memory-mapped, see :class:`idc.data.mapped_rows.MappedRows`.
    """

    def __init__(self, features: AnyPath, config: MiningConfig) -> None:
        self.vectors = MappedRows(features, list(FEATURES))
        self.config = config

    def __call__(self, batch: Batch) -> Batch:
        rows = [self._row({name: column[i] for name, column in batch.items()}) for i in range(len(batch["number"]))]
        names = targets_schema().names
        return with_errors({name: [row[name] for row in rows] for name in names})

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        lists = [(np.array(row[f"{name}_ids"], np.int64), np.array(row[f"{name}_sims"])) for name in FEATURES]
        found: dict[str, Any] = {"number": row["number"], "image_id": row["image_id"], "targets": [], "sims": []}
        found |= {f"{name}_listed": len(ids) for name, (ids, _) in zip(FEATURES, lists, strict=True)}
        outcome = ""
        between = []
        bounds = zip(FEATURES, self.config.feature_names(), self.config.thresholds(), lists, strict=True)
        for name, title, thresholds, (ids, sims) in bounds:
            kept, reason = in_range(ids, sims, thresholds)
            between.append(kept)
            found[f"{name}_between"], found[f"{name}_sims"] = len(kept), []
            outcome = outcome or reason.format(feature=title)
        both = sorted(between[0].keys() & between[1].keys())
        found["both"] = len(both)
        if outcome or not both:
            return found | {"outcome": outcome or NOT_IN_BOTH}
        sims = np.array([[kept[number] for number in both] for kept in between]).T
        together = combined(sims, self.config.alpha, self.config.beta)
        labels = cluster(self._concatenated(both), self.config.clusters, self.config.gamma)
        chosen = nearest_of_each(labels, together)
        found |= {f"{name}_sims": sims[chosen, n].tolist() for n, name in enumerate(FEATURES)}
        targets = [both[i] for i in chosen]
        return found | {"outcome": PAIRED, "targets": targets, "sims": together[chosen].tolist()}

    def _concatenated(self, numbers: list[int]) -> np.ndarray:
        """g(I) of eq. 8 for these images, float64 (N, D1 + D2)."""
        rows = [self.vectors[number] for number in numbers]
        weights = (self.config.alpha, self.config.beta)
        parts = [weight * to_matrix([row[name] for row in rows]).astype(np.float64)
                 for name, weight in zip(FEATURES, weights, strict=True)]  # fmt: skip
        return np.hstack(parts)


def in_range(ids: np.ndarray, sims: np.ndarray, thresholds: FeatureThresholds) -> tuple[dict[int, float], str]:
    """Apply both sets of thresholds to the neighbours of an image under one feature.

    Returns:
        The neighbours between ``min`` and ``max`` with their similarities; and the reason why the whole set is filtered
        out, empty if it stays.
    """
    kept = (sims >= thresholds.min) & (sims <= thresholds.max)
    found = dict(zip(ids[kept].tolist(), sims[kept].tolist(), strict=True))
    if not found:
        return found, NOT_BETWEEN
    if max(found.values()) < thresholds.set_max:
        return found, BELOW_SET_MAX
    return found, BELOW_SET_MIN if min(found.values()) < thresholds.set_min else ""


def combined(sims: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Cosines of g (eq. 8) from the cosines of its two parts (N, 2), which have unit length before they are weighted:
    (alpha^2 s_1 + beta^2 s_2) / (alpha^2 + beta^2)."""
    weights = np.array([alpha**2, beta**2])
    return np.asarray(sims @ weights / weights.sum())


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
    distances = np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0)
    affinity = np.exp(-gamma * distances)
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    return np.asarray(model.fit_predict(affinity))


def nearest_of_each(labels: np.ndarray, sims: np.ndarray) -> list[int]:
    """Position of the most similar point of each cluster (eq. 10), most similar first; equal ones in their order."""
    order = np.argsort(-sims, kind="stable")
    first: dict[int, int] = {}
    for position in order.tolist():
        first.setdefault(int(labels[position]), position)
    return list(first.values())
