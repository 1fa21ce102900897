"""Every request of ``tests/serve/hostile.py`` is refused with a proper error, and the server survives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest

from serve.api import create_api
from serve.schema import ErrorAnswer
from tests.serve.bodies import FORM, formed
from tests.serve.hostile import requests
from tests.serve.local import TOKEN, LocalBackend, local_config, serving, tokens_of
from tests.serve.wire import Hostile, Reply, send


@pytest.fixture(scope="module")
def servers(artifact: str) -> Iterator[dict[str, tuple[str, int]]]:
    """Addresses of two servers: one with tokens, one for localhost."""
    backend = LocalBackend(artifact)
    closed, open_here = (
        create_api(local_config(artifact, auth=auth), backend) for auth in ({"tokens": tokens_of(tester=TOKEN)}, {})
    )
    with serving(closed) as token, serving(open_here) as loopback:
        yield {name: ("127.0.0.1", urlsplit(address).port or 0) for name, address in
               (("token", token), ("loopback", loopback))}  # fmt: skip


def ask(servers: dict[str, tuple[str, int]], hostile: Hostile) -> Reply:
    """Send a request to the server to which it applies."""
    mode = hostile.only or "token"
    return send(*servers[mode], hostile, TOKEN if mode == "token" else None)


@pytest.mark.parametrize("hostile", requests(), ids=str)
def test_it_is_refused_with_a_proper_error(servers: dict[str, tuple[str, int]], hostile: Hostile) -> None:
    reply = ask(servers, hostile)
    if hostile.plain:
        assert reply.status == 0 or 400 <= reply.status < 500
        return
    assert reply.status == hostile.status, reply
    answer = ErrorAnswer.model_validate_json(reply.body)
    assert answer.error.param == hostile.param, answer
    assert len(answer.error.message) > 10
    assert len(reply.body) < 4000  # what was sent does not come back
    assert reply.headers["x-request-id"] == answer.request_id
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in reply.headers


BEARER = f"Authorization: Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("mode", "line", "headers", "status"),
    [
        ("token", "POST /v1/captions", [], 401),
        ("loopback", "POST /v1/captions", ["Origin: https://elsewhere.example"], 403),
        ("token", "POST /v1/nothing", [BEARER], 404),
    ],
)
def test_a_refusal_does_not_wait_for_the_rest_of_the_body(
    servers: dict[str, tuple[str, int]], mode: str, line: str, headers: list[str], status: int
) -> None:
    head = [f"{line} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers]
    with socket.create_connection(servers[mode], timeout=60) as connection:
        connection.sendall(("\r\n".join(head) + "\r\n\r\n5\r\nhello\r\n").encode())
        response = HTTPResponse(connection)
        response.begin()
        assert (response.status, response.getheader("connection")) == (status, "close")
        assert ErrorAnswer.model_validate_json(response.read())
        assert connection.recv(1) == b""


def test_the_server_survives(servers: dict[str, tuple[str, int]]) -> None:
    """Last of this file: everything above has been sent to the servers."""
    good = Hostile("a good request", 200, None, formed(), headers=FORM)
    for mode, token in (("token", TOKEN), ("loopback", None)):
        reply = send(*servers[mode], good, token)
        assert reply.status == 200, reply
        assert reply.json()["results"][0]["caption"]
