"""ASGI middleware around all routes: request id, authentication, origin, size of the body, error shape, log line.

It is plain ASGI because it must count a body while it arrives and see a response while it leaves.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.auth import Authenticator, check_origin
from serve.config import LimitsConfig
from serve.context import RequestContext, new_context
from serve.drain import Drain
from serve.errors import SAFE_HEADERS, ApiError, body_too_large, error_response, internal_error, too_many_bodies
from serve.log import log
from serve.memory import HeldBytes
from serve.prometheus import ServingMetrics

PAGE = "/web/"
"""Start of the paths of the page's files."""
DOCS = "/docs"
"""FastAPI's page of all routes."""
ALIVE = "/healthz"
"""Answered as long as the process runs, even while it drains."""
_QUIET = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "page"})
"""Routes that probes and browsers request frequently; only their failures are logged."""

_DOCS_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline' "
    "https://cdn.jsdelivr.net; img-src 'self' data: https://fastapi.tiangolo.com; frame-ancestors 'none'"
)
"""Content-Security-Policy of FastAPI's page of all routes: its scripts come from a public address."""
_MAX_ELEMENTS = 200_000
"""Most commas of a JSON body; more elements take seconds and gigabytes to parse."""
_CLIENT_LEFT = 499
"""Status in logs and metrics of a request whose client left before the response began; nginx has the same."""


class Gate:
    """The middleware; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        origins: Collection[str],
        drain: Drain,
        metrics: ServingMetrics,
        limits: LimitsConfig,
        open_paths: Collection[str],
        routes: Collection[str],
    ):
        """``open_paths`` need no token, and GET requests for them may come from links on any page; ``routes`` are the
        paths that logs and metrics name."""
        self._app = app
        self._authenticator, self._metrics, self._limits = authenticator, metrics, limits
        self._origins, self._drain = origins, drain
        self._max_body = int(limits.body_mib * 2**20)
        self._held = HeldBytes()  # bodies of requests that are not answered yet
        self._open, self._routes = frozenset(open_paths), frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = new_context(scope, headers.get("x-request-id", ""))
        path = scope["path"]
        is_open = path in self._open or path.startswith(PAGE)
        context.route = path if path in self._routes else "page" if is_open else "other"

        async def send_out(message: Message) -> None:
            if context.left and not context.status:
                context.status = _CLIENT_LEFT
            if context.status == _CLIENT_LEFT:
                return
            if message["type"] == "http.response.start":
                context.status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-ID"] = context.request_id
                for name, value in SAFE_HEADERS.items():
                    out[name] = value
                if context.route == "page":
                    out["Cache-Control"] = "no-cache"  # ask whether it has changed
                if path == DOCS:
                    out["Content-Security-Policy"] = _DOCS_POLICY
                if self._drain.replaced:
                    out["Connection"] = "close"
            await send(message)

        try:
            self._check_head(scope, headers, context, is_open)
            with nullcontext() if path == ALIVE else self._drain.request():
                is_json = not headers.get("content-type", "").startswith("multipart/")
                await self._app(scope, self._counted(receive, context, is_json), send_out)
        except ApiError as error:
            await _answer(error, context, scope, receive, send_out)
        except asyncio.CancelledError:  # Serve cancels requests whose client has left
            context.status, context.left = context.status or _CLIENT_LEFT, True
            raise
        except Exception:
            context.failure = traceback.format_exc()
            await _answer(internal_error(), context, scope, receive, send_out)
        finally:
            self._held.release(context.body_bytes)
            if context.left:
                context.error = "client_left"
            self._metrics.request(context)
            if context.route not in _QUIET or context.status >= 400:
                _log(context, scope["method"])

    def _check_head(self, scope: Scope, headers: Headers, context: RequestContext, is_open: bool) -> None:
        client = scope.get("client")
        address = client[0] if client else None
        context.caller = self._authenticator.authenticate(address, headers, open_path=is_open)
        if not (is_open and scope["method"] in ("GET", "HEAD")):  # links and bookmarks lead to the page
            check_origin(headers, self._origins)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise ApiError(400, "bad_content_length", "the Content-Length header is not a valid number")
        if int(length) > self._max_body:
            raise body_too_large(self._limits)

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
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                context.body_bytes += size
                self._held.add(size)
                context.body_ended = not message.get("more_body", False)
                if context.body_bytes > self._max_body:
                    raise body_too_large(self._limits)
                elements += message.get("body", b"").count(b",") if is_json else 0
                if elements > _MAX_ELEMENTS:
                    raise ApiError(413, "json_too_long", f"the JSON body has more than {_MAX_ELEMENTS:,} elements")
                if self._held.now > self._limits.waiting_bytes:
                    raise too_many_bodies()
            return message

        return counted


def _log(context: RequestContext, method: str) -> None:
    entry: dict[str, Any] = {
        "event": "request",
        "request_id": context.request_id,
        "caller": context.caller,
        "method": method,
        "route": context.route,
        "status": context.status,
        "pairs": context.pairs,
        "model": context.model,
        "version": context.version,
        "ms": round(context.seconds() * 1000, 1),
    }
    if context.error:
        entry["error"] = context.error
    if context.failure:
        entry["failure"] = context.failure
    log(**entry)


async def _answer(error: ApiError, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
    if context.status:  # the response has begun; the broken connection shows the client that it is incomplete
        raise error
    context.error = error.code
    await error_response(error, context.request_id)(scope, receive, send)
