"""The record of one request, from its first byte to its log line; each stage of its processing adds to it."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.types import Scope

PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Request ids that are accepted from clients."""


@dataclass
class RequestContext:
    """One request: its id, its caller, its result and its times."""

    request_id: str
    caller: str = ""
    """Name of the token or, without tokens, address of the peer."""
    route: str = "other"
    """Route in logs and metrics."""
    status: int = 0
    """Status of the response; 0 before the response has begun, 499 if the client left before that."""
    pairs: int = 0
    model: str = ""
    version: str = ""
    error: str = ""
    """Code of the error response."""
    failure: str = ""
    """Traceback of an internal error."""
    body_bytes: int = 0
    """Bytes of the body read so far."""
    body_ended: bool = False
    left: bool = False
    """Whether the client left before the response."""
    started: float = field(default_factory=time.perf_counter)
    parsed: float = 0.0
    """Time at which the body had been read and parsed."""

    def seconds(self) -> float:
        """Seconds since the first byte."""
        return time.perf_counter() - self.started

    def body_parsed(self) -> None:
        """Record the time at which the body had been read and parsed."""
        self.parsed = time.perf_counter()

    def ms(self) -> float:
        """Milliseconds since the body was parsed."""
        return (time.perf_counter() - self.parsed) * 1000


def new_context(scope: Scope, given_id: str) -> RequestContext:
    """Attach a context to a request; its id is the client's if that is a :data:`PLAIN_ID`."""
    context = RequestContext(given_id if PLAIN_ID.fullmatch(given_id) else uuid.uuid4().hex)
    scope["request_context"] = context
    return context


def context_of(scope: Scope) -> RequestContext:
    """The context of the request with this ASGI scope (``context_of(request.scope)``)."""
    context: RequestContext = scope["request_context"]
    return context
