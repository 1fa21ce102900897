"""What every request passes before and after its route: who asks, how much it sends, its id, its line in the log.

Plain ASGI, because it must count a body while it arrives and see an answer while it leaves.
"""

from __future__ import annotations

import asyncio
import re
import time
import traceback
import uuid
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.auth import Doorkeeper
from serve.config import LimitsConfig
from serve.drain import Drain
from serve.log import log
from serve.metrics import Metrics
from serve.origins import Origins
from serve.schema import ApiError

ALIVE = "/healthz"
"""Answered as long as the process lives, also while it drains."""
OWN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a caller's own id may look like."""
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""Headers of every answer: the page may load nothing from elsewhere, and nobody may frame it."""


@dataclass
class Visit:
    """One request, from its first byte to its line in the log. The routes fill in what they find out."""

    request_id: str
    caller: str = ""
    route: str = "other"
    status: int = 0
    pairs: int = 0
    model: str = ""
    version: str = ""
    error: str = ""
    """The code of the error that it was answered by."""
    failure: str = ""
    """The traceback, if it was our fault."""
    body_bytes: int = 0
    """Of the body, read so far."""
    body_ended: bool = False
    started: float = field(default_factory=time.perf_counter)
    arrived: float = 0.0
    """When the body was there as a whole."""

    def seconds(self) -> float:
        """Since the first byte."""
        return time.perf_counter() - self.started

    def arrived_whole(self) -> None:
        """Note that the body has been read."""
        self.arrived = time.perf_counter()

    def ms(self) -> float:
        """Milliseconds since the request was whole."""
        return (time.perf_counter() - self.arrived) * 1000


def visit_of(scope: Scope) -> Visit:
    """The visit that a route is called for (``visit_of(request.scope)``)."""
    visit: Visit = scope["visit"]
    return visit


class Gate:
    """Middleware around all routes; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        doorkeeper: Doorkeeper,
        origins: Origins,
        drain: Drain,
        metrics: Metrics,
        limits: LimitsConfig,
        open_paths: Collection[str],
        routes: Collection[str],
    ):
        """``open_paths`` are answered without a token, and to GET wherever the link was; ``routes`` are the paths that
        logs and metrics name."""
        self._app = app
        self._doorkeeper, self._metrics, self._limits = doorkeeper, metrics, limits
        self._origins, self._drain = origins, drain
        self._max_body = int(limits.body_mib * 2**20)
        self._held = 0  # bytes of all bodies that were read for requests not answered yet
        self._open, self._routes = frozenset(open_paths), frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        visit = Visit(given if OWN_ID.fullmatch(given) else uuid.uuid4().hex)
        path = scope["path"]
        visit.route = path if path in self._routes else "page" if path in self._open else "other"
        scope["visit"] = visit

        async def send_out(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-ID"] = visit.request_id
                for name, value in _SAFE.items():
                    out[name] = value
                for name, value in self._origins.answer_headers(headers).items():
                    out[name] = value
            await send(message)

        try:
            if self._origins.is_preflight(scope["method"], headers):
                await Response(status_code=204)(scope, receive, send_out)
                return
            self._admit(scope, headers, visit)
            with nullcontext() if path == ALIVE else self._drain.request():
                await self._app(scope, self._counted(receive, visit), send_out)
        except ApiError as error:
            await _answer(error, visit, scope, receive, send_out)
        except Exception:
            visit.failure = traceback.format_exc()
            fault = ApiError(500, "internal_error", "this went wrong here; the log has it under the request's id")
            await _answer(fault, visit, scope, receive, send_out)
        finally:
            self._held -= visit.body_bytes
            self._metrics.request(visit)
            if visit.route not in _QUIET or visit.status >= 400:
                _log(visit, scope["method"])

    def _admit(self, scope: Scope, headers: Headers, visit: Visit) -> None:
        client, is_open = scope.get("client"), scope["path"] in self._open
        visit.caller = self._doorkeeper.caller(client[0] if client else None, headers, open_path=is_open)
        if not (is_open and scope["method"] in ("GET", "HEAD")):  # links and bookmarks lead to the page
            self._origins.check(headers)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise ApiError(400, "bad_content_length", "Content-Length is not a number")
        if int(length) > self._max_body:
            raise self._too_large()

    def _counted(self, receive: Receive, visit: Visit) -> Receive:
        """``receive`` that refuses a body when it grows too large or comes too slowly, whatever its headers said."""

        async def counted() -> Message:
            if visit.body_ended:
                return await receive()
            try:
                async with asyncio.timeout(self._limits.timeout_s - visit.seconds()):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "body_too_slow", "the request did not come to its end in time") from None
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                visit.body_bytes += size
                self._held += size
                visit.body_ended = not message.get("more_body", False)
                if visit.body_bytes > self._max_body:
                    raise self._too_large()
                if self._held > self._limits.waiting_mib * 2**20:
                    raise ApiError(503, "busy", "too many large requests are under way; ask again", retry_after_s=1)
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, "body_too_large", f"a request may have {self._max_body / 2**20:g} MiB; send fewer pairs")


_QUIET = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "page"})
"""Routes that probes and browsers ask all the time; they are logged when they fail."""


def _log(visit: Visit, method: str) -> None:
    entry = {
        "event": "request",
        "request_id": visit.request_id,
        "caller": visit.caller,
        "method": method,
        "route": visit.route,
        "status": visit.status,
        "pairs": visit.pairs,
        "model": visit.model,
        "version": visit.version,
        "ms": round(visit.seconds() * 1000, 1),
    }
    if visit.error:
        entry["error"] = visit.error
    if visit.failure:
        entry["failure"] = visit.failure
    log(**entry)


async def _answer(error: ApiError, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
    if visit.status:  # the answer has begun; the connection's end tells that it is not whole
        raise error
    visit.error = error.code
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    await JSONResponse(error.body(visit.request_id), error.status, headers)(scope, receive, send)
