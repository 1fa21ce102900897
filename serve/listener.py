"""Limits at the socket: size, time and number of HTTP connections, enforced before any route or authentication.

uvicorn limits neither the size and number of header lines, nor the time in which they arrive, nor the number of
connections. :class:`LimitedProtocol` is uvicorn's protocol with these limits; :func:`limited_server` serves by it.

uvicorn has no public interface for this: its protocol's methods and attributes (``cycle``, ``pipeline``, ``flow``,
``_start_asgi_task``, ``_should_upgrade_to_ws``, ``_unset_keepalive_if_required``) and its types are those of the pinned
version, and used in this module alone. With another version the limits or the answers to refused
requests may be missing: each limit has its test in ``tests/serve/test_listener.py``, and those of a running command in
``tests/serve/test_attacks.py``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from serve.config import LimitsConfig
from serve.errors import ApiError, body_too_large, error_response, too_many_bodies
from serve.log import log
from serve.memory import HeldBytes

_PIPELINED = 8
"""Number of requests that a client may send before the preceding ones are answered (HTTP pipelining)."""
_FREE_CHUNKS, _CHUNK_BYTES = 1000, 64
"""Number of chunks that may have any size; the average of more must reach the second number. A chunk costs the parser
as much time as kilobytes of content."""
_LOG_S = 1.0
"""Minimal time between two log lines about refusals, so that an attack does not fill the disk."""


def limited_server(app: ASGIApp, connections: Connections) -> uvicorn.Server:
    """A server of an application within the limits of ``connections``, for sockets that are passed to ``serve``."""
    return uvicorn.Server(
        uvicorn.Config(
            app, http=cast(Any, partial(LimitedProtocol, connections)), lifespan="off", ws="none", access_log=False,
            log_config=None, log_level="warning", proxy_headers=False,
        )
    )  # fmt: skip


class Connections:
    """The open connections of a process, and the bytes of unanswered request bodies."""

    def __init__(self, limits: LimitsConfig):
        self.limits = limits
        self.held = HeldBytes()
        """Bytes of the bodies of all unanswered requests."""
        self._each = min(limits.connections_each, limits.connections)
        self._of_client: dict[str, dict[LimitedProtocol, None]] = {}
        self._open: dict[LimitedProtocol, None] = {}
        self._arriving: dict[LimitedProtocol, None] = {}  # with an incomplete body, the oldest first
        self._refused: Counter[str] = Counter()
        self._logged = 0.0

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._open)

    def admit(self, connection: LimitedProtocol) -> bool:
        """Count a new connection. If no place is left, one that was refused is closed, else the one that has been idle
        longest.

        Returns:
            False if no place is left and no connection is idle.
        """
        of_client = self._of_client.get(connection.client_key, {})
        for connections, most in ((of_client, self._each), (self._open, self.limits.connections)):
            if len(connections) >= most:
                waiting = [
                    (not other.dropping, other.waiting_since, other)
                    for other in connections
                    if other.waiting_since is not None
                ]
                if not waiting:
                    return False
                min(waiting, key=itemgetter(0, 1))[2].close_now()
                self.note("connection_closed", connection.client_key)
        self._of_client.setdefault(connection.client_key, {})[connection] = None
        self._open[connection] = None
        return True

    def take(self, connection: LimitedProtocol, size: int) -> bool:
        """Count a part of a connection's body. If memory is exhausted, the bodies that began last are refused, so that
        the others can be completed.

        Returns:
            False if this body is among the refused ones.
        """
        self._arriving[connection] = None
        self.held.add(size)
        while self.held.now > self.limits.waiting_bytes:
            youngest = next(reversed(self._arriving))
            if youngest is connection:
                return False
            self.arrived(youngest)
            youngest.refuse(too_many_bodies())
        return True

    def arrived(self, connection: LimitedProtocol) -> None:
        """Record that a body is complete, or that the rest of it is not accepted."""
        self._arriving.pop(connection, None)

    def release(self, connection: LimitedProtocol) -> None:
        """Stop counting a connection."""
        self._open.pop(connection, None)
        self.arrived(connection)
        of_client = self._of_client.get(connection.client_key, {})
        of_client.pop(connection, None)
        if not of_client:
            self._of_client.pop(connection.client_key, None)

    def note(self, code: str, client: str) -> None:
        """Log a refusal, or count it for the next log line."""
        self._refused[code] += 1
        if time.monotonic() - self._logged >= _LOG_S:
            log(event="refused", client=client, refused=dict(self._refused), connections=len(self._open))
            self._logged = time.monotonic()
            self._refused.clear()


class LimitedProtocol(HttpToolsProtocol):
    """One HTTP connection, within the limits of :class:`~serve.config.LimitsConfig`.

    Refusals have the shape of all errors (:func:`serve.errors.error_response`) and end the connection.
    """

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._connections, self._limits = connections, connections.limits
        self._max_head = int(self._limits.head_kib * 1024)
        self._max_body = int(self._limits.body_mib * 2**20)
        self.client_key = ""
        self.waiting_since: float | None = None
        """Time since which the connection waits for a complete request head; None while a request is in progress."""
        self._refusal: ApiError | None = None
        self.dropping = False
        """Answered before its request had ended: further bytes are read and discarded, so that the response is not
        lost, but no more than a body may have, and only for a short time."""
        self._dropped = 0  # bytes
        self._head_size = self._head_lines = 0
        self._unparsed = 0  # bytes fed to the parser since its last report of a complete part of a message
        self._in_body = False
        self._body_size = self._chunks = 0  # of the current request
        self._held: dict[RequestResponseCycle, int] = {}  # body bytes of unfinished requests
        self._running: RequestResponseCycle | None = None  # the request that is answered now, or was last
        self._answering: asyncio.Task[None] | None = None  # of the same request, until it is answered
        self._early: RequestResponseCycle | None = None  # the request that is answered before its body has ended
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client_key = client_key(self.client[0] if self.client else "")
        self.waiting_since = self.loop.time()
        if self._connections.admit(self):
            self._expect_head()
        else:
            message = "too many connections are open; try again"
            self.refuse(ApiError(503, "too_many_connections", message, retry_after_s=1))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn notifies only the request that was read last
            self._running.disconnected = True
            self._running.message_event.set()
            if self._answering is not None and not self._running.response_complete:
                self._answering.cancel()
        self._connections.release(self)
        for cycle, _ in self.pipeline:  # they will not be answered
            self._give_back(cycle)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()

    def close_now(self) -> None:
        """Close the connection at once, whatever is still to be sent or read."""
        self._connections.release(self)
        if self._running is not None:
            self._running.disconnected = True
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self.close_now()  # uvicorn would wait until the client has read the last response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self._limits.timeout_s, self.close_now)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    # -- incoming data

    def data_received(self, data: bytes) -> None:
        if self._reading is None and not self._in_body and self._answered:
            self._expect_head()  # also for bytes that the parser skips, such as empty lines
        if self.dropping:
            self._dropped += len(data)
            if self._dropped > self._max_body:
                self.close_now()
            return
        for start in range(0, len(data), self._max_head):
            if self.dropping or self.transport.is_closing():
                return
            piece = data[start : start + self._max_head]
            self._unparsed += len(piece)
            super().data_received(piece)
            if self._unparsed > self._max_head:
                self.refuse(self._head_too_large())

    def send_400_response(self, msg: str) -> None:
        self.refuse(self._refusal or ApiError(400, "invalid_http", "the request is not valid HTTP/1.1"))

    def _should_upgrade_to_ws(self) -> bool:
        return False  # WebSocket is not supported

    # -- the parser's reports

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_size = self._head_lines = self._body_size = self._chunks = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_lines += 1  # including trailers
        self._count_head(len(name) + len(value) + len(": \r\n"))

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            message = "too many pipelined requests; wait for the responses before sending more"
            self._stop(ApiError(400, "too_many_pipelined", message))
        self._unparsed, self._in_body, self.waiting_since = 0, True, None
        self._set_deadline(self._limits.timeout_s, self._too_slow, "the request body did not arrive in time")
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._unparsed = 0
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS + self._body_size / _CHUNK_BYTES:
            message = f"the body has too many small chunks; send at least {_CHUNK_BYTES} bytes per chunk on average"
            self._stop(ApiError(400, "chunks_too_small", message))

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_size += len(body)
        if not self.cycle.response_complete:
            self._held[self.cycle] = self._held.get(self.cycle, 0) + len(body)
            if not self._connections.take(self, len(body)):
                self._stop(too_many_bodies())
            if self._body_size > self._max_body:
                self._stop(body_too_large(self._limits))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed, self._in_body = 0, False
        self._connections.arrived(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # paused by a large last piece, uvicorn would not notice that the client leaves

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle

        async def send_out(message: ASGISendEvent) -> None:
            early = message["type"] == "http.response.start" and self.cycle is cycle and self._in_body
            if early:
                start = cast(dict[str, Any], message)
                headers = [*start.get("headers", ()), (b"connection", b"close")]
                message = cast(ASGISendEvent, {**start, "headers": headers})
            await cycle.send(message)
            if early:
                # By its header uvicorn would close the connection at once, and unread bytes would reset it.
                self._early, cycle.keep_alive = cycle, True

        async def until_done(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            task = self._answering = asyncio.current_task()
            try:
                await app(scope, receive, send_out)
            except asyncio.CancelledError:
                if not cycle.disconnected:  # else its client has left, which is no failure
                    raise
            finally:
                if self._answering is task:
                    self._answering = None
                self._give_back(cycle)

        super()._start_asgi_task(cycle, until_done)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answered and not self.pipeline:
            self.waiting_since = self.loop.time()
        if self._early is self.cycle and not self.dropping and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._drop()

    # -- limits

    @property
    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _give_back(self, cycle: RequestResponseCycle) -> None:
        self._connections.held.release(self._held.pop(cycle, 0))

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._max_head or self._head_lines > self._limits.head_lines:
            self._stop(self._head_too_large())

    def _head_too_large(self) -> ApiError:
        limits = self._limits
        most = f"{limits.head_kib:g} KiB and {limits.head_lines} lines"
        return ApiError(431, "head_too_large", f"the request line and headers exceed the limit of {most}")

    def _expect_head(self) -> None:
        self._set_deadline(self._limits.head_s, self._too_slow, "the request headers did not arrive in time")

    def _set_deadline(self, seconds: float, action: Callable[..., None], *args: str) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self.loop.call_later(seconds, action, *args)

    def _too_slow(self, message: str) -> None:
        self.refuse(ApiError(408, "too_slow", message))

    def _stop(self, error: ApiError) -> None:
        """Refuse from inside the parser: the exception ends it, and uvicorn then calls send_400_response."""
        self._refusal = error
        raise httptools.HttpParserError(error.code)

    def refuse(self, error: ApiError) -> None:
        """End the connection, with an error response if the client can assign it to this request."""
        if self.dropping or self.transport.is_closing():
            return
        self._connections.note(error.code, self.client_key)
        running = not self._answered
        if self.pipeline or running != self._in_body or (running and self.cycle.response_started):
            self.close_now()  # the client would assign it to another request, or already has a response
            return
        if running:
            self.cycle.disconnected = True  # a later response of the application is dropped
            self.cycle.message_event.set()
            self._give_back(self.cycle)
        answer = error_response(error, uuid.uuid4().hex)
        lines = [STATUS_LINE[error.status], b"connection: close\r\n"]
        lines += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
        self._drop()

    def _drop(self) -> None:
        """End the connection after its last response, without waiting for the rest of its request."""
        self._connections.arrived(self)
        self.dropping = True
        self.waiting_since = self.waiting_since or self.loop.time()
        self._set_deadline(self._limits.head_s, self.close_now)
        self.transport.write_eof()
        self.flow.resume_reading()  # with unread bytes, closing would reset the connection and lose the response


def client_key(address: str) -> str:
    """The client to which an address belongs: an IPv4 address, or the 64-bit IPv6 network of one customer."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return address
