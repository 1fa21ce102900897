"""A head of a Ray cluster as ``ray start`` makes it, in processes of its own on private ports of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.serve.command import free_port

PATIENCE_S = 200.0
"""A wait longer than this fails the test."""
RAY = str(Path(sys.executable).parent / "ray")


@dataclass(frozen=True)
class Head:
    """A running head.

    Attributes:
        address: host:port of its GCS.
        url: of its dashboard and Jobs API.
        process: ``ray start``, the parent of all others.
    """

    address: str
    url: str
    process: psutil.Process


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """This process's environment without any setting of Ray's or ours, and with another home folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "IDC_"))}
    kept.pop("PYTHONPATH", None)
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    return {**kept, "PATH": path, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", **more}


@contextmanager
def ended_with_children(started: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    """A process, killed with all its descendants at the end of the ``with``."""
    process = psutil.Process(started.pid)
    try:
        yield process
    finally:
        family = [*process.children(recursive=True), process] if process.is_running() else []
        for member in family:
            member.kill()
        psutil.wait_procs(family, timeout=30)
        started.wait()


@contextmanager
def running_head(environment: Mapping[str, str], *options: str) -> Iterator[Head]:
    """A head with 4 logical CPUs and a 100 MB object store on loopback, while the ``with`` lasts.

    Args:
        options: of ``ray start`` in addition.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    gcs, dashboard, *others = (free_port() for _ in range(5))
    agents = ("dashboard-agent-listen-port", "metrics-export-port", "ray-client-server-port")
    log = folder / "start.log"
    with log.open("wb") as sink:
        started = subprocess.Popen(
            [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}", "--num-cpus=4",
             "--num-gpus=0", "--object-store-memory=100000000", f"--dashboard-port={dashboard}",
             f"--temp-dir={folder}", *options,
             *(f"--{name}={port}" for name, port in zip(agents, others, strict=True))],
            env={**environment, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"},
            stdout=sink, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        with ended_with_children(started) as process:
            last = time.monotonic() + PATIENCE_S
            while "Ray runtime started" not in log.read_text():
                assert started.poll() is None, f"ray start ended:\n{log.read_text()}"
                assert time.monotonic() < last, f"ray start does not end:\n{log.read_text()}"
                time.sleep(0.1)
            yield Head(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
