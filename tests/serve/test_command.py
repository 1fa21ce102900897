"""The real command, ``python -m serve.app``, from outside: its responses, its log, its start and its end.

One server for two tests; the second one ends it.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import torch
from safetensors.torch import save_file

from serve.schema import ErrorAnswer
from tests.serve.bodies import picture
from tests.serve.command import Command, free_port, serving, start
from tests.serve.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.ray]
LARGE = [(side, (f"{side}.png", picture(1500, 1500, shade=40))) for side in ("before", "after")] * 16
"""A form of 16 large pairs."""
SETTINGS = ("limits.timeout_s=300", "scaling.max_pairs=2")
"""Generous times for a busy machine; with small batches most pairs of a request wait in the front."""


@pytest.fixture(scope="module")
def command(artifact: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with serving(tmp_path_factory.mktemp("command"), f"models.demo={artifact}", *SETTINGS) as command:
        yield command


@contextmanager
def large_requests(command: Command) -> Iterator[list[Future[httpx2.Response]]]:
    """4 requests of 16 large pairs, all of them in progress; the last two are answered by streams."""

    def ask(stream: bool) -> httpx2.Response:
        with command.client() as client:
            return client.post("/v1/captions", files=LARGE, data={"stream": str(stream).lower()})

    with ThreadPoolExecutor(4) as threads, command.client() as client:
        asked = [threads.submit(ask, stream) for stream in (False, False, True, True)]
        until(lambda: "idc_pairs_waiting 64.0" in client.get("/metrics").text, "64 pairs are waiting")
        yield asked


def test_no_path_of_the_machine_is_answered(command: Command, artifact: str) -> None:
    with command.client() as client:
        form = LARGE[:2]
        answers = [client.get(path) for path in ("/v1/models", "/v1/models/demo", "/metrics", "/openapi.json")]
        answers += [
            client.post("/v1/captions", files=form),
            client.post("/v1/captions", files=form, data={"stream": "1"}),
        ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert str(Path(artifact).parents[1]) not in answer.text
    assert all('"sha256:' in answer.text for answer in (answers[0], answers[1], *answers[4:]))


def test_after_sigint_all_accepted_pairs_are_answered_and_new_requests_get_503(command: Command) -> None:
    """The last one, which ends the server."""
    late: list[httpx2.Response] = []
    ended = threading.Event()
    prober = threading.Thread(target=probe, args=(command, ended, late))
    with large_requests(command) as asked:
        command.process.send_signal(signal.SIGINT)
        prober.start()
        answers = [one.result() for one in asked]
    try:
        assert command.process.wait(PATIENCE_S) == 0, command.log.read_text()
    finally:
        ended.set()
        prober.join()
    assert [answer.status_code for answer in answers] == [200] * 4
    for answer in answers[:2]:
        assert [result["error"] for result in answer.json()["results"]] == [None] * 16
    for answer in answers[2:]:
        assert (answer.text.count("event: result"), answer.text.count("event: done")) == (16, 1), answer.text[-500:]
    refused = [answer for answer in late if answer.status_code != 200]
    assert refused, "no request came between the signal and the end"
    for answer in refused:
        assert answer.status_code == 503, answer.text
        assert ErrorAnswer.model_validate_json(answer.content).error.code == "ending"
        assert int(answer.headers["retry-after"]) > 0


def probe(command: Command, ended: threading.Event, found: list[httpx2.Response]) -> None:
    """Small requests on new connections, again and again, until the process has ended."""
    while not ended.is_set():
        try:
            with command.client() as client:
                found.append(client.get("/v1/models"))
        except httpx2.HTTPError:  # nothing listens any more
            ended.wait(0.05)


def test_it_serves_where_the_path_of_temporary_files_is_long(
    artifact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Slurm's: below it the paths of Ray's sockets would be too long."""
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with serving(tmp_path, f"models.demo={artifact}") as command, command.client() as client:
        client.post("/v1/captions", files=LARGE[:2]).raise_for_status()


def test_a_failed_deployment_and_a_second_sigint_end_the_command(artifact: str, tmp_path: Path) -> None:
    broken = shutil.copytree(artifact, tmp_path / "broken")
    save_file({"another": torch.zeros(1)}, broken / "model.safetensors")
    failing = start(tmp_path, free_port(), f"models.demo={broken}")
    assert failing.process.wait(PATIENCE_S) == 1, failing.log.read_text()
    assert "the application cannot start" in failing.log.read_text()
    with serving(tmp_path, f"models.demo={artifact}", *SETTINGS) as command, large_requests(command):
        command.process.send_signal(signal.SIGINT)
        until(lambda: "accepted requests are answered first" in command.log.read_text(), "it drains")
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(PATIENCE_S) == 130
