"""A node is lost during training and comes back, and the end of one is announced: fewer workers go on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.nodes import Nodes, nodes
from tests.faults.disturbed import STEPS, Disturbed
from tests.k8s.kustomize import built


@pytest.mark.slow
def test_fewer_workers_go_on_and_the_node_comes_back(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 30], min_workers=1)
        run.reach(13)
        cluster.kill(2)
        run.open(13)
        run.reach(30, world=1)
        cluster.start_again(2)
        run.wait(lambda: run.steps()[-1]["world"] == 2)
        run.open(30)
        run.end()
    assert run.worlds() == [2, 1, 2]
    run.check(lost=2 * run.train["checkpoint_every"])


@pytest.mark.slow
def test_an_announced_loss_costs_a_checkpoint_only(tmp_path: Path) -> None:
    with nodes(2, environment={"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}) as cluster:
        if cluster.hosts:
            assert spot_hook(cluster, 2).wait(60) == 0, "an idle node ends at once"
        gates = list(range(13, STEPS))
        run = Disturbed(cluster, tmp_path, gates=gates, pace=0.2, min_workers=1, checkpoint_every=STEPS)
        run.reach(13)
        hook = spot_hook(cluster, 2) if cluster.hosts else None
        if hook is None:
            cluster.drain(2, 90)
        else:
            run.wait(lambda: "sleep" in commands_below(hook.pid))
        for step in gates:  # the notice is asked for once a second: it may be heard several steps later
            run.reach(step)
            if list((run.folder / "checkpoints").glob("step_*")):
                break
            run.open(step)
        assert hook is None or hook.poll() is None, "the node lives as long as it is used"
        cluster.kill(2)
        for step in gates:
            run.open(step)
        run.end()
    assert run.worlds() == [2, 1]
    run.check(lost=2)  # it went on from the checkpoint that the notice had caused
    assert run.lost_steps() > 0


def commands_below(pid: int) -> list[str]:
    """Names of the programs that a process has started, and these in turn."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(process.name())
    return found


def spot_hook(cluster: Nodes, number: int) -> subprocess.Popen[Any]:
    """Start on a node what Kubernetes runs in a pod on a spot node before it ends it."""
    (service,) = [doc for doc in built("overlays/spot") if doc["kind"] == "RayCluster"]
    container = service["spec"]["workerGroupSpecs"][1]["template"]["spec"]["containers"][0]
    scripts = {"PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"}
    environment = {**cluster.environment, **scripts, "FQ_RAY_IP": cluster.node(0).address}
    return cluster.run(container["lifecycle"]["preStop"]["exec"]["command"], number, env=environment)
