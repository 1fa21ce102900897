"""Server-sent events: results as soon as they are done, errors as events, and work that ends with its client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from serve import streaming
from serve.api import create_api
from serve.backend import EncodedPair
from serve.schema import StreamEnd
from tests.serve.bodies import picture, upload
from tests.serve.local import HELD, HeldBackend, local_config, serving
from tests.serve.waiting import until


@pytest.fixture(scope="module")
def backend(artifact: str) -> HeldBackend:
    return HeldBackend(artifact)


@pytest.fixture(scope="module")
def client(artifact: str, backend: HeldBackend) -> Iterator[httpx2.Client]:
    with serving(create_api(local_config(artifact), backend)) as address, httpx2.Client(base_url=address) as client:
        yield client


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """(name, data) of each event; a comment has the name ``:``."""
    name = "message"
    for line in lines:
        if line.startswith(":"):
            yield ":", line[1:].strip()
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
            name = "message"


GOOD = EncodedPair(picture(), picture(shade=140))
HELD_PAIR = EncodedPair(picture(HELD, 30), picture(shade=140))
DAMAGED = EncodedPair(picture(), picture()[:60])


def test_one_pair(client: httpx2.Client) -> None:
    asked = upload(GOOD, candidates=2, change_map=True)
    whole = client.post("/v1/captions", **asked).json()
    asked["data"]["stream"] = True
    with client.stream("POST", "/v1/captions", **asked) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        (result, answer), (done, end) = events(reply.iter_lines())
    assert (result, answer, done) == ("result", whole["results"][0], "done")
    assert StreamEnd.model_validate(end).request_id == reply.headers["x-request-id"]


def test_results_come_as_they_are_done(client: httpx2.Client, backend: HeldBackend) -> None:
    """The first pair is held back until the others have arrived, which requires that they do not wait for it."""
    backend.go_on.clear()
    with client.stream("POST", "/v1/captions", **upload(HELD_PAIR, DAMAGED, GOOD, stream=True)) as reply:
        assert reply.status_code == 200
        arriving = events(reply.iter_lines())
        early = sorted((data["index"], bool(data["error"])) for _, data in (next(arriving), next(arriving)))
        assert early == [(1, True), (2, False)]
        backend.go_on.set()
        name, data = next(arriving)
        assert (name, data["index"]) == ("result", 0)
        assert next(arriving)[0] == "done"
        assert list(arriving) == []


def test_a_request_without_a_good_pair_has_a_status(client: httpx2.Client) -> None:
    reply = client.post("/v1/captions", **upload(DAMAGED, stream=True))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "no_pair_captioned")


def test_a_cold_start_is_waited_for_with_comments_and_may_fail_late(
    client: httpx2.Client, backend: HeldBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "STATUS_S", 0.01)
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    backend.go_on.clear()
    damaged = upload(EncodedPair(HELD_PAIR.before, DAMAGED.after), stream=True)
    with client.stream("POST", "/v1/captions", **damaged) as reply:
        assert reply.status_code == 200
        arriving = events(reply.iter_lines())
        assert [next(arriving)[0] for _ in range(3)] == [":", ":", ":"]
        backend.go_on.set()
        name, data = next((name, data) for name, data in arriving if name != ":")
    assert name == "error"
    assert data["error"]["param"] == "after"
    assert data["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize("early", [True, False], ids=["before the first byte", "in the middle"])
def test_a_client_that_leaves_ends_the_work(
    client: httpx2.Client, backend: HeldBackend, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.go_on.clear()
    backend.cancelled.clear()
    pairs = [HELD_PAIR] if early else [HELD_PAIR, GOOD]
    monkeypatch.setattr(streaming, "STATUS_S", 0.05 if early else 60)
    with client.stream("POST", "/v1/captions", **upload(*pairs, stream=True)) as reply:
        if not early:
            assert next(events(reply.iter_lines()))[0] == "result"
    assert backend.cancelled.wait(60)
    backend.go_on.set()
    until(lambda: "idc_pairs_waiting 0.0" in client.get("/metrics").text, "its place in the queue is free again")
