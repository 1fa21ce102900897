"""Fronts that listen themselves, as those of ``python -m serve.app``: killed and replaced under load."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
import psutil
import pytest

from serve.config import ServeConfig
from serve.port import SharedPort
from tests.serve.bodies import pair
from tests.serve.command import free_port
from tests.serve.local import local_config
from tests.serve.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]
CLIENTS = 6


@dataclass
class Listening:
    """The deployed application.

    Attributes:
        port: the socket that its fronts share.
    """

    url: str
    port: SharedPort
    config: ServeConfig

    def deploy(self, max_pairs: int) -> None:
        from ray import serve

        from serve.deployment.application import APPLICATION, application

        batching = self.config.batching.model_copy(update={"max_pairs": max_pairs})
        serve.run(application(self.config.model_copy(update={"batching": batching}), self.port.path), name=APPLICATION)


@dataclass
class Load:
    """Results of clients that send one request after the other.

    Attributes:
        anew: whether each request has a connection of its own.
    """

    anew: bool
    statuses: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def wait_for(self, more: int) -> None:
        """Wait until ``more`` further requests are over."""
        aim = len(self.statuses) + len(self.faults) + more
        until(lambda: len(self.statuses) + len(self.faults) >= aim, f"{more} more answers")


@contextmanager
def load(url: str, anew: bool) -> Iterator[Load]:
    """Send requests continuously inside the ``with``."""
    results, ended = Load(anew), threading.Event()

    def ask() -> None:
        client = httpx2.Client(base_url=url, timeout=120)
        while not ended.is_set():
            try:
                results.statuses.append(client.post("/v1/captions", json=pair()).status_code)
            except httpx2.HTTPError as error:
                results.faults.append(repr(error))
            if anew:
                client.close()
                client = httpx2.Client(base_url=url, timeout=120)
        client.close()

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        results.wait_for(2 * CLIENTS)
        yield results
        results.wait_for(2 * CLIENTS)
    finally:
        ended.set()
        for client in clients:
            client.join()


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
    with load(listening.url, anew) as results:
        listening.deploy(8 if anew else 6)
    assert (results.faults, set(results.statuses)) == ([], {200})


def test_a_killed_front_loses_no_request_but_those_in_progress(listening: Listening) -> None:
    with load(listening.url, anew=True) as results:
        fronts = [process for process in psutil.process_iter(["cmdline"]) if _is_front(process)]
        assert len(fronts) == 1
        os.kill(fronts[0].pid, signal.SIGKILL)
        results.wait_for(4 * CLIENTS)
    assert set(results.statuses) == {200}
    assert len(results.faults) <= CLIENTS, results.faults


def _is_front(process: psutil.Process) -> bool:
    return any(word.startswith("ray::ServeReplica:captions:Front") for word in process.info["cmdline"] or ())
