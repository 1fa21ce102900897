"""The ``Model`` replicas as the backend of a front."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from serve.backend import EncodedPair, ModelStatus, Options, Overloaded, PairResult
from serve.batching import Joiner
from serve.config import ServeConfig
from serve.pieces import Hear

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

_JOIN_S = 0.005
"""How long a request waits for others to share a call of a replica; only while earlier ones are under way."""
_STATUS_S = 1.0
"""Age up to which a status of Serve's controller, and of the models, is reused."""


class Replicas:
    """The ``Model`` replicas as a :class:`~serve.backend.Backend`."""

    def __init__(self, config: ServeConfig, handle: DeploymentHandle):
        self._config = config
        # Serve's default, cloudpickle, is slower, and only needed for objects that cannot be imported.
        self._handle = handle.options(request_serialization="pickle", response_serialization="pickle")
        self._joiner: Joiner[tuple[str, Options], EncodedPair, PairResult] = Joiner(
            self._call, config.batching.max_pairs, _JOIN_S
        )
        self._models = config.unknown_models()
        self._asked = 0.0
        self._status: tuple[float, dict[str, Any]] = (0.0, {})

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: Hear | None = None
    ) -> list[PairResult]:
        if on_text is None or pairs[0].dialogue is None:
            return await self._joiner.submit((model, options), pairs)
        return await self._call((model, options), pairs, on_text)  # not joined: its pieces are those of one request

    async def _call(
        self, key: tuple[str, Options], pairs: list[EncodedPair], on_text: Hear | None = None
    ) -> list[PairResult]:
        """One call of a replica, with at most ``batching.max_pairs`` pairs; with ``on_text``, of one."""
        from ray.exceptions import RayActorError, RayTaskError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        heard: list[str] = []
        for may_repeat in (True, False):
            try:
                results = await self._once(*key, pairs, on_text, heard)
                break
            except RayActorError as error:  # it died or cannot be reached: try another one, once
                if heard or not may_repeat:
                    raise Overloaded("the replica died during this request; try again") from error
            except BackPressureError as error:
                raise Overloaded from error
            except DeploymentUnavailableError as error:
                raise Overloaded("no replica of the captioner can be started; see Serve's status and log") from error
            except RayTaskError as error:
                if isinstance(error.cause, Overloaded):
                    raise error.cause from None
                raise
        if isinstance(results, str):
            raise ValueError(results)
        return results

    async def _once(
        self, model: str, options: Options, pairs: list[EncodedPair], on_text: Hear | None, heard: list[str]
    ) -> list[PairResult] | str:
        response: Any
        if on_text is None:
            response = self._handle.caption.remote(model, pairs, options)
        else:
            response = self._handle.options(stream=True).stream_answer.remote(model, pairs[0], options)
        try:
            if on_text is None:
                return cast("list[PairResult] | str", await response)
            results: list[PairResult] | str = []
            async for item in response:
                if isinstance(item, str):
                    heard.append(item)
                    on_text(item)
                else:
                    results = item.value
            return results
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def models(self) -> list[ModelStatus]:
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        # A replica is asked only if one runs: the question would start one.
        if time.monotonic() - self._asked > _STATUS_S and (await self.replicas()).get("Model"):
            self._asked = time.monotonic()
            with suppress(RayError, RayServeException):  # it ended meanwhile: what was known is still the best answer
                self._models = await self._handle.models.remote()
        return self._models

    async def ready(self) -> str | None:
        status = (await self._deployments()).get("Model")
        if status is not None and status.status in ("UNHEALTHY", "DEPLOY_FAILED"):
            return "the replicas of the captioner fail; see Serve's status and log"
        if self._config.scaling.min_replicas > 0 and not (await self.replicas()).get("Model"):
            return "no replica of the captioner is running yet"
        return None

    async def replicas(self) -> dict[str, int]:
        deployments = await self._deployments()
        return {name: status.replica_states.get("RUNNING", 0) for name, status in deployments.items()}

    async def _deployments(self) -> dict[str, Any]:
        """Status of our deployments by name, from Serve's controller."""
        from ray import serve

        at, deployments = self._status
        if time.monotonic() - at > _STATUS_S:
            name = serve.get_replica_context().app_name
            applications = (await asyncio.to_thread(serve.status)).applications
            deployments = dict(applications[name].deployments) if name in applications else {}
            self._status = (time.monotonic(), deployments)
        return deployments
