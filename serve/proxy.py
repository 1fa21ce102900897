"""Middleware and control of Ray Serve's own HTTP code, which a request passes before the application.

Serve takes any X-Request-ID over into its logs and answers, and fails (500) at one that is no UTF-8. Only plain ones
are left (:data:`serve.gate.OWN_ID`); others are taken away here, and Serve then makes an id of its own. Both Serve and
the application name the id in the answer; one of the two equal headers is taken away.

Set ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=serve.proxy:middlewares`` on all nodes; ``python -m serve.app`` does.
"""

from __future__ import annotations

import signal
from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.gate import OWN_ID


def middlewares() -> list[Middleware]:
    """What Serve puts around its own handling of a request."""
    return [Middleware(PlainIds)]


class PlainIds:
    """Takes an X-Request-ID away that is not plain or is given more than once; an answer has it once."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            given = [value for name, value in headers if name.lower() == b"x-request-id"]
            if given and (len(given) > 1 or not OWN_ID.fullmatch(given[0].decode("latin-1"))):
                kept = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
                scope = {**scope, "headers": kept}

        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"] = list(message.get("headers", ()))
                ids = [place for place, (name, _) in enumerate(headers) if name.lower() == b"x-request-id"]
                for place in reversed(ids[1:]):
                    del headers[place]
            await send(message)

        await self._app(scope, receive, send_once)


def stop_listening(proxy: Any) -> None:
    """Close the listener of one of Serve's proxy actors gracefully; runs inside the actor (``__ray_call__``).

    New connections are refused, and what has been answered is sent to its end. Ray Serve itself only kills the proxy,
    with what is still in its buffers; these are attributes of the pinned version of Ray.
    """
    if hasattr(proxy, "_haproxy"):
        if _runs(proxy):
            proxy._haproxy._proc.send_signal(signal.SIGUSR1)  # HAProxy's soft stop
    else:
        _, server = proxy._start_http_server_task.result()
        server.should_exit = True


def has_stopped(proxy: Any) -> bool:
    """Whether a proxy that was told to :func:`stop_listening` has closed its last connection."""
    return not _runs(proxy) if hasattr(proxy, "_haproxy") else bool(proxy._running_http_server_task.done())


def _runs(manager: Any) -> bool:
    process = manager._haproxy._proc
    return process is not None and process.returncode is None
