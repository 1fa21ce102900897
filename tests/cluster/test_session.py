"""A local Ray as other machines see it, and the check of a cluster that is joined."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import requests

from cluster.config import ClusterConfig
from cluster.preflight import Bundle, Requirements, check_cluster, check_machine, probe, unmet
from cluster.session import session
from idc.config import ConfigError, ConfigModel, missing
from idc.util.loopback import bypass_proxies, patient_start
from tests.chat_server import serving
from tests.sockets import open_to_others


@pytest.mark.ray
def test_a_local_ray_listens_on_loopback_alone(ray_session: None) -> None:
    import ray

    @ray.remote
    def worker() -> str:
        return str(ray.util.get_node_ip_address())

    assert ray.get(worker.remote()) == "127.0.0.1"
    assert open_to_others(psutil.Process()) == []


def test_a_socket_for_all_machines_is_found() -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_socket:
        me = psutil.Process()
        assert f"{me.name()} 0.0.0.0:{open_socket.getsockname()[1]}" in open_to_others(me)


def test_requests_to_this_machine_bypass_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `requests`, by which Ray's client submits jobs to the dashboard."""
    body = {"messages": [{"content": "x"}]}
    with serving() as server, serving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        for name, hosts in (("no_proxy", ""), ("NO_PROXY", "server.invalid,127.0.0.1")):
            monkeypatch.setenv(name, hosts)
        bypass_proxies()
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "server.invalid,127.0.0.1,localhost,::1"
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            assert requests.post(url, json=body, timeout=60).ok
        assert (len(server.paths), proxy.paths) == (2, [])
        assert requests.post("http://elsewhere.invalid/", json=body, timeout=60).ok
        assert len(proxy.paths) == 1


_SESSIONS = """
import os
from cluster.config import ClusterConfig
from cluster.session import session

before = dict(os.environ)
for _ in range(2):  # Ray reads its token once in a process
    with session(ClusterConfig(num_cpus=4, num_gpus=0, object_store_mb=100)):
        import ray

        folder = ray._private.worker._global_node.get_temp_dir_path()
        print(ray.get(ray.remote(os.getenv).remote("RAY_AUTH_MODE")), "in", folder)
changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
print("changed:", sorted(changed))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_sessions_leave_the_environment_as_it_was_whatever_the_length_of_tmpdir(tmp_path: Path) -> None:
    """A later Ray would watch neither its nodes nor its metrics, or not authenticate as its user says. A folder of
    temporary files such as Slurm's is too long for the paths of Ray's sockets."""
    long = tmp_path / ("a folder of temporary files of the job".replace(" ", "-") * 2)
    long.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "GLOO_"))}
    environment |= {"TMPDIR": str(long), "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _SESSIONS], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("token in /tmp/ray-", "changed:"))]
    assert (len(lines), lines[-1]) == (3, "changed: []"), done.stdout
    assert "is too long for the sockets of Ray: its session files are in /tmp/ray-" in done.stdout + done.stderr
    for line in lines[:2]:
        shutil.rmtree(Path(line.removeprefix("token in ")).parent)


def test_a_local_ray_has_time_to_start_and_one_line_if_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray 2.60 asks for its node, and gives up with a traceback if it is not there 30 s later."""
    asked, noticed, lines = list[int](), threading.Event(), list[str]()

    def get_node(number: int) -> dict[str, int]:
        asked.append(number)
        if len(asked) == 1:
            raise RuntimeError(f"there is no node {number}\nin the GCS")
        assert noticed.wait(60), "a long wait is not silent"
        return {"node": number}

    def event(_: str, text: str, level: str) -> None:
        lines.append(text)
        noticed.set()

    services = SimpleNamespace(get_node=get_node)
    monkeypatch.setattr("idc.util.logs.event", event)
    monkeypatch.setattr("idc.util.loopback._NOTICE_S", 0.0)
    for name in ("RAY_gcs_server_port_wait_time_s", "RAY_raylet_start_wait_time_s"):
        monkeypatch.setenv(name, "30")
    with patient_start(services):
        assert services.get_node(7) == {"node": 7}
    assert services.get_node is get_node
    assert lines == ["Ray has been starting for 0 s: the machine is busy; it has 300 s"]
    asked.clear()
    monkeypatch.setattr("idc.util.loopback._START_S", -1.0)
    message = r"^Ray cannot start on this machine: there is no node 7 \(logs: /tmp/ray/session_latest/logs\)$"
    with pytest.raises(ValueError, match=message), patient_start(services):
        services.get_node(7)


SMALL = {"CPU": 4.0}
LARGE = {"CPU": 16.0, "GPU": 2.0}


class Job(ConfigModel):
    """A job with an input."""

    pairs: str

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")


@pytest.mark.parametrize(("bundle", "room"), [
    (Bundle("n", 6, 4.0), 6 - 1), (Bundle("n", 3, 1.0, 1.0), 2), (Bundle("n", 5, 1.0, 0.5), 4),
    (Bundle("n", 1, 17.0), 0), (Bundle("n", 3, 0.0, 1.0), 2),
])  # fmt: skip
def test_workers_that_do_not_fit_are_a_fault(bundle: Bundle, room: int) -> None:
    (fault,) = unmet([bundle], [SMALL, LARGE])
    assert fault.startswith(f"n: {bundle.workers} workers of ")
    assert f"there is room for {room} on the nodes (4 CPUs and 0 GPUs, 16 CPUs and 2 GPUs)" in fault
    assert list(unmet([bundle._replace(workers=room), Bundle("n", 100, 0.0)], [SMALL, LARGE])) == []


@pytest.mark.parametrize("local", [True, False])
def test_gpus_that_this_machine_lacks_are_refused_before_anything_starts(
    local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # also where other tests of this process have a Ray
    needed = Requirements(bundles=[Bundle("actors", 1, 1.0, 99.0), Bundle("more", 1, 1.0)])
    line = "^actors: 1 workers of 99 GPUs each, and this machine has [0-9]+; ask for none, or join a cluster"
    with pytest.raises(ConfigError, match=line), session(ClusterConfig(), needed, local):
        raise AssertionError
    check_machine(needed.bundles, num_gpus=99)


@pytest.mark.ray
def test_all_faults_of_a_cluster_are_told_at_once(ray_session: None, tmp_path: Path) -> None:
    out = tmp_path / "new" / "runs"
    check_cluster(Requirements(Job(pairs=str(tmp_path)), [Bundle("n", 1, 1.0)], str(out)), ClusterConfig())
    needed = Requirements(Job(pairs="nowhere"), [Bundle("train.num_workers", 1000, 1.0)], str(out))
    with pytest.raises(ValueError, match=r"the cluster is not ready .* faults: 2") as raised:
        check_cluster(needed, ClusterConfig())
    for part in (
        "train.num_workers: 1000 workers of 1 CPUs and 0 GPUs each",
        "pairs: no such file or folder: 'nowhere'",
    ):
        assert part in str(raised.value)
    assert list(out.iterdir()) == []
    with pytest.raises(ValueError, match="not ready") as raised:
        check_cluster(needed, ClusterConfig(grows=True))
    assert "1000 workers" not in str(raised.value)
    assert probe(None, str(out / "marker")) == [
        f"does not see what is written to {str(out)!r}; it must be on storage of all nodes"
    ]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write to .*file/runs': Not a directory"):
        check_cluster(Requirements(out=str(tmp_path / "file" / "runs")), ClusterConfig())
