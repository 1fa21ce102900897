"""The record of one request, from its first byte to its log line; each stage of its processing adds to it."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

_LOGGED = ("request_id", "caller", "route", "status", "pairs", "model", "version")


@dataclass
class RequestContext:
    """One request: its id, its caller, its result and its times."""

    request_id: str
    caller: str = ""
    """Name of the token or, without tokens, address of the peer."""
    route: str = "other"
    status: int = 0
    """Of the response; 0 before it has begun, 499 if the client left before that."""
    pairs: int = 0
    model: str = ""
    version: str = ""
    error: str = ""
    """Code of the error response."""
    failure: str = ""
    """Traceback of an internal error."""
    body_bytes: int = 0
    """Read so far."""
    body_ended: bool = False
    left: bool = False
    """Whether the client left before the response."""
    started: float = field(default_factory=time.perf_counter)
    parsed: float = 0.0
    """Time at which the body had been read and parsed."""
    cleanup: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What ends with the request: its places in the queue, the work for it."""

    def seconds(self) -> float:
        """Seconds since the first byte."""
        return time.perf_counter() - self.started

    def entry(self) -> dict[str, Any]:
        """The fields of the log line."""
        failed = {name: value for name in ("error", "failure") if (value := getattr(self, name))}
        return {name: getattr(self, name) for name in _LOGGED} | {"ms": round(self.seconds() * 1000, 1)} | failed


def new_context(scope: Scope, client_id: str) -> RequestContext:
    """Attach a context to a request; its id is the client's if that is harmless in logs and headers."""
    context = RequestContext(client_id if re.fullmatch("[A-Za-z0-9._-]{1,64}", client_id) else uuid.uuid4().hex)
    scope["request_context"] = context
    return context


def context_of(scope: Scope) -> RequestContext:
    """The context of the request with this ASGI scope (``context_of(request.scope)``)."""
    context: RequestContext = scope["request_context"]
    return context
