"""The application on Ray Serve, seen from outside by HTTP: versions, replicas that die, redeployments under requests.

One deployment for all tests, whose order is that of its life: first behind Serve's proxy, as ``serve deploy`` makes it;
then with fronts that listen themselves, as those of ``python -m serve.app``.
"""

from __future__ import annotations

import http.client
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from idc.training.artifact import artifact_identity
from serve.config import ServeConfig
from tests.processes import descendants
from tests.serve.bodies import CAPTIONS, PAIR, Pair, picture, upload
from tests.serve.command import free_port
from tests.serve.local import TOKEN, described, tokens_of
from tests.serve.test_settings import Registry
from tests.serve.waiting import until

pytestmark = pytest.mark.ray
CLIENTS = 6
PAIRS = [Pair(picture(shade=40 * n), picture(shade=40 * n + 20)) for n in range(5)]
FIRST, SECOND, BROKEN = (f"models:/captioner/{number}" for number in (1, 2, 3))


@dataclass
class Deployed:
    """The application and its inputs; ``artifacts`` of the versions in the registry."""

    port: int
    args: dict[str, Any]
    artifacts: dict[str, Path]
    registry: Registry

    def client(self) -> httpx2.Client:
        return client_at(self.port)

    def ask(self, *pairs: Pair, model: str = "champion") -> dict[str, Any]:
        with self.client() as client:
            return dict(client.post(CAPTIONS, **upload(*pairs, model=model)).raise_for_status().json())

    def promote(self, version: str) -> None:
        self.registry.client.set_registered_model_alias("captioner", "champion", version[-1])


def client_at(port: int) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120)


def perturbed(artifact: Path, target: Path, factor: float) -> Path:
    """The same captioner with other weights, so that its confidences differ."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(artifact, target)
    weights = target / "model.safetensors"
    save_file({name: tensor * factor for name, tensor in load_file(weights).items()}, weights)
    return target


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the environment of Ray, which starts after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IDC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def app(
    cache: None, ray_session: None, artifact: str, mlflow_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    """Two models, one of them the champion of a registry with three versions, of which the third is broken."""
    from ray import serve

    from serve.app import build
    from serve.deployment.application import APPLICATION

    folder = tmp_path_factory.mktemp("app")
    registry = Registry(f"sqlite:///{shutil.copyfile(mlflow_database, folder / 'mlflow.db')}", folder)
    artifacts = {
        version: perturbed(Path(artifact), folder / version[-1], 1 + int(version[-1]) / 50)
        for version in (FIRST, SECOND, BROKEN)
    }
    (artifacts[BROKEN] / "model.safetensors").write_bytes(b"broken")
    for changed in artifacts.values():
        registry.add(changed)
    port = free_port()
    args = {
        "models": {"champion": "models:/captioner@champion", "folder": artifact},
        "auth": {"tokens": tokens_of(tester=TOKEN)},
        "scaling": {"min_replicas": 2, "max_replicas": 2, "cpus": 0.5, "max_pairs": 4},
        "tracking_uri": registry.uri,
    }
    app = Deployed(port, args, artifacts, registry)
    app.promote(FIRST)
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
    serve.run(build(args), name=APPLICATION)
    yield app
    serve.shutdown()


@dataclass
class Load:
    """Results of clients that send requests all the time; ``versions`` are those of the answers, else their texts."""

    statuses: list[int] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def wait_for(self, more: int) -> None:
        """Wait until ``more`` further requests are over."""
        aim = len(self.statuses) + len(self.faults) + more
        until(lambda: len(self.statuses) + len(self.faults) >= aim, f"{more} more answers")

    def assert_all_answered(self) -> None:
        assert not self.faults, self.faults
        assert set(self.statuses) == {200}, self.versions[-1]


@contextmanager
def load(connect: Callable[[], httpx2.Client], *, anew: bool = False, **fields: str) -> Iterator[Load]:
    """Requests for captions inside the ``with``, twice as many as there are clients before and after what it holds;
    ``anew``: each has a connection of its own."""
    results, ended = Load(), threading.Event()

    def ask(number: int) -> None:
        client = connect()
        while not ended.is_set():
            try:
                answer = client.post(CAPTIONS, **upload(PAIRS[number % len(PAIRS)], **fields))
            except httpx2.HTTPError as error:
                results.faults.append(repr(error))
            else:
                results.versions.append(answer.json().get("version") or answer.text)
                results.statuses.append(answer.status_code)
            if anew:
                client.close()
                client = connect()
        client.close()

    with ThreadPoolExecutor(CLIENTS) as clients:
        try:
            asked = [clients.submit(ask, number) for number in range(CLIENTS)]
            results.wait_for(2 * CLIENTS)
            yield results
            results.wait_for(2 * CLIENTS)
        finally:
            ended.set()
    for client in asked:
        client.result()


@pytest.mark.parametrize("model", ["champion", "folder"])
def test_captions_are_those_of_the_model_that_was_asked(app: Deployed, artifact: str, model: str) -> None:
    answer = app.ask(*PAIRS, model=model)
    version = {"champion": FIRST, "folder": f"sha256:{artifact_identity(artifact)[:12]}"}[model]
    assert answer["version"] == version
    captions = described(str(app.artifacts.get(version, artifact)), *PAIRS)
    for result, expected in zip(answer["results"], captions, strict=True):
        assert result["caption"] == expected.caption
        assert result["log_probability"] == pytest.approx(expected.candidates[0].log_probability, abs=1e-4)
    assert answer["timing"]["largest_batch"] <= 4  # the request was cut into pieces


def test_a_new_champion_takes_over_without_a_failed_request(app: Deployed) -> None:
    with load(app.client, model="champion") as results:
        app.promote(SECOND)
        # Each replica looks for itself: of so many answers, none is from one that has not looked yet.
        until(lambda: set(results.versions[-50:]) == {SECOND} or results.faults, "version 2 answers")
    results.assert_all_answered()
    assert set(results.versions) == {FIRST, SECOND}


def test_a_champion_that_cannot_be_loaded_leaves_the_one_before_in_place(app: Deployed) -> None:
    app.promote(BROKEN)
    with app.client() as client:

        def is_refused() -> bool:
            return f"{BROKEN} cannot be served" in client.get("/v1/models").text

        until(is_refused, "3 is refused")
        assert app.ask(PAIR)["version"] == SECOND
        app.promote(FIRST)  # a rollback
        until(lambda: not is_refused() and app.ask(PAIR)["version"] == FIRST, "version 1 answers")


def test_requests_of_a_replica_that_is_killed_are_answered_by_another(app: Deployed) -> None:
    import ray
    from ray.util import list_named_actors

    with load(app.client, model="folder") as results:
        names = [entry["name"] for entry in list_named_actors(all_namespaces=True) if "#Model#" in entry["name"]]
        assert len(names) == 2
        ray.kill(ray.get_actor(names[0], namespace="serve"))
        results.wait_for(30)
    results.assert_all_answered()


class Listening:
    """The same application, whose fronts share a socket."""

    def __init__(self, app: Deployed) -> None:
        from serve.port import SharedPort

        self.address = "127.0.0.1", free_port()
        self.port = SharedPort(*self.address)
        self._args = app.args

    def client(self) -> httpx2.Client:
        return client_at(self.address[1])

    def deploy(self, max_pairs: int) -> None:
        from ray import serve

        from serve.deployment.application import APPLICATION, application

        scaling = {"min_replicas": 1, "max_replicas": 1, "cpus": 0.5, "max_pairs": max_pairs}
        config = ServeConfig.model_validate({**self._args, "scaling": scaling})
        serve.run(application(config, self.port.path), name=APPLICATION)


@pytest.fixture(scope="module")
def listening(app: Deployed) -> Iterator[Listening]:
    listening = Listening(app)
    listening.deploy(4)
    yield listening
    listening.port.close()


@pytest.mark.slow
@pytest.mark.parametrize("anew", [False, True])
def test_a_redeployment_fails_no_request(listening: Listening, anew: bool) -> None:
    with load(listening.client, anew=anew) as results:
        listening.deploy(8 if anew else 6)
    results.assert_all_answered()


@pytest.mark.slow
def test_an_idle_connection_is_answered_once_more_before_its_front_leaves(listening: Listening) -> None:
    """With a client that never connects again: a connection closed while it is idle is an error of its next request."""
    connection = http.client.HTTPConnection(*listening.address, timeout=120)
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
        try:
            assert set(told.result(60)) == {200}
        finally:
            connection.close()  # ends the client of a front that never tells it


@pytest.mark.slow
def test_a_killed_front_loses_no_request_but_those_in_progress(listening: Listening) -> None:
    with load(listening.client, anew=True) as results:
        [front] = descendants(psutil.Process(), "ray::ServeReplica:captions:Front")
        front.kill()
        results.wait_for(4 * CLIENTS)
    assert set(results.statuses) == {200}
    assert len(results.faults) <= CLIENTS, results.faults
