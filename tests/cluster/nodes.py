"""Several nodes of Ray on this machine (Ray's own ``cluster_utils``), which can be killed and drained."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from idc.util.program import shipped
from tests.shell import SHELL

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",  # a node is lost after about 10 seconds
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    "PYTHONUNBUFFERED": "1",
}


class Nodes:
    """A running cluster: a head without CPUs for work, and nodes of one CPU, by number from 1 on. Made by
    :func:`nodes`."""

    def __init__(self, environment: dict[str, str]) -> None:
        from ray.cluster_utils import Cluster

        self.environment = environment
        self._folder = tempfile.mkdtemp(prefix="nodes-", dir="/tmp")
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **self._settings()})
        self._nodes: dict[int, Any] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Of the cluster, for ``cluster.address``."""
        return str(self._cluster.address)

    def _settings(self) -> dict[str, Any]:
        return {"num_gpus": 0, "object_store_memory": 100 * 2**20, "include_dashboard": False, "temp_dir": self._folder}

    def add(self, number: int) -> None:
        """Start a node; also in place of one that was killed."""
        self._nodes[number] = self._cluster.add_node(wait=True, num_cpus=1, **self._settings())

    def kill(self, number: int) -> None:
        """End all processes of a node at once."""
        node = self._nodes.pop(number)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in [raylet, *raylet.children(recursive=True)]:  # its workers would outlive it by some steps
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, number: int, seconds: int) -> None:
        """Announce the end of a node as a cloud's spot notice does. Killing it then is left to the caller."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        command += ["--node-id", self._nodes[number].node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        command += ["--reason-message", "spot", "--deadline-remaining-seconds", str(seconds)]
        subprocess.run(command, env=self.environment, check=True)

    def python(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start Python, with its output in ``log``."""
        with log.open("ab") as sink:
            command = [sys.executable, *map(shipped, arguments)]
            process = subprocess.Popen(command, env=self.environment, stdout=sink, stderr=subprocess.STDOUT)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        raylets = [node.all_processes["raylet"][0].process.pid for node in self._cluster.list_all_nodes()]
        children = [child for pid in raylets for child in psutil.Process(pid).children(recursive=True)]
        self._cluster.shutdown()
        for child in children:  # on a busy machine agents notice late that their raylet has ended
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def nodes(count: int, *, environment: dict[str, str] | None = None) -> Iterator[Nodes]:
    """A head and ``count`` nodes.

    Args:
        environment: of Ray and of all that runs on the nodes.
    """
    before = dict(os.environ)
    settings = {**SHELL, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **(environment or {})}
    os.environ.clear()
    os.environ.update(settings)  # nodes inherit it
    cluster = Nodes(settings)
    try:
        for number in range(1, count + 1):
            cluster.add(number)
        yield cluster
    finally:
        cluster.close()
        os.environ.clear()
        os.environ.update(before)
