"""What a request passes in Ray Serve's own HTTP code before the application: the limits of connections and headers
(:mod:`serve.listener`), and the ids that callers give it.

Serve takes any X-Request-ID over into its logs and answers, and fails (500) at one that is no UTF-8. Only plain ones
are left (:data:`serve.gate.OWN_ID`); others are taken away here, and Serve then makes an id of its own.

Set ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=serve.proxy:middlewares`` on all nodes; ``python -m serve.app`` does.
The proxies do not see the application's settings: limits other than the defaults are set by the environment variable
:data:`serve.config.LISTENER_LIMITS`, as JSON.
"""

from __future__ import annotations

import json
import os

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from idc.config import load
from serve.config import LISTENER_LIMITS, LimitsConfig
from serve.gate import OWN_ID
from serve.listener import install
from serve.memory import return_large_blocks


def middlewares() -> list[Middleware]:
    """What Serve puts around its own handling of a request. Serve calls this in every process that listens for HTTP,
    before it starts uvicorn there."""
    limits = load(LimitsConfig, overrides=json.loads(os.environ.get(LISTENER_LIMITS, "{}")))
    return_large_blocks()
    install(limits, one_client=os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1")
    return [Middleware(PlainIds)]


class PlainIds:
    """Takes an X-Request-ID away that is not plain, or that is given more than once."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            given = [value for name, value in headers if name.lower() == b"x-request-id"]
            if given and (len(given) > 1 or not OWN_ID.fullmatch(given[0].decode("latin-1"))):
                kept = [(name, value) for name, value in headers if name.lower() != b"x-request-id"]
                scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)
