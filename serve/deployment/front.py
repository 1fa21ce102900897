"""The replicas that answer HTTP; they hold no model."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING

from idc.config import enter_root
from serve.config import ServeConfig
from serve.deployment.ray_internals import bind_to_node_address
from serve.deployment.replicas import Replicas
from serve.drain import Drain
from serve.log import Once, log
from serve.memory import return_large_blocks

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve.handle import DeploymentHandle


class Front:
    """A replica that answers HTTP by :func:`serve.api.create_api`.

    Args:
        model: the replicas that hold the captioners.
    """

    async def __init__(self, config: ServeConfig, model: DeploymentHandle):  # type: ignore[misc]  # Ray awaits it
        enter_root()
        return_large_blocks()
        bind_to_node_address()
        logging.getLogger("ray.serve").addFilter(Once())
        self._config = config
        self._drain = Drain()
        self._backend = Replicas(config, model)
        await self._backend.refresh()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Look up the versions of all models periodically, without end."""
        while True:
            await asyncio.sleep(self._config.registry.poll_s)
            try:
                await self._backend.refresh()
            except Exception:  # the current versions continue to serve, and the next attempt may succeed
                log(event="refresh_failed", failure=traceback.format_exc())

    def __serve_build_asgi_app__(self) -> FastAPI:
        from serve.api import create_api
        from serve.deployment.ray_metrics import RayMetrics

        return create_api(self._config, self._backend, self._drain, RayMetrics())

    async def drain(self) -> int:
        """Refuse new requests and answer those in progress. Returns how many are left after ``scaling.drain_s``."""
        return await self._drain.finish(self._config.scaling.drain_s)
