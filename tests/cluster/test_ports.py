"""Commands on a local Ray, where another Ray of this machine runs: they join their own, and nothing accepts connections
from other machines."""

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

_ON_RAY = """
import sys
from pathlib import Path
from cluster.commands import run_commands

folder = Path(sys.argv[1])
run_commands([("where", [str(folder / "where.py"), str(folder)], None)], folder, folder / "logs", on_ray=True)
"""
_WHERE = """
import os, sys, time
from pathlib import Path
import ray

folder = Path(sys.argv[1])
address = ray.init().address_info["webui_url"]
assert ray.get(ray.remote(os.getenv).remote("HOME"))
(folder / "joined").write_text(str(address))
while not (folder / "seen").exists():
    time.sleep(0.1)
"""


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


@pytest.mark.ray
@pytest.mark.slow
def test_commands_on_ray_join_its_own_ray_and_listen_on_loopback_alone(ray_session: None, tmp_path: Path) -> None:
    """Also where another Ray runs, and holds the port of Ray's job agent."""
    (tmp_path / "where.py").write_text(_WHERE)
    environment = clean_environment(tmp_path, PYTHONPATH=str(ROOT))
    log, joined = tmp_path / "output.log", tmp_path / "joined"
    with held(AGENT_PORT), log.open("wb") as sink:
        command = [sys.executable, "-c", _ON_RAY, str(tmp_path)]
        started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        with ended_with_children(started) as process:
            last = time.monotonic() + PATIENCE_S
            while not joined.exists():  # then Ray, its dashboard and workers run
                assert time.monotonic() < last, log.read_text()
                assert process.status() != psutil.STATUS_ZOMBIE, log.read_text()
                time.sleep(0.2)
            assert f"Ray dashboard: http://{joined.read_text()}\n" in log.read_text()
            assert len(listening(process)) > 8
            assert open_to_others(process) == []
            assert answering_to_others(process) == []
            (tmp_path / "seen").touch()
            assert started.wait(PATIENCE_S) == 0, log.read_text()


def test_a_socket_for_all_machines_is_found() -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_socket:
        port = open_socket.getsockname()[1]
        me = psutil.Process()
        assert f"{me.name()} 0.0.0.0:{port}" in open_to_others(me)
        if outward_addresses():
            assert any(address.endswith(f":{port}") for address in answering_to_others(me))
