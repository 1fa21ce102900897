"""The mining benchmark measures the job's own steps, on a tiny heap."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mining import MiningBenchmarkConfig, measure_mining, recall_once, write_features
from cluster.config import ClusterConfig
from idc.data.mining.features_folder import FeatureRows

TINY = MiningBenchmarkConfig(images=200, query_chunk=50, neighbours=10, rounds=1, workers=1, recall_sizes=(),
                             recall_dimensions=16)  # fmt: skip


def test_the_steps_over_faiss_alone() -> None:
    neighbours, targets = measure_mining(TINY, ClusterConfig())
    assert neighbours.above[0] > 0 < neighbours.below[0]
    assert targets.above[0] > 0
    assert "200 images" in neighbours.title


def test_recall_is_that_of_the_exact_neighbours() -> None:
    config = TINY.model_dump()
    few, many = recall_once(150, config), recall_once(3000, config)
    assert few["hnsw"]["recall"] > 0.99  # a search wider than the heap
    assert 0.5 < many["ivf"]["recall"] <= 1


def test_the_features_are_those_of_the_job(tmp_path: Path) -> None:
    write_features(str(tmp_path / "features"), 120, (8, 12))
    assert FeatureRows(tmp_path / "features").matrix(0, 120, "second").shape == (120, 12)
