"""The HTTP listener of ``python -m serve.app``: limits on connections before any route.

uvicorn limits neither the size of a head nor the time of a request nor connections, and has no public interface for it:
its protocol's methods and attributes (``cycle``, ``pipeline``, ``flow``, ``_start_asgi_task``) are those of the pinned
version, and used in this module alone. The size and time of a body that is being read are limited by ``serve/gate.py``,
also where Serve's proxy listens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
import uuid
from collections import Counter
from functools import partial
from operator import attrgetter
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from serve.config import LimitsConfig
from serve.errors import ApiError, error_response
from serve.log import log

_HEADER_LINES = 100
_PIPELINED = 8
"""Number of requests that a client may send before the preceding ones are answered (HTTP pipelining)."""
_FREE_CHUNKS, _CHUNK_BYTES = 1000, 64
"""Number of chunks that may have any size; the average of more must reach the second number. A chunk costs the parser
as much time as kilobytes of content."""
_BODY_PATIENCE_S = 5.0
"""Time in which the application refuses a slow body itself, before its connection is closed."""
_LOG_S = 1.0
"""Minimal time between two log lines about refusals, so that an attack does not fill the disk."""


def limited_server(app: ASGIApp, connections: Connections, **address: Any) -> uvicorn.Server:
    """A server of an application within the limits of ``connections``, for sockets that are passed to ``serve``, or for
    the ``host`` and ``port`` of ``address``."""
    return uvicorn.Server(
        uvicorn.Config(
            app, http=cast(Any, partial(LimitedProtocol, connections)), lifespan="off", ws="none", access_log=False,
            log_config=None, log_level="warning", proxy_headers=False, **address,
        )
    )  # fmt: skip


class Connections:
    """The open connections of a process."""

    def __init__(self, limits: LimitsConfig):
        self.limits = limits
        self._open: dict[LimitedProtocol, None] = {}  # the oldest first
        self._refused: Counter[str] = Counter()
        self._logged = 0.0

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._open)

    def admit(self, connection: LimitedProtocol) -> bool:
        """Count a new connection; if no place is left, close one that was refused, else the one that has been idle
        longest. False if there is none."""
        of_client = [other for other in self._open if other.client_key == connection.client_key]
        for others, most in ((of_client, self.limits.connections_each), (self._open, self.limits.connections)):
            if len(others) >= most:
                idle = [other for other in others if other.idle_since is not None]
                if not idle:
                    return False
                min(idle, key=attrgetter("idle_since")).close_now()
                self.note("connection_closed", connection.client_key)
        self._open[connection] = None
        return True

    def release(self, connection: LimitedProtocol) -> None:
        """Stop counting a connection."""
        self._open.pop(connection, None)

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

    Attributes:
        idle_since: time since which the connection has no request in progress, 0 if its last one was refused or
            answered before its end; None while a request is in progress.
    """

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._connections, self._limits = connections, connections.limits
        self._max_head = int(self._limits.head_kib * 1024)
        self._max_body = int(self._limits.body_mib * 2**20)
        self.client_key = ""
        self.idle_since: float | None = None
        self._ending = False  # the running request is answered before its body has ended
        self._dropping = False  # refused: what still comes is discarded, so that the response is not lost
        self._unparsed = 0  # bytes fed to the parser since its last report of a whole head, or of a part of a body
        self._in_body = False
        self._discarded = 0  # bytes
        self._body_size = self._chunks = 0  # of the current request
        self._running: RequestResponseCycle | None = None  # the request that is answered now, or was last
        self._answering: asyncio.Task[None] | None = None  # of the same request, until it is answered
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._patience_s = self._limits.timeout_s  # how long the running response may still wait for its client

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client_key = client_key(self.client[0] if self.client else "")
        self.idle_since = self.loop.time()
        if self._connections.admit(self):
            self._expect_head()
        else:
            self._refuse(503, "too_many_connections", "too many connections are open; try again", retry_after_s=1)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn notifies only the request that was read last
            self._running.disconnected = True
            self._running.message_event.set()
            if self._answering is not None and not self._running.response_complete:
                self._answering.cancel()
        self._connections.release(self)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()

    def close_now(self) -> None:
        """Close the connection at once, whatever is still to be sent or read."""
        self._connections.release(self)
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self._patience_s, self.close_now)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._patience_s = self._writing.when() - self.loop.time()
            self._writing.cancel()

    # -- incoming data

    def data_received(self, data: bytes) -> None:
        if self._reading is None and not self._in_body and self._answered:
            self._expect_head()  # also for bytes that the parser skips, such as empty lines
        while data:
            room = self._max_head if self._dropping else self._max_head - self._unparsed
            piece, data = data[:room], data[room:]
            if self._dropping:
                self._discarded += len(piece)
                if self._discarded > self._max_body:
                    self.close_now()
                continue
            if self.transport.is_closing():
                return
            self._unparsed += len(piece)
            super().data_received(piece)
            if self._unparsed >= self._max_head:
                message = f"the request line and headers exceed the limit of {self._limits.head_kib:g} KiB"
                self._refuse(431, "head_too_large", message)
                if not self._dropping:  # closed
                    return

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > _HEADER_LINES:
            raise httptools.HttpParserError("too many header lines")

    def send_400_response(self, msg: str) -> None:
        if len(self.headers or ()) > _HEADER_LINES:
            self._refuse(431, "head_too_large", f"the request has more than {_HEADER_LINES} header lines")
            return
        self._refuse(400, "invalid_http", "the request is not valid HTTP/1.1")

    # -- the parser's reports

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._body_size = self._chunks = 0
        self._expect_head()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            raise httptools.HttpParserError("too many pipelined requests")
        self._unparsed, self._in_body, self.idle_since = 0, True, None
        self._set_deadline(self._limits.timeout_s + _BODY_PATIENCE_S)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._unparsed = 0
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS + self._body_size / _CHUNK_BYTES:
            raise httptools.HttpParserError("too many small chunks")

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed, self._in_body = 0, False
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # paused by a large last piece, uvicorn would not notice that the client leaves

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running, self._patience_s = cycle, self._limits.timeout_s

        async def send_out(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start" and self.cycle is cycle and self._in_body:
                self._ending = True
                start = cast(dict[str, Any], message)
                headers = [*start.get("headers", ()), (b"connection", b"close")]
                await cycle.send(cast(ASGISendEvent, {**start, "headers": headers}))
                cycle.keep_alive = True  # else uvicorn closes at once, and unread bytes reset the response
            else:
                await cycle.send(message)

        async def until_client_leaves(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            task = self._answering = asyncio.current_task()
            try:
                await app(scope, receive, send_out)
            except asyncio.CancelledError:
                if not cycle.disconnected:  # else its client has left, which is no failure
                    raise
            finally:
                if self._answering is task:
                    self._answering = None

        super()._start_asgi_task(cycle, until_client_leaves)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ending and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._drop()
        elif self._answered and not self.pipeline:
            self.idle_since = self.loop.time()

    # -- limits

    @property
    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        self._set_deadline(self._limits.head_s)

    def _set_deadline(self, seconds: float) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        code = "body_too_slow" if self._in_body else "too_slow"
        self._refuse(408, code, "the request headers did not arrive in time")  # within a body nobody reads it

    def _refuse(self, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
        """End the connection, with an error response if the client can assign it to this request."""
        if self.transport.is_closing():
            return
        if self._dropping:  # refused or answered already
            self.close_now()
            return
        self._connections.note(code, self.client_key)
        if self._in_body or not self._answered or self.pipeline:
            self.close_now()  # the client would assign it to another request, or has a response
            return
        answer = error_response(ApiError(status, code, message, retry_after_s=retry_after_s), uuid.uuid4().hex)
        lines = [STATUS_LINE[status], b"connection: close\r\n"]
        lines += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
        self._drop()

    def _drop(self) -> None:
        """End the connection after its last response, without waiting for the rest of its request."""
        self.transport.write_eof()
        self.flow.resume_reading()  # with unread bytes, closing would reset the connection and lose the response
        self._dropping, self.idle_since = True, 0.0
        self._set_deadline(self._limits.head_s)


def client_key(address: str) -> str:
    """The client to which an address belongs: an IPv4 address, or the 64-bit IPv6 network of one customer."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return address
