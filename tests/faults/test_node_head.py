"""The head is lost, and what it knew is kept outside of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes, nodes
from tests.faults.disturbed import Disturbed


@pytest.mark.slow
def test_the_head_is_killed_and_its_state_kept(tmp_path: Path) -> None:
    """Without Redis the head's Ray ends. It comes back at its address, with its state from Redis' disk. The run's
    driver is on another node. Ray asks for a token and Redis for a password, as on Kubernetes."""
    with nodes(2, redis=True) as cluster:
        assert listed_by(cluster, cluster.environment["RAY_AUTH_TOKEN"])
        assert not listed_by(cluster, "0" * 64)
        run = Disturbed(cluster, tmp_path, gates=[13], on=1)
        run.reach(13)
        cluster.kill_redis()
        cluster.wait_for_end(0)
        cluster.kill(0)
        cluster.serve_redis()
        cluster.start_again(0)
        run.open(13)
        run.end()
    run.check(lost=run.train["checkpoint_every"])


def listed_by(cluster: Nodes, token: str) -> bool:
    """Whether the head's Ray answers somebody with this token."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", cluster.address]
    environment = {**cluster.environment, "RAY_AUTH_TOKEN": token}
    return cluster.run(command, 1, env=environment, stderr=subprocess.DEVNULL).wait() == 0
