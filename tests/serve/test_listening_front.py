"""Fronts that listen themselves, as those of ``python -m serve.app``: killed and replaced under load."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import psutil
import pytest

from serve.config import ServeConfig
from serve.listener import SharedPort
from tests.serve.bodies import upload
from tests.serve.command import free_port
from tests.serve.load import CLIENTS, load
from tests.serve.local import local_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@dataclass
class Listening:
    """The deployed application.

    Attributes:
        port: the socket that its fronts share.
    """

    url: str
    port: SharedPort
    config: ServeConfig

    def connect(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=120)

    def deploy(self, max_pairs: int) -> None:
        from ray import serve

        from serve.deployment.application import APPLICATION, application

        scaling = self.config.scaling.model_copy(update={"max_pairs": max_pairs})
        serve.run(application(self.config.model_copy(update={"scaling": scaling}), self.port.path), name=APPLICATION)


@pytest.fixture(scope="module")
def listening(ray_session: None, artifact: str) -> Iterator[Listening]:
    from ray import serve

    number = free_port()
    port = SharedPort("127.0.0.1", number)
    scaling = {"min_replicas": 1, "max_replicas": 1, "cpus": 0.5}
    application = Listening(f"http://127.0.0.1:{number}", port, local_config(artifact, scaling=scaling))
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    application.deploy(4)
    yield application
    serve.shutdown()
    port.close()


@pytest.mark.parametrize("anew", [False, True])
def test_a_redeployment_fails_no_request(listening: Listening, anew: bool) -> None:
    with load(listening.connect, [upload()], anew=anew) as results:
        listening.deploy(8 if anew else 6)
    assert results.all_answered(), (results.faults, set(results.statuses))


def test_an_idle_connection_is_answered_once_more_before_its_front_leaves(listening: Listening) -> None:
    """With a client that never connects again: a connection closed while it is idle is an error of its next request."""
    connection = http.client.HTTPConnection(listening.url.removeprefix("http://"), timeout=120)
    connection.connect()
    connection.auto_open = 0

    def ask_until_told() -> list[int]:
        statuses = []
        while True:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
            if answer.getheader("connection") == "close":
                return statuses
            time.sleep(0.2)  # idle

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(ask_until_told)
        listening.deploy(12)
        assert set(told.result(60)) == {200}


def test_a_killed_front_loses_no_request_but_those_in_progress(listening: Listening) -> None:
    with load(listening.connect, [upload()], anew=True) as results:
        fronts = [process for process in psutil.process_iter(["cmdline"]) if _is_front(process)]
        assert len(fronts) == 1
        os.kill(fronts[0].pid, signal.SIGKILL)
        results.wait_for(4 * CLIENTS)
    assert set(results.statuses) == {200}
    assert len(results.faults) <= CLIENTS, results.faults


def _is_front(process: psutil.Process) -> bool:
    return any(word.startswith("ray::ServeReplica:captions:Front") for word in process.info["cmdline"] or ())
