"""Scans of running commands: nothing that they start accepts connections from other machines."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.heads import clean_environment, ended_with_children
from tests.sockets import answering_to_others, listening, open_to_others, outward_addresses

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
AGENT_PORT = 52365


@contextmanager
def held(port: int) -> Iterator[None]:
    """A port of loopback in use, by us if by no one else."""
    with socket.socket() as own:
        with suppress(OSError):
            own.bind(("127.0.0.1", port))
            own.listen()
        with socket.socket() as caller:
            assert caller.connect_ex(("127.0.0.1", port)) == 0
        yield


@contextmanager
def running(folder: Path, *command: str) -> Iterator[psutil.Process]:
    """A command of ours in an environment without any setting of Ray's, with data and runs in ``folder``."""
    environment = clean_environment(folder, IDC_ROOT=str(folder), PYTHONPATH=str(ROOT))
    with (folder / "output.log").open("wb") as sink:
        started = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT
        )
    with ended_with_children(started) as process:
        yield process


@pytest.mark.ray
@pytest.mark.slow
def test_the_demo_on_ray_listens_on_loopback_alone(tmp_path: Path) -> None:
    """Also where another Ray holds the port of Ray's job agent."""
    with (
        held(AGENT_PORT),
        running(tmp_path, "jobs/demo.py", "--ray", "--systems", "twincap", "--no-robustness") as demo,
    ):
        log = tmp_path / "runs" / "demo" / "logs" / "01.log"
        last = time.monotonic() + PATIENCE_S
        while not (
            log.exists() and log.stat().st_size > 200
        ):  # the first job writes: Ray, its dashboard and workers run
            assert time.monotonic() < last, (tmp_path / "output.log").read_text()
            assert demo.status() != psutil.STATUS_ZOMBIE, (tmp_path / "output.log").read_text()
            time.sleep(0.2)
        assert "Ray dashboard: http://127.0.0.1:" in (tmp_path / "output.log").read_text()
        assert len(listening(demo)) > 8
        assert open_to_others(demo) == []
        assert answering_to_others(demo) == []


def test_a_socket_for_all_machines_is_found() -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_socket:
        port = open_socket.getsockname()[1]
        me = psutil.Process()
        assert f"{me.name()} 0.0.0.0:{port}" in open_to_others(me)
        if outward_addresses():
            assert any(address.endswith(f":{port}") for address in answering_to_others(me))
