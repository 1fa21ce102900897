"""The benchmark of scale: unit costs of the papers' models, and a driver that keeps workers on several nodes busy."""

from __future__ import annotations

import pytest

from benchmarks.scheduling import SchedulingConfig, measure_scheduling
from benchmarks.unit_costs import measure_unit_costs


@pytest.mark.slow
def test_unit_costs_are_those_of_the_papers_models() -> None:
    rows = {row.title: row for row in measure_unit_costs()}
    times = [row for row in rows.values() if row.unit == "CPU ms"]
    assert len(times) == 2
    assert min(min(row.above) for row in times) > 0
    work = {title: row.above[0] for title, row in rows.items() if row.unit == "GFLOP"}
    # ViT-L/14 makes 81 billion multiplications of 257 tokens, ResNet-101 7.8: two operations each, two networks.
    both = next(count for title, count in work.items() if title.startswith("features of CLIP"))
    resnet = next(count for title, count in work.items() if "ResNet-101 of an image" in title)
    assert both == pytest.approx(2 * 2 * 81, rel=0.02)
    assert resnet == pytest.approx(2 * 7.8, rel=0.02)


@pytest.mark.slow
def test_every_node_of_a_small_cluster_works() -> None:
    # 12 s of chunks for each node: a busy machine starts one of them late.
    config = SchedulingConfig(nodes=(2,), chunk_s=0.2, chunks_each=60, many_chunks=(40,))
    busy, driver = measure_scheduling(config)
    assert 0 < busy.above[0] <= 1.01, "the window of steady() needs both nodes' workers"
    assert "2 nodes" in busy.title
    assert driver.above[0] > 0 < driver.more["peak_mib_of_the_driver"]
