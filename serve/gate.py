"""ASGI middleware around all routes: request id, caller, origin, size and time of the body, error shape, log line.

Plain ASGI, around what parses bodies: a request without a token is refused before its body is read. Starlette's
middleware for hosts and body sizes answers in plain text, and counts neither seconds nor the memory of all requests.

A browser sends requests of any page to this machine, without asking the user. It marks them by ``Sec-Fetch-Site``
(relation of the page to this server) and ``Origin`` (address of the page), which no script can change; other programs
send neither.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import hashlib
import hmac
import re
import threading
import time
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idc.util.loopback import is_loopback
from serve.config import AuthConfig, LimitsConfig
from serve.errors import SAFE_HEADERS, ApiError, busy, error_response, internal_error
from serve.log import RequestContext, log, new_context
from serve.prometheus import ServingMetrics

PAGE, DOCS, SCHEMA, ALIVE, READY, METRICS = "/web/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"
CAPTIONS, CHAT, MODELS = "/v1/captions", "/v1/chat/completions", "/v1/models"
_OPEN = frozenset({"/", DOCS, SCHEMA, ALIVE, READY})
"""Paths that need no token, beside the files of the page; links on any page may lead to them."""
_NAMED = frozenset({CAPTIONS, CHAT, MODELS, METRICS, SCHEMA, ALIVE, READY})
"""Paths that logs and metrics name."""
_QUIET = frozenset({METRICS, SCHEMA, ALIVE, READY, "page"})
"""Routes that probes and browsers request frequently; only their failures are logged, to which a server that is not
ready yet does not count."""

_DOCS_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline' "
    "https://cdn.jsdelivr.net; img-src 'self' data: https://fastapi.tiangolo.com; frame-ancestors 'none'"
)
"""Content-Security-Policy of FastAPI's page of all routes: its scripts come from a public address."""
_MAX_ELEMENTS = 200_000
"""Most commas and opening brackets of a JSON body, at least one for each value, and percent signs of a form without
files; more take seconds and gigabytes to parse."""
_CLIENT_LEFT = 499
"""Status in logs and metrics of a request whose client left before the response began; nginx has the same."""
_SUCCESSOR_S = 5
"""Retry-After of a refusal at the end: by then another server may have taken over."""
_POLL_S = 0.05
_LIBC = ctypes.CDLL(None)
_M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
_WORTH_BYTES = 16 * 2**20
_TRIM_AFTER_S = 1.0


class Drain:
    """Counts the requests in progress in one front, which ends gracefully: new ones are refused, those are answered."""

    def __init__(self) -> None:
        self.draining = False
        self.replaced = False
        """Another front takes over: responses ask clients to connect again."""
        self.in_progress = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as in progress inside the ``with``; refuse it with 503 if the front is draining."""
        if self.draining:
            message = "the server is shutting down and accepts no new requests; try again later"
            raise ApiError(503, "ending", message, retry_after_s=_SUCCESSOR_S)
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    async def finish(self, timeout_s: float) -> int:
        """Refuse new requests and wait until none is in progress. Returns how many are left after ``timeout_s``."""
        self.draining = True
        last = time.monotonic() + timeout_s
        while self.in_progress and time.monotonic() < last:
            await asyncio.sleep(_POLL_S)
        return self.in_progress


def return_large_blocks() -> None:
    """Make glibc's allocator return blocks of 16 KiB and more as soon as they are freed. It otherwise keeps them
    between small ones that are still in use: a process that has forwarded 500 MiB of bodies stays that large."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, 16 * 1024)


class InFlightBytes:
    """Counts the bytes of bodies in memory; after many have been released, the allocator returns its remaining blocks,
    such as the small ones in which gRPC receives bodies."""

    def __init__(self) -> None:
        self.now = self._peak = 0

    def add(self, size: int) -> None:
        """Count bytes that have arrived; negative: those of an answered request."""
        self.now += size
        self._peak = max(self._peak, self.now)
        if self._peak - self.now > _WORTH_BYTES:
            self._peak = self.now
            # Later: the body is still referenced at this point. In a thread, because it takes a while.
            timer = threading.Timer(_TRIM_AFTER_S, _trim)
            timer.daemon = True
            timer.start()


def _trim() -> None:
    gc.collect()  # cancelled tasks are reference cycles, with the bodies in their frames
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)


class RequestMiddleware:
    """See the module."""

    def __init__(self, app: ASGIApp, *, auth: AuthConfig, limits: LimitsConfig, drain: Drain, metrics: ServingMetrics):
        self._app, self._auth, self._limits, self._drain, self._metrics = app, auth, limits, drain, metrics
        self._max_body = int(limits.body_mib * 2**20)
        self._in_flight = InFlightBytes()  # bodies of requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        context = new_context(scope, headers.get("x-request-id", ""))
        is_open = path in _OPEN or path.startswith(PAGE)
        context.route = path if path in _NAMED else "page" if is_open else "other"

        async def send_out(message: Message) -> None:
            if context.left and not context.status:
                context.status = _CLIENT_LEFT
            if context.status == _CLIENT_LEFT:
                return
            if message["type"] == "http.response.start":
                context.status = message["status"]
                out = MutableHeaders(scope=message)
                out.update({"X-Request-ID": context.request_id, **SAFE_HEADERS})
                if context.route == "page":
                    out["Cache-Control"] = "no-cache"  # ask whether it has changed
                if path == DOCS:
                    out["Content-Security-Policy"] = _DOCS_POLICY
                if self._drain.replaced:
                    out["Connection"] = "close"
            await send(message)

        try:
            try:
                client = scope.get("client")
                context.caller = caller_of(self._auth, client[0] if client else None, headers, is_open)
                if not is_open:  # links and bookmarks lead to the page
                    check_origin(headers, self._auth.origins)
                kind = headers.get("content-type", "").lower()
                # As the parser of forms reads it, which would decode with any codec of Python, quadratic ones too.
                if parse_options_header(kind)[1].get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
                    raise _not_utf_8()
                length = headers.get("content-length", "0")
                if not length.isdecimal() or float(length) > self._max_body:
                    raise self._too_large()
                is_json = not kind.startswith("multipart/")
                with nullcontext() if path == ALIVE else self._drain.request():
                    await self._app(scope, self._counted(receive, context, is_json), send_out)
            except Exception as error:
                refused = error if isinstance(error, ApiError) else internal_error()
                if refused is not error:
                    context.failure = traceback.format_exc()
                if context.status:  # the response has begun; the broken connection shows that it is incomplete
                    raise refused from None
                context.error = refused.code
                await error_response(refused, context.request_id)(scope, receive, send_out)
        except asyncio.CancelledError:  # Serve cancels requests whose client has left
            context.status, context.left = context.status or _CLIENT_LEFT, True
            raise
        finally:
            self._in_flight.add(-context.body_bytes)
            try:
                await context.cleanup.aclose()
            except Exception:  # the request has its answer; the log has the failure
                context.failure = context.failure or traceback.format_exc()
            if context.left:
                context.error = "client_left"
            self._metrics.request(context)
            if context.route not in _QUIET or (context.status >= 400 and context.error != "not_ready"):
                log(event="request", method=scope["method"], **context.entry())

    def _too_large(self) -> ApiError:
        message = f"the request body exceeds the limit of {self._limits.body_mib:g} MiB; send fewer pairs per request"
        return ApiError(413, "body_too_large", message)

    def _counted(self, receive: Receive, context: RequestContext, is_json: bool) -> Receive:
        """``receive`` that refuses a body when it grows too large or arrives too slowly, whatever its headers claim."""
        elements = 0

        async def counted() -> Message:
            nonlocal elements
            if context.body_ended:
                return await receive()
            try:
                async with asyncio.timeout(self._limits.timeout_s - context.seconds()):
                    message = await receive()
            except TimeoutError:
                why = f"the request body did not arrive within {self._limits.timeout_s:g} s"
                raise ApiError(408, "body_too_slow", why) from None
            except Exception:  # of Serve's ingress (TaskCancelledError), which has closed the connection itself
                context.left = True
                raise
            if message["type"] == "http.disconnect":
                context.left = True
                return message
            body = message.get("body", b"")
            context.body_bytes += len(body)
            self._in_flight.add(len(body))
            context.body_ended = not message.get("more_body", False)
            if is_json and b"\0" in body:  # UTF-16 or UTF-32, which Python's parser of JSON takes too
                raise _not_utf_8()
            elements += sum(map(body.count, b",[{%")) if is_json else 0
            if context.body_bytes > self._max_body:
                raise self._too_large()
            if elements > _MAX_ELEMENTS:
                raise ApiError(413, "json_too_long", f"the body has more than {_MAX_ELEMENTS:,} elements")
            if self._in_flight.now > self._limits.waiting_bytes:
                raise busy("too many large requests are in progress; try again")
            return message

        return counted


def _not_utf_8() -> ApiError:
    return ApiError(415, "not_utf_8", "the body is not UTF-8, or its Content-Type names another charset; send UTF-8")


def caller_of(auth: AuthConfig, address: str | None, headers: Headers, is_open: bool = False) -> str:
    """The caller for logs and limits: the name of its token, or the ``address`` of the connection's peer. Others are
    refused by 401 or 403."""
    if not auth.tokens:
        # Behind a proxy the peer is the proxy, and its headers about the client can be forged.
        if not is_loopback(address) or {"forwarded", "x-forwarded-for", "x-real-ip"} & set(headers):
            raise ApiError(403, "not_local", "without auth.tokens only requests from localhost are accepted")
        if not is_loopback(re.sub(r":\d+$", "", headers.get("host", "")).strip("[]").lower()):
            # A page of another site can make a browser send requests to a name of its own that resolves to 127.0.0.1
            # (DNS rebinding).
            message = "without auth.tokens the Host header must be localhost or 127.0.0.1"
            raise ApiError(403, "host_not_local", message)
        return str(address)
    if is_open:
        return address or "unknown"
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(401, "token_missing", "no access token; send the header Authorization: Bearer TOKEN")
    digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
    # With all: the time must not reveal a near match.
    names = [name for name, sha256 in auth.tokens.items() if hmac.compare_digest(sha256, digest)]
    if not names:
        raise ApiError(401, "token_unknown", "unknown access token")
    return names[0]


def check_origin(headers: Headers, allowed: Collection[str]) -> None:
    """Refuse (403) a request that comes from a foreign page whose origin is not ``allowed``."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "").lower()
    if origin in allowed:
        return
    # With same-origin, the browser compared with the address that it uses, which a proxy may have rewritten. The
    # origin "null" is no host.
    is_own = (
        origin is None or site == "same-origin" or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    )
    if site in ("cross-site", "same-site") or not is_own:
        page = f"web page of {origin[:100]!r}" if origin is not None else "web page of another origin"
        message = f"requests from a {page} are not accepted; the operator can allow its origin in auth.origins"
        raise ApiError(403, "foreign_origin", message)
