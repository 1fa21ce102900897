"""The replicas that answer HTTP; they hold no model, and ask the ``Model`` replicas.

Those of ``python -m serve.app`` listen themselves: a request then has one hop fewer, from Serve's proxy to the front,
which costs several times as much as the application.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from idc.config import enter_root
from serve.backend import EncodedPair, ModelStatus, Options, Overloaded, PairResult, TextCallback
from serve.batching import Batcher
from serve.config import ServeConfig
from serve.deployment.ray_internals import bind_to_node_address
from serve.gate import Drain, return_large_blocks
from serve.listener import Connections, limited_server
from serve.port import receive_socket
from serve.prometheus import ServingMetrics

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve.handle import DeploymentHandle

_JOIN_S = 0.005
"""How long a request waits for others to share a call of a replica; only while earlier ones are under way."""
_STATUS_S = 1.0
"""Age up to which a status of Serve's controller, and of the models, is reused."""
_POLL_S = 0.05
_LEAVE_S = 10.0
"""Time for clients to leave a front that is replaced; longer than a connection may be idle (5 s in uvicorn)."""


class Replicas:
    """The ``Model`` replicas as the :class:`~serve.backend.Backend` of a front."""

    def __init__(self, config: ServeConfig, handle: DeploymentHandle):
        self._may_sleep = config.scaling.min_replicas == 0
        # Serve's default, cloudpickle, is slower, and only needed for objects that cannot be imported.
        self._handle = handle.options(request_serialization="pickle", response_serialization="pickle")
        self._stream = self._handle.options(stream=True)
        # A call costs a front and a replica about as much for one pair as for many.
        self._joined: Batcher[tuple[str, Options], EncodedPair, PairResult] = Batcher(
            self._call, config.scaling.max_pairs, wait_s=_JOIN_S
        )
        self._models, self._models_at = config.unknown_models(), 0.0
        self._status: Any = None
        """Serve's status of the deployment."""
        self._status_at = 0.0

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: TextCallback | None = None
    ) -> list[PairResult]:
        if on_text is None or pairs[0].dialogue is None:
            return await self._joined.submit((model, options), pairs)
        # Not joined: its pieces are those of one request.
        return [result async for _, result in self._call((model, options), pairs, on_text)]

    async def _call(
        self, key: tuple[str, Options], pairs: list[EncodedPair], on_text: TextCallback | None = None
    ) -> AsyncGenerator[tuple[int, PairResult], None]:
        """One call of a replica, with at most ``scaling.max_pairs`` pairs; with ``on_text``, of one. Yields the index
        and the result of each as soon as it is done. If the replica dies before its first piece or result, another one
        is called, once, and if it dies later, for the pairs without a result."""
        from ray.exceptions import RayActorError, RayTaskError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        (model, options), may_repeat = key, True
        left = dict(enumerate(pairs))
        while left:
            indices = list(left)
            items = self._items(model, list(left.values()), options, on_text is not None)
            try:
                async for item in items:
                    if isinstance(item, str):
                        assert on_text is not None
                        may_repeat = False
                        on_text(item)
                        continue
                    for position, result in item:
                        if isinstance(result, str):
                            raise ValueError(result)
                        del left[indices[position]]
                        yield indices[position], result
                break
            except RayActorError as error:  # it died or cannot be reached
                if not may_repeat:
                    raise Overloaded("the replica died during this request; try again") from error
                may_repeat = False
            except BackPressureError as error:
                raise Overloaded from error
            except DeploymentUnavailableError as error:
                raise Overloaded("no replica of the captioner can be started; see Serve's status and log") from error
            except RayTaskError as error:
                if isinstance(error.cause, Overloaded):
                    raise error.cause from None
                raise

    async def _items(
        self, model: str, pairs: list[EncodedPair], options: Options, speaks: bool
    ) -> AsyncGenerator[str | list[tuple[int, PairResult | str]], None]:
        """As :meth:`serve.deployment.model.Model.caption`; a stream of one result would cost more than a plain call."""
        response: Any
        try:
            if len(pairs) == 1 and not speaks:
                response = self._handle.caption_pair.remote(model, pairs[0], options)
                yield [(0, await response)]
            else:
                response = self._stream.caption.remote(model, pairs, options, speaks)
                async for item in response:
                    yield item
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def models(self) -> list[ModelStatus]:
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        # A replica is asked only if one runs: the question would start one.
        if time.monotonic() - self._models_at > _STATUS_S and await self._is_running():
            self._models_at = time.monotonic()
            with suppress(RayError, RayServeException):  # it ended meanwhile: what was known is still the best answer
                self._models = await self._handle.models.remote()
        return self._models

    async def ready(self) -> str | None:
        is_running = await self._is_running()
        if self._status is not None and self._status.status in ("UNHEALTHY", "DEPLOY_FAILED"):
            return "the replicas of the captioner fail; see Serve's status and log"
        return None if is_running or self._may_sleep else "no replica of the captioner is running yet"

    async def _is_running(self) -> bool:
        """Whether a replica is running, by Serve's controller."""
        from ray import serve

        if time.monotonic() - self._status_at > _STATUS_S:
            name = serve.get_replica_context().app_name
            applications = (await asyncio.to_thread(serve.status)).applications
            self._status = applications[name].deployments.get("Model") if name in applications else None
            self._status_at = time.monotonic()
        return self._status is not None and self._status.replica_states.get("RUNNING", 0) > 0


class Front:
    """A replica that answers HTTP by :func:`serve.api.create_api`: at the socket that the command passes at ``path``
    (:class:`serve.port.SharedPort`), or without a path behind Serve's proxy."""

    _server: uvicorn.Server | None = None

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: ServeConfig, model: DeploymentHandle, path: str | None = None
    ):
        enter_root()
        return_large_blocks()
        bind_to_node_address()
        self._config, self._drain, self._backend = config, Drain(), Replicas(config, model)
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
