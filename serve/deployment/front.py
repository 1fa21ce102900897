"""The replicas that answer HTTP; they hold no model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from idc.config import enter_root
from serve.config import ServeConfig
from serve.deployment.ray_internals import bind_to_node_address
from serve.deployment.replicas import Replicas
from serve.drain import Drain
from serve.log import Once
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

    def __serve_build_asgi_app__(self) -> FastAPI:
        from serve.api import create_api
        from serve.deployment.ray_metrics import RayMetrics

        return create_api(self._config, self._backend, self._drain, RayMetrics())

    async def drain(self) -> int:
        """Refuse new requests and answer those in progress. Returns how many are left after ``limits.timeout_s``."""
        return await self._drain.finish(self._config.limits.timeout_s)
