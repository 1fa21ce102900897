"""Middleware for Serve's HTTP proxy, which precedes the application: installs the limits of :mod:`serve.listener`
and drops malformed X-Request-ID headers.

Serve copies any X-Request-ID to its logs and responses, and fails (500) if it is not UTF-8. Headers other than
:data:`serve.context.PLAIN_ID` are removed here, and Serve then generates an id. Serve and the application both add the
id to the response; one of the two equal headers is removed.

Set ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=serve.proxy:middlewares`` on all nodes of a cluster; on a local Ray the
fronts of ``python -m serve.app`` listen themselves (:mod:`serve.deployment.listening_front`).
The proxies do not see the application's settings: the environment variable :data:`serve.config.LISTENER_LIMITS` sets
limits other than the defaults, as JSON.
"""

from __future__ import annotations

import json
import os

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idc.config import load
from serve.config import LISTENER_LIMITS, LimitsConfig
from serve.context import PLAIN_ID
from serve.listener import install
from serve.memory import return_large_blocks


def middlewares() -> list[Middleware]:
    """The middleware for Serve's own handling of requests. Serve calls this in every process that listens for HTTP,
    before it starts uvicorn there."""
    limits = load(LimitsConfig, overrides=json.loads(os.environ.get(LISTENER_LIMITS, "{}")))
    return_large_blocks()
    install(limits, one_client=os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1")
    return [Middleware(PlainIds)]


class PlainIds:
    """Removes a malformed or repeated X-Request-ID from requests, and duplicates of it from responses."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            ids = [value for name, value in headers if name.lower() == b"x-request-id"]
            if ids and (len(ids) > 1 or not PLAIN_ID.fullmatch(ids[0].decode("latin-1"))):
                kept = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
                scope = {**scope, "headers": kept}

        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"] = list(message.get("headers", ()))
                ids = [position for position, (name, _) in enumerate(headers) if name.lower() == b"x-request-id"]
                for position in reversed(ids[1:]):
                    del headers[position]
            await send(message)

        await self._app(scope, receive, send_once)
