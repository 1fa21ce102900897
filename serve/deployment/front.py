"""The replicas that answer HTTP; they hold no model.

Those of ``python -m serve.app`` listen themselves: a request then has one hop fewer, from Serve's proxy to the front,
which costs several times as much as the application.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvicorn

from idc.config import enter_root
from serve.config import ServeConfig
from serve.deployment.ray_internals import bind_to_node_address
from serve.deployment.replicas import Replicas
from serve.drain import Drain
from serve.listener import Connections, limited_server, receive_socket
from serve.memory import return_large_blocks
from serve.prometheus import ServingMetrics

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve.handle import DeploymentHandle

_POLL_S = 0.05
_LEAVE_S = 10.0
"""Time for clients to leave a front that is replaced; longer than a connection may be idle (5 s in uvicorn)."""


class Front:
    """A replica that answers HTTP by :func:`serve.api.create_api`.

    Args:
        model: the replicas that hold the captioners.
        path: where the command passes its socket (:class:`serve.listener.SharedPort`), at which the front then listens;
            None behind Serve's proxy.
    """

    _server: uvicorn.Server | None = None

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: ServeConfig, model: DeploymentHandle, path: str | None = None
    ):
        enter_root()
        return_large_blocks()
        bind_to_node_address()
        self._config = config
        self._drain = Drain()
        self._backend = Replicas(config, model)
        if path is not None:
            self._connections = Connections(config.limits)
            self._server = limited_server(self.__serve_build_asgi_app__(), self._connections)
            self._serving = asyncio.create_task(self._server.serve(sockets=[receive_socket(path)]))
            while not self._server.started and not self._serving.done():
                await asyncio.sleep(_POLL_S)
            if self._serving.done():
                await self._serving  # raises why

    def __serve_build_asgi_app__(self) -> FastAPI:
        from ray.serve import metrics

        from serve.api import create_api

        return create_api(self._config, self._backend, self._drain, ServingMetrics(metrics))

    async def check_health(self) -> None:
        """Make Serve replace this replica if it does not listen any more; Serve calls it."""
        if self._server is not None and self._serving.done() and not self._server.should_exit:
            raise RuntimeError("the HTTP listener has ended")

    async def drain(self) -> int:
        """Refuse new requests and answer those in progress. Returns how many are left after ``limits.timeout_s``."""
        return await self._drain.finish(self._config.limits.timeout_s)

    async def close(self, timeout_s: float) -> None:
        """Stop listening, and end the connections when their responses have been sent, or after ``timeout_s``."""
        assert self._server is not None
        self._server.should_exit = True
        await asyncio.wait({self._serving}, timeout=timeout_s)

    async def __del__(self) -> None:
        """End this replica, which another one replaces; Serve calls it, and ends the process afterwards.

        New connections go to the other one; those that are open get their next response with ``Connection: close``.
        A connection closed without it could be that of a request that is just being sent.
        """
        if self._server is None:
            return
        self._drain.replaced = True
        for listener in self._server.servers:
            listener.close()
        loop = asyncio.get_running_loop()
        last = loop.time() + self._config.limits.timeout_s
        last_idle = loop.time() + _LEAVE_S
        while self._connections.count and loop.time() < (last if self._drain.in_progress else last_idle):
            await asyncio.sleep(_POLL_S)
        await self.close(max(0.0, last - loop.time()))
