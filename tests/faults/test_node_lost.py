"""A whole node is lost during training; fewer workers go on where the settings allow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.nodes import nodes
from tests.faults.disturbed import Disturbed

WHERE = "2 nodes, ZeRO-2"


@pytest.mark.slow
def test_fewer_workers_go_on_and_the_node_comes_back(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 30], min_workers=1)
        run.reach(13)
        cluster.kill(2)
        run.harm()
        run.open(13)
        run.reach(30, world=1)
        cluster.start_again(2)
        run.wait(lambda: run.steps()[-1]["world"] == 2)
        run.open(30)
        run.end()
        row = run.row("node lost, comes back", WHERE, "min_workers=1")
    assert run.worlds() == [2, 1, 2]
    assert row["lost_steps"] <= 2 * run.train["checkpoint_every"]
    assert row["final_difference"] < 2e-6


@pytest.mark.slow
def test_without_min_workers_a_run_waits_for_a_replacement_and_says_so(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13])
        run.reach(13)
        cluster.kill(2)
        run.harm()
        run.open(13)
        run.wait(lambda: "the run waits for 2 workers of 1 CPU each; 2 nodes have 1 CPU free" in run.text())
        cluster.add()
        run.end()
        row = run.row("node lost, replaced", WHERE, "a new node joins after the notice")
    assert run.worlds() == [2]
    assert row["lost_steps"] <= run.train["checkpoint_every"]
    assert row["final_difference"] < 2e-6
