"""A node is lost during training and comes back, and the end of one is announced: fewer workers go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.nodes import nodes
from tests.faults.disturbed import STEPS, Disturbed


@pytest.mark.slow
def test_fewer_workers_go_on_and_the_node_comes_back(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 30], min_workers=1)
        run.reach(13)
        cluster.kill(2)
        run.open(13)
        run.reach(30, world=1)
        cluster.add(2)
        run.wait(lambda: run.steps()[-1]["world"] == 2)
        run.open(30)
        run.end()
    assert run.worlds() == [2, 1, 2]
    run.check(lost=2 * run.train["checkpoint_every"])


@pytest.mark.slow
def test_an_announced_loss_costs_a_checkpoint_only(tmp_path: Path) -> None:
    with nodes(2, environment={"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}) as cluster:
        gates = list(range(13, STEPS))
        run = Disturbed(cluster, tmp_path, gates=gates, pace=0.2, min_workers=1, checkpoint_every=STEPS)
        run.reach(13)
        cluster.drain(2, 90)
        for step in gates:  # the notice is asked for once a second: it may be heard several steps later
            run.reach(step)
            if list((run.folder / "checkpoints").glob("step_*/complete")):
                break
            run.open(step)
        cluster.kill(2)
        for step in gates:
            run.open(step)
        run.end()
    assert run.worlds() == [2, 1]
    run.check(lost=2)  # it went on from the checkpoint that the notice had caused
    assert run.lost_steps() > 0
