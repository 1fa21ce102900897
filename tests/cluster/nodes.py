"""A Ray cluster of several nodes on this machine, with Ray's token authentication as on Kubernetes, whose nodes can be
killed and drained.

A node is a host of its own: address, host name, process ids, ``/tmp/ray`` and ``/dev/shm``, on a bridge with the
others; killing it ends all its processes at once, as a power cut does. This takes root on Linux; elsewhere they are
skipped. All share the files. Nothing is left behind, also if the test's process is killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.shell import SHELL

ROOT = Path(__file__).parents[2]
PORT = 6379
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # else Ray listens on loopback alone
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",  # a node is lost after about 10 seconds
    "RAY_memory_monitor_refresh_ms": "0",
    "PYTHONUNBUFFERED": "1",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
}
STARTED_S = 180.0
"""Time-out for a node to join, in seconds."""


def hosts_work() -> bool:
    """Whether this process may make network and mount namespaces."""
    command = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "true"]
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "setpriv", "ip"))
    return tools and subprocess.run(command, capture_output=True).returncode == 0


class Host:
    """A node with namespaces of its own, which live as long as its first process."""

    def __init__(self, number: int, switch: Switch, folder: Path):
        self.address = f"10.77.0.{10 + number}"
        self.folder = folder
        self._started: list[subprocess.Popen[Any]] = []
        self.port = f"v{number}"
        self.switch = switch
        names = folder / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{10 + n} node{n}\n" for n in range(64)))
        Path("/tmp/ray").mkdir(exist_ok=True)
        script = (
            f"hostname node{number}; ip link set lo up; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp/ray; "
            f"mount --bind {names} /etc/hosts; echo ready; sleep infinity; true"
        )
        apart = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["setpriv", "--pdeathsig", "KILL", *apart, "bash", "-c", script]
        self._first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == "ready\n"
        (child,) = psutil.Process(self._first.pid).children()
        self.pid = child.pid
        switch.ip(f"link add {self.port} type veth peer name eth0 netns {self.pid}")
        switch.ip(f"link set {self.port} master bridge up")
        self._enter(["ip", "addr", "add", f"{self.address}/24", "dev", "eth0"])
        self._enter(["ip", "link", "set", "eth0", "up"])

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "--net", "--mount", "--uts", "--pid", f"--wdns={ROOT}", *command]

    def _enter(self, command: Sequence[str]) -> None:
        subprocess.run(self._inside(command), check=True)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        inside = ["setpriv", "--pdeathsig", "KILL", *self._inside(command)]
        process = subprocess.Popen(inside, start_new_session=True, **options)
        self._started.append(process)
        return process

    def kill(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).kill()
        self._first.wait()
        self.switch.ip(f"link del {self.port}", check=False)  # the kernel is about to remove it, or has done so
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()


class Switch:
    """The network between the hosts, in a namespace of its own."""

    def __init__(self) -> None:
        script = "ip link set lo up; echo ready; exec sleep infinity"
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "bash", "-c", script]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.ip("link add bridge type bridge")
        self.ip("addr add 10.77.0.1/24 dev bridge")
        self.ip("link set bridge up")

    def ip(self, arguments: str, check: bool = True) -> None:
        inside = ["nsenter", "-t", str(self._process.pid), "--net"]
        errors = None if check else subprocess.DEVNULL
        subprocess.run([*inside, "ip", *arguments.split()], check=check, stderr=errors)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Nodes:
    """A running cluster; node 0 is the head. Made by :func:`nodes`."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder = folder
        self.environment = {**SHELL, **ENVIRONMENT, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment |= {"PYTHONPATH": str(ROOT), **environment}
        self.environment.pop("RAY_ADDRESS", None)
        self.switch = Switch()
        self._nodes: list[Host] = []

    @property
    def address(self) -> str:
        """Of the cluster, for ``cluster.address``."""
        return f"{self._nodes[0].address}:{PORT}"

    def add(self) -> None:
        """Start one more node."""
        number = len(self._nodes)
        self._nodes.append(self._make(number))
        self._start(number)

    def start_again(self, number: int) -> None:
        """Start a node that was killed, at its old address."""
        self._nodes[number] = self._make(number)
        self._start(number)

    def kill(self, number: int) -> None:
        """End all processes of a node at once, drivers that run there too."""
        self._nodes[number].kill()

    def drain(self, number: int, seconds: int) -> None:
        """Announce the end of a node as a cloud's spot notice does. Killing it then is left to the caller."""
        command = [*_ray("drain-node"), "--address", self.address, "--node-id", self.node_id(number)]
        command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        command += ["--deadline-remaining-seconds", str(seconds)]
        done = self.run(command).wait()
        assert done == 0

    def node_id(self, number: int) -> str:
        """Ray's id of a node."""
        code = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(*(n['NodeID'] for n in ray.nodes() "
        code += "if n['NodeName'] == sys.argv[2]))"
        process = self.run([sys.executable, "-c", code, self.address, str(number)], stdout=subprocess.PIPE, text=True)
        return str(process.communicate(timeout=60)[0]).split()[-1]

    def run(self, command: Sequence[str], on: int = 0, **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a node, in the checkout's root; by default its output goes to the test's."""
        return self._nodes[on].popen(list(command), **{"env": self.environment, "cwd": ROOT, **options})

    def python(self, arguments: Sequence[str], on: int = 0, log: Path | None = None) -> subprocess.Popen[Any]:
        """Start Python on a node, with its output in ``log``."""
        output = (log or self.folder / "python.log").open("ab")
        with output:
            return self.run([sys.executable, *arguments], on, stdout=output, stderr=subprocess.STDOUT)

    def _make(self, number: int) -> Host:
        folder = self.folder / f"node{number}"
        folder.mkdir(exist_ok=True)
        return Host(number, self.switch, folder)

    def _start(self, number: int) -> None:
        """Start a node's Ray; again if it gives up after its own 30 seconds, which are too few on a loaded machine."""
        end = time.monotonic() + STARTED_S
        while not self._joined(number, end):
            log = (self._nodes[number].folder / "ray.log").read_text()
            assert time.monotonic() < end, f"node {number} did not start:\n{log}"
            self.kill(number)
            self._nodes[number] = self._make(number)

    def _joined(self, number: int, end: float) -> bool:
        """Whether a node that is started joins before its Ray or the time ends."""
        node = self._nodes[number]
        command = [*_ray("start"), "--block", "--disable-usage-stats", f"--node-ip-address={node.address}"]
        command += [f"--num-cpus={min(1, number)}", "--num-gpus=0", f"--object-store-memory={100 * 2**20}"]
        command += ["--min-worker-port=0", "--max-worker-port=0", f"--node-name={number}"]
        if number == 0:
            command += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        else:
            command += [f"--address={self.address}"]
        with (node.folder / "ray.log").open("wb") as log:
            process = node.popen(command, env=self.environment, cwd=ROOT, stdout=log, stderr=log)
        while process.poll() is None and time.monotonic() < end:
            if "--block" in (node.folder / "ray.log").read_text():
                return True
            time.sleep(0.2)
        return False

    def close(self) -> None:
        for node in reversed(self._nodes):
            node.kill()
        self.switch.close()


def _ray(command: str) -> list[str]:
    return [sys.executable, "-m", "ray.scripts.scripts", command]


@contextlib.contextmanager
def nodes(count: int, *, environment: dict[str, str] | None = None) -> Iterator[Nodes]:
    """A head without CPUs for work, and ``count`` nodes of one CPU.

    Args:
        environment: of Ray and of all that runs on the nodes.
    """
    if not hosts_work():
        pytest.skip("needs network and mount namespaces: root on Linux")
    folder = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))
    cluster = Nodes(folder, environment or {})
    try:
        for _ in range(count + 1):
            cluster.add()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
