"""The server's log, and the record of each request that becomes a line of it: one JSON object per line on standard
output, which Ray and Kubernetes collect, with the keys of :mod:`idc.util.logs`."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from idc.util import logs

_LOGGED = ("request_id", "caller", "route", "status", "pairs", "model", "version")
_NO_FAILURE = re.compile(re.escape(logs.START) + '[^"]*", "level": "info"')


def log(*, event: str, message: str = "", **entry: Any) -> None:
    """Write an event; its ``level`` is error for failures of the server, as opposed to refused requests. Entries must
    not contain tokens or image data."""
    failed = bool(entry.get("failure")) or entry.get("status", 0) >= 500 or event.endswith(("_failed", "_lost"))
    print(logs.line(event, message, "error" if failed else "info", **entry), flush=True)


def forward(batch: Mapping[str, Any], verbose: bool = True) -> None:
    """Print the output of a worker of a local Ray: lines of :func:`log` unchanged, others as entries ``output``.

    Ray's own printing adds a coloured prefix to each line, and drops lines of two workers that differ only in numbers.
    The lines of its autoscaler, which is idle on one machine, are left out.

    Args:
        batch: ``lines``, and ``pid`` and ``actor_name`` of the process that wrote them, as Ray collects them.
        verbose: if false, print only the entries of failures, to standard error.
    """
    for line in batch["lines"] if batch["pid"] != "autoscaler" else ():
        ours = line.startswith(logs.START)
        if ours and (verbose or not _NO_FAILURE.match(line)):  # also one cut off when its process ended
            print(line, file=sys.stdout if verbose else sys.stderr, flush=True)
        elif verbose and not ours and (text := logs.without_colour(line).strip()):
            log(event="output", message=text, process=batch.get("actor_name") or str(batch["pid"]))


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
