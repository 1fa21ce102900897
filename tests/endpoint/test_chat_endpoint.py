"""The client of language models on a real socket: refusals, repetitions, and endpoints that mean harm.

The answers of the latter, without end, too large, compressed or nested too deep, would be usable to a client without
that limit, so that its test fails instead of running for ever.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import pytest

from idc.endpoint.chat_endpoint import ChatEndpoint, EndpointError, NotAnswered, Reply, RequestConfig, RequestRefused
from idc.endpoint.stop_texts import before, settled
from tests.chat_server import serving as serving_answers

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
END = threading.Event()
"""Never set: what a slow endpoint waits for between two bytes."""


def completion(text: str = "fine", **more: object) -> bytes:
    return json.dumps({"model": "m", "choices": [{"message": {"content": text}}], **more}).encode()


def whole(body: bytes, head: bytes = OK) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def serving(send: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a server that reads a request and then lets ``send`` do what it likes with the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:  # the listener is closed
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection, connection.makefile("rb") as request:
                head = b"".join(iter(request.readline, b"\r\n")).lower()
                length = re.search(rb"content-length: (\d+)", head)
                request.read(int(length[1]) if length else 0)
                with suppress(OSError):  # the client left
                    send(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)


def endpoint(url: str, timeout_s: float = 30.0, attempts: int = 1) -> ChatEndpoint:
    config = RequestConfig(url=url, api_key_variable="NO_KEY", attempts=attempts, timeout_s=timeout_s)
    return ChatEndpoint(config, "m", temperature=0.0, max_tokens=5)


def in_drips(before: bytes, slow: bytes) -> Callable[[socket.socket], None]:
    """Sends ``before`` at once and ``slow`` byte by byte, each long before a time-out of a single read."""

    def send(connection: socket.socket) -> None:
        connection.sendall(before)
        for byte in slow:
            END.wait(0.05)
            connection.sendall(bytes([byte]))

    return send


SLOW_HEAD = in_drips(OK, b"X-Slow: " + 40 * b"x" + b"\r\n" + whole(completion(), b""))
SLOW_BODY = in_drips(OK + b"Content-Length: %d\r\n\r\n" % len(completion()), completion())


@pytest.mark.parametrize("send", [SLOW_HEAD, SLOW_BODY], ids=["head", "body"])
def test_the_time_out_is_that_of_the_whole_answer(send: Callable[[socket.socket], None]) -> None:
    with serving(send) as url:
        with pytest.raises(NotAnswered, match=r"no whole answer within 0\.5 s; gave up after 1 attempts") as late:
            endpoint(url, timeout_s=0.5).ask("x")
        assert late.value.timed_out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_endpoint_on_this_machine_is_asked_past_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_answers() as server, serving_answers() as proxy:
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        url = server.url.replace("127.0.0.1", host)
        endpoint(url).ask("x")
        assert (len(server.paths), proxy.paths) == (1, [])
        endpoint("http://models.invalid/v1").ask("x")
        assert len(proxy.paths) == 1


def test_a_compressed_answer_is_not_unpacked() -> None:
    body = gzip.compress(completion("a" * 50_000_000))
    assert len(body) < 100_000
    packed = whole(body, OK + b"Content-Encoding: gzip\r\n")
    refused = pytest.raises(NotAnswered, match="not a chat completion: it is compressed with 'gzip'")
    with serving(lambda connection: connection.sendall(packed)) as url, refused:
        endpoint(url).ask("x")


@pytest.mark.parametrize("status", [b"200 OK", b"500 Internal Server Error"])
def test_a_large_answer_is_not_read_to_its_end(status: bytes) -> None:
    sent = []

    def send(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b" " * 1_000_000)
            sent.append(1_000_000)

    with serving(send) as url, pytest.raises(NotAnswered, match="not a chat completion: it has more than 8 MiB"):
        endpoint(url).ask("x")
    assert sum(sent) < 30_000_000


@pytest.mark.parametrize(
    ("reply", "error", "line", "sent"),
    [
        ((401, "no"), EndpointError, r"401 Unauthorized: no; the key is read from \$NO_KEY$", 1),
        ((302, "", {"Location": "/elsewhere"}), EndpointError, "302", 1),
        ((400, "bad image"), RequestRefused, "400 Bad Request: bad image$", 1),
        ((500, "broken"), NotAnswered, "model m: 500 Internal Server Error: broken; gave up after 3 attempts$", 3),
        ((201, "<html>hi</html>"), NotAnswered, "chat/completions, model m: not a chat completion: <html>hi", 1),
        ((201, '{"choices": []}'), NotAnswered, "not a chat completion", 1),
    ],
)
def test_a_refusal_is_named_and_only_a_failure_is_tried_again(
    reply: tuple[Any, ...], error: type[Exception], line: str, sent: int, waited: list[float]
) -> None:
    with serving_answers() as server:
        server.answer = lambda number, content: reply
        with pytest.raises(error, match=line):
            endpoint(server.url, attempts=3).ask("x")
        assert server.paths == ["/v1/chat/completions"] * sent, "no redirection is followed"
    assert len(waited) == sent - 1


def test_later_means_later(waited: list[float]) -> None:
    replies = {1: (429, "slow down", {"Retry-After": "7"}), 2: (503, "busy"), 3: (200, "fine")}
    with serving_answers() as server:
        server.answer = lambda number, content: replies[number]
        assert endpoint(server.url, attempts=3).ask("x").text == "fine"
    assert waited[0] == 7
    assert 0.5 <= waited[1] <= 1


def test_a_server_that_is_not_there(waited: list[float]) -> None:
    with serving_answers() as closed:
        url = closed.url
    with pytest.raises(NotAnswered, match=r"Connect call failed .*; gave up after 2 attempts"):
        endpoint(url, attempts=2).ask("x")
    assert len(waited) == 1


DEEP = b"[" * 200_000
NESTED = b'{"a":' * 600 + b"1" + b"}" * 600
HUGE = b'{"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"logprob": 1%s}]}}]}' % (b"0" * 400)


@pytest.mark.parametrize("body", [DEEP, b'{"choices": [{"message": {"content": %s}}]}' % NESTED, HUGE])
def test_nesting_and_numbers_that_are_none_are_no_completion(body: bytes) -> None:
    refused = pytest.raises(NotAnswered, match=r"m: not a chat completion: .{9,300}$")
    with serving(lambda connection: connection.sendall(whole(body))) as url, refused:
        endpoint(url).chat([{"role": "user", "content": "x"}], log_probabilities=True)


def chunk(text: str, reason: str | None = None, **more: object) -> bytes:
    data = {"model": "m", "choices": [{"delta": {"content": text}, "finish_reason": reason}], **more}
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


EVENTS = OK.replace(b"application/json", b"text/event-stream") + b"Connection: close\r\n"


def on_text(url: str, timeout_s: float = 30.0) -> tuple[list[str], Reply | NotAnswered]:
    """The pieces of a streamed answer, and the answer or its error."""
    heard: list[str] = []
    try:
        return heard, endpoint(url, timeout_s).chat([{"role": "user", "content": "x"}], on_text=heard.append)[0]
    except NotAnswered as error:
        return heard, error


def test_a_stream_is_heard_and_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_KEY", "sk-0123456789")
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    body = chunk("a \u2028") + b": wait\n" + chunk("sk-0123") + chunk("456789 b", "length") + chunk("", usage=usage)
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]

    def send(connection: socket.socket) -> None:
        connection.sendall(EVENTS + b"\r\n")
        for piece in [*pieces, b"data: [DONE]\n\n"]:
            connection.sendall(piece)

    with serving(send) as url:
        heard, reply = on_text(url)
    assert reply == Reply("a \u2028*** b", "m", True, 5, 3)
    assert heard == ["a \u2028"], "the key is not passed on, nor a part of it"


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (in_drips(EVENTS + b"\r\n" + chunk("a"), b":" * 1000), r"broke off: no whole answer within 0\.5 s"),
        (lambda one: one.sendall(EVENTS + b"\r\n" + chunk("a") + b" " * 9_000_000), "it has more than 8 MiB"),
        (lambda one: one.sendall(EVENTS + b"\r\n" + chunk("a")), "the stream has no end"),
        (lambda one: one.sendall(EVENTS + b"\r\n" + chunk("a") + b'data: {"error": "no"}\n\n'), "KeyError"),
        (lambda one: one.sendall(EVENTS + b"\r\n" + chunk("a") + b"data: " + DEEP + b"\n\n"), "not a chat completion"),
    ],
    ids=["slow", "large", "no end", "error", "deep"],
)  # fmt: skip
def test_a_stream_that_fails(send: Callable[[socket.socket], None], reason: str) -> None:
    with serving(send) as url:
        heard, error = on_text(url, timeout_s=0.5 if "within" in reason else 30.0)
    assert heard == ["a"]
    assert isinstance(error, NotAnswered)
    assert re.search(reason, str(error)), error
    assert error.timed_out == ("within" in reason)


@pytest.mark.parametrize("stops", [[], ["b"], ["aab"], ["ab", "ba"], ["bcd", "abcde"], ["aba", "abab"], ["aa", "caab"]])
def test_settled_is_the_shortest_that_a_continuation_leaves(stops: list[str]) -> None:
    ends = ["".join(letters) for size in range(5) for letters in product("abcde", repeat=size)]
    for text in ["".join(letters) for size in range(5) for letters in product("abc", repeat=size)]:
        assert settled(text, stops) == min((before(text + end, stops) for end in ends), key=len)
