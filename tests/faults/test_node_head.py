"""The head is killed, and what it knew is kept outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.nodes import nodes
from tests.faults.disturbed import WHERE, Disturbed


@pytest.mark.slow
def test_the_head_is_killed_and_its_state_kept(tmp_path: Path) -> None:
    """The head's Ray comes back at its address, with its state from Redis. The run's driver is on another node."""
    with nodes(2, redis=True) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13], on=1)
        run.reach(13)
        cluster.kill(0)
        run.harm()
        cluster.start_again(0)
        run.open(13)
        run.end()
        row = run.row("head killed, comes back, state in Redis", WHERE, "the driver is on a worker node")
    assert row["lost_steps"] <= run.train["checkpoint_every"]
    assert row["final_difference"] < 2e-6
