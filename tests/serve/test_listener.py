"""The socket of a command: how it is shared, and its limits over a small application: what is refused and closed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from serve.config import LimitsConfig
from serve.listener import Connections, client_key
from serve.port import SharedPort, receive_socket
from tests.serve.command import free_port
from tests.serve.local import serving
from tests.serve.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_that_arrive_between_two_fronts_wait_for_the_next(host: str) -> None:
    address = (host, free_port())
    port = SharedPort(*address)
    assert Path(port.path).parent.stat().st_mode & 0o077 == 0
    with pytest.raises(ConnectionRefusedError):  # nothing listens before the first front
        socket.create_connection(address, timeout=10)
    with pytest.raises(ValueError, match=rf"in use\); try port={address[1] + 1}"):  # and nobody else may
        SharedPort(*address)
    with receive_socket(port.path) as first:
        first.listen()
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(b"waiting")
        with receive_socket(port.path) as second:
            second.settimeout(10)
            accepted, _ = second.accept()
            with accepted:
                assert accepted.recv(7) == b"waiting"
            port.close()
            port.close()
            socket.create_connection(address, timeout=10).close()  # a front still listens
    assert not Path(port.path).parent.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=10)
    SharedPort(*address).close()  # though connections of before are in TIME_WAIT


class App:
    """Answers ``/`` with the number of bytes of the body, ``/early`` without reading it, and ``/held`` after
    :attr:`go` was set. ``/held`` reads the body after its first piece late, so that it has arrived whole."""

    def __init__(self, **limits: Any) -> None:
        constants = {name: limits.pop(name) for name in [*limits] if name not in LimitsConfig.model_fields}
        kind = type("Limits", (LimitsConfig,), {**constants, "__module__": __name__})
        self.connections = Connections(kind.model_validate(limits))
        self.asked, self.cancelled, self.go = threading.Semaphore(0), threading.Event(), threading.Event()
        self.port = 0

    async def answer(self, request: Request) -> Response:
        if request.url.path == "/held":
            pieces = request.stream()
            body = await anext(pieces)
            self.asked.release()
            time.sleep(0.2)  # blocks the server
            body += b"".join([piece async for piece in pieces])
            try:
                await asyncio.to_thread(self.go.wait, 60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        else:
            body = b"" if request.url.path == "/early" else await request.body()
        return PlainTextResponse(str(len(body)))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(self, data: bytes) -> tuple[int, str]:
        with self.connect() as connection:
            return answer_of(connection, data)


@contextmanager
def app(**limits: Any) -> Iterator[App]:
    served = App(**limits)
    routes = [Route(path, served.answer, methods=["GET", "POST"]) for path in ("/", "/early", "/held")]
    with serving(Starlette(routes=routes), served.connections) as address:
        served.port = int(address.rpartition(":")[2])
        try:
            yield served
        finally:
            served.go.set()


def answer_of(connection: socket.socket, data: bytes = b"") -> tuple[int, str]:
    """Status and text of the answer to ``data``; (0, "") if the connection ends without one."""
    with suppress(OSError):  # closed meanwhile; the answer, if there is one, can still be read
        connection.sendall(data)
    response = HTTPResponse(connection)
    try:
        response.begin()
        return response.status, response.read().decode()
    except (ConnectionError, ValueError, EOFError):
        return 0, ""


def refused(answer: tuple[int, str], status: int, code: str) -> bool:
    """Whether an answer is an error in the shape of all others."""
    return answer[0] == status and json.loads(answer[1])["error"]["code"] == code


def ended(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def post(path: str, length: int, body: bytes = b"") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode() + body


def chunked(chunk: bytes, times: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * times + b"0\r\n\r\n"


def head(*lines: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize("size", [0, 100_000])
def test_a_request_whose_client_leaves_is_cancelled(size: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Also with a body so large that uvicorn pauses reading, and with it the news that the client has left."""
    with app() as server:
        with server.connect() as connection:
            connection.sendall(post("/held", size, bytes(min(size, 1))))
            assert server.asked.acquire(timeout=60)
            connection.sendall(bytes(max(size - 1, 0)))
            with suppress(TimeoutError):
                connection.settimeout(0.3)
                connection.recv(1)
            assert not server.cancelled.is_set()
        until(server.cancelled.is_set, "the request is cancelled")
        until(lambda: server.connections.count == 0, "its connection is over")
        assert server.ask(GET) == (200, "0")
    assert "Exception" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("request_bytes", "answered"),
    [
        (head(*[b"X: " + b"x" * 5000] * 4), True),
        (head(*[b"X: x"] * 100), True),
        (head(b"X: " + b"x" * 2**24)[:-4], True),  # its end never comes
        (b"\r\n" * 2**16, True),
        (chunked(b"", 1)[:-2] + b"X: x\r\n" * 2**16 + b"\r\n", False),
        (chunked(b"", 1)[:-5] + b"1;" + b"x" * 2**20, False),
        (chunked(b"1\r\nx\r\n", 2000), False),
    ],
    ids=[
        "long lines",
        "many lines",
        "a line without end",
        "empty lines",
        "many trailers",
        "a chunk's extension",
        "tiny chunks",
    ],
)
def test_what_costs_more_than_a_head_may_is_refused_or_closed(request_bytes: bytes, answered: bool) -> None:
    with app() as served:
        answer = served.ask(request_bytes)
        assert refused(answer, 431, "head_too_large") if answered else answer == (0, "")
        assert served.ask(chunked(b"1\r\nx\r\n", 900)) == (200, "900")
        with served.connect() as connection:
            lines = head(b"X: " + b"x" * 12_000, *[b"X: x"] * 90)  # each head has the limit for itself
            assert [answer_of(connection, lines)[0] for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("begun", "answer"),
    [(b"", "too_slow"), (GET[:-2] + b"X: x", "too_slow"), (post("/", 5, b"x"), ""), (post("/early", 5, b"x"), None)],
    ids=["nothing", "half a header", "half a body", "half a body, answered"],
)
def test_a_request_that_does_not_end_is_given_up(
    begun: bytes, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.listener._BODY_PATIENCE_S", 0.1)
    with app(head_s=0.2, timeout_s=0.4) as served, served.connect() as connection:
        if answer is None:
            assert answer_of(connection, begun) == (200, "0")
        elif answer:
            assert refused(answer_of(connection, begun), 408, answer)
        else:  # this application, unlike ours, does not refuse it itself
            assert answer_of(connection, begun) == (0, "")
        assert ended(connection)


def test_a_body_may_take_longer_than_a_head() -> None:
    with app(head_s=0.1, timeout_s=60) as served, served.connect() as connection:
        connection.sendall(post("/", 2, b"x"))
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):  # it is not refused
            connection.recv(1)
        connection.settimeout(60)
        assert answer_of(connection, b"x") == (200, "2")


def test_a_client_that_does_not_read_is_given_up() -> None:
    big = b"x" * 2**25

    async def large(request: Request) -> Response:
        return Response(big)

    connections = Connections(LimitsConfig(timeout_s=0.5))
    with serving(Starlette(routes=[Route("/", large)]), connections) as address, socket.socket() as connection:
        connection.connect(("127.0.0.1", int(address.rpartition(":")[2])))
        connection.sendall(GET)
        assert connection.recv(10)
        until(lambda: connections.count == 0, "it is closed")
        assert ended(connection)


def test_a_client_that_reads_slowly_without_end_is_given_up() -> None:
    """Each time that it reads a little, more is sent; all its pauses together are counted."""

    async def endless_answer(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun"
            while connections.count:
                yield bytes(2**16)

        return StreamingResponse(parts())

    connections = Connections(LimitsConfig(timeout_s=0.5))
    with serving(Starlette(routes=[Route("/", endless_answer)]), connections) as address, socket.socket() as connection:
        connection.connect(("127.0.0.1", int(address.rpartition(":")[2])))
        connection.sendall(GET)

        def reads_until_it_is_closed() -> bool:
            with suppress(ConnectionResetError):
                connection.recv(2**19)
            return connections.count == 0

        until(reads_until_it_is_closed, "it is closed")


def test_half_open_connections_give_way() -> None:
    with app(head_s=60, connections=4) as served, ExitStack() as stack:
        half_open = [stack.enter_context(served.connect()) for _ in range(40)]
        for connection in half_open:
            with suppress(OSError):  # closed already
                connection.sendall(GET[:10])
        assert served.ask(GET) == (200, "0")
        assert all(ended(connection) for connection in half_open[:36])


def endless() -> bytes:
    """The beginning of a request whose body never ends."""
    return b"POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + b"x" * 4096 + b"\r\n"


def test_after_an_answer_no_more_is_read_than_a_body_may_have() -> None:
    with app(body_mib=1) as served, served.connect() as connection:
        assert answer_of(connection, endless()) == (200, "0")
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            connection.sendall((b"1000\r\n" + b"x" * 4096 + b"\r\n") * 2**14)
        assert served.ask(GET) == (200, "0")


def test_connections_that_were_answered_before_their_end_give_way_first() -> None:
    """As many as there are places, from each of four addresses, whose bodies never end."""
    with app(head_s=60, timeout_s=60, connections=8, connections_each=2) as served, ExitStack() as stack:
        honest = stack.enter_context(served.connect())
        assert answer_of(honest, GET) == (200, "0")  # and idle from now on, for longer than the others
        for number in range(8):
            connection = stack.enter_context(socket.socket())
            connection.bind((f"127.0.0.{2 + number % 4}", 0))
            connection.connect(("127.0.0.1", served.port))
            assert answer_of(connection, endless()) == (200, "0")
        for asked in (honest, stack.enter_context(served.connect())):
            assert answer_of(asked, GET) == (200, "0")


def test_connections_with_a_request_under_way_stay() -> None:
    with app(connections_each=3) as served, ExitStack() as stack:
        asked = [stack.enter_context(served.connect()) for _ in range(3)]
        for connection in asked:
            connection.sendall(post("/held", 1, b"x"))
            assert served.asked.acquire(timeout=60)
        with served.connect() as late:
            assert refused(answer_of(late), 503, "too_many_connections")
        served.go.set()
        assert [answer_of(connection) for connection in asked] == [(200, "1")] * 3


def test_requests_sent_ahead_without_end_are_refused_and_a_few_are_answered_in_their_order() -> None:
    with app() as served, served.connect() as connection:
        connection.sendall(post("/held", 0))
        with suppress(OSError):
            for _ in range(100):
                connection.sendall(GET * 1000)
        assert ended(connection)
        served.go.set()
        with served.connect() as other:
            other.sendall(GET * 2 + GET.replace(b"Host", b"Connection: close\r\nHost"))
            answers = b"".join(iter(lambda: other.recv(65536), b""))
            assert answers.count(b"HTTP/1.1 200 OK") == 3


def test_what_is_no_http_is_refused_in_our_shape() -> None:
    with app() as served:
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", head(b"X Bad: x")):
            assert refused(served.ask(data), 400, "invalid_http")
        upgrade = head(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: x")
        assert served.ask(upgrade) == (200, "0")


def test_an_ipv6_network_is_one_client() -> None:
    assert client_key("2001:db8::1") == client_key("2001:db8::ffff:2") != client_key("2001:db8:0:1::1")
    assert client_key("::ffff:192.0.2.7") == client_key("192.0.2.7") != client_key("192.0.2.8")
