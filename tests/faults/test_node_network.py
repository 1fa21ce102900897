"""The network between two nodes is cut and mended; a cloud announces the end of a node; the head is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.nodes import nodes
from tests.faults.disturbed import STEPS, Disturbed

WHERE = "2 nodes, ZeRO-2"


@pytest.mark.slow
def test_a_cut_between_two_workers_delays_them(tmp_path: Path) -> None:
    """They wait in a collective until it is mended; nothing is lost."""
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 14])
        run.reach(13)
        cluster.cut(1, 2)
        run.open(13)
        run.open(14)
        with pytest.raises(AssertionError):
            run.reach(15, seconds=15.0)
        cluster.mend(1, 2)
        run.harm()
        run.end()
        row = run.row("network between two workers cut for 15 s", WHERE, "seconds since it was mended")
    assert row["lost_steps"] == 0
    assert row["final_difference"] < 2e-6


@pytest.mark.slow
def test_a_worker_that_is_cut_from_the_head_is_lost_and_comes_back(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13])
        run.reach(13)
        cluster.cut(0, 2)
        run.harm()
        cluster.wait_for(lambda listed: sum(node["Alive"] for node in listed) == 2)
        cluster.mend(0, 2)
        cluster.kill(2)  # its Ray ends by itself, as it was given up; a supervisor starts it again
        cluster.start_again(2)
        run.open(13)
        run.end()
        row = run.row("network between head and worker cut until it is given up, mended", WHERE, "Ray there restarted")
    assert row["lost_steps"] <= run.train["checkpoint_every"]
    assert row["final_difference"] < 2e-6


@pytest.mark.slow
def test_an_announced_loss_costs_a_checkpoint_only(tmp_path: Path) -> None:
    with nodes(2, environment={"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 30], pace=0.2, min_workers=1, checkpoint_every=STEPS)
        run.reach(13)
        cluster.drain(2, 20)
        run.open(13)
        run.reach(30)
        cluster.kill(2)
        run.harm()
        run.open(30)
        run.end()
        row = run.row("spot notice 20 s ahead", WHERE, "no other checkpoint; steps since the notice are lost")
    assert run.worlds() == [2, 1]
    assert 0 < row["lost_steps"] < 20, "it went on from the checkpoint that the notice had caused"
    assert row["final_difference"] < 2e-6


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
