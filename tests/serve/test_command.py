"""The real command, ``python -m serve.app``, seen from outside: how it ends."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from serve.schema import ErrorAnswer
from tests.serve.command import Command, serving, until
from tests.serve.hostile import picture

pytestmark = [pytest.mark.slow, pytest.mark.ray]
PATIENT = ("limits.timeout_s=300", "scaling.drain_s=300")
"""Settings that let a busy machine take its time."""


def test_after_sigterm_all_accepted_pairs_are_answered_and_new_requests_get_503(artifact: str, tmp_path: Path) -> None:
    """4 requests of 16 large pairs are under way; then the command is told to end."""
    form = [(side, (f"{side}.png", picture(1500, 1500, shade=40))) for side in ("before", "after")] * 16
    late: list[httpx2.Response] = []
    with serving(tmp_path, f"models.demo={artifact}", *PATIENT) as command, ThreadPoolExecutor(4) as threads:

        def ask() -> httpx2.Response:
            with command.client() as client:
                return client.post("/v1/captions", files=form)

        asked = [threads.submit(ask) for _ in range(4)]
        with command.client() as client:
            until(lambda: "idc_pairs_waiting 64.0" in client.get("/metrics").text, "64 pairs are waiting")
            command.process.send_signal(signal.SIGTERM)
            ended = threading.Event()
            prober = threading.Thread(target=probe, args=(command, ended, late))
            prober.start()
        answers = [one.result() for one in asked]
        until(lambda: command.process.poll() is not None, "the command ends")
        ended.set()
        prober.join()
    log = command.log.read_text()
    assert command.process.returncode == 0, log
    for answer in answers:
        assert answer.status_code == 200, (answer.text[:500], log)
        assert [result["error"] for result in answer.json()["results"]] == [None] * 16
    refused = [answer for answer in late if answer.status_code != 200]
    assert refused, "no request came between the signal and the end"
    for answer in refused:
        assert answer.status_code == 503, answer.text
        assert ErrorAnswer.model_validate_json(answer.content).error.code == "ending"
        assert int(answer.headers["retry-after"]) > 0


def probe(command: Command, ended: threading.Event, found: list[httpx2.Response]) -> None:
    """Small requests on new connections, again and again, as long as anything listens."""
    while not ended.is_set():
        try:
            with command.client() as client:
                found.append(client.get("/v1/models"))
        except httpx2.ConnectError:
            ended.wait(0.05)
