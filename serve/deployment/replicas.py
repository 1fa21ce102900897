"""The ``Model`` replicas as the backend of a front, and the version behind each model name."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from serve.backend import Abilities, Busy, EncodedPair, ModelStatus, Options, PairResult
from serve.config import ServeConfig
from serve.joining import Joiner
from serve.log import log
from serve.pieces import Hear
from serve.versions import Resolver, public_name

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

_RETRY_POLLS = 10
"""A version that could not be loaded is tried again after this many polls."""
_STATUS_S = 1.0
"""Age up to which a status of Serve's controller is reused."""


SEE_LOG = "see the server log for the reason"


class Replicas:
    """The ``Model`` replicas as a :class:`~serve.backend.Backend`."""

    def __init__(self, config: ServeConfig, handle: DeploymentHandle):
        self._config, self._handle = config, handle
        self._resolver = Resolver(config.registry.tracking_uri, config.loading.objects)
        self._served = {
            name: ModelStatus(name, "unknown", error="the version has not been looked up yet")
            for name in sorted(config.models, key=lambda name: name != config.default_model)
        }
        batching = config.batching
        self._joiner: Joiner[tuple[str, Options], EncodedPair, PairResult] = Joiner(
            self._call, batching.max_pairs, batching.wait_ms / 1000
        )
        self._versions: dict[str, str] = {}
        """Name -> the version that serves, as :meth:`Resolver.resolve` returns it."""
        self._handles: dict[str, DeploymentHandle] = {}
        self._not_before: dict[str, float] = {}
        """Version -> time of the next attempt to load it."""
        self._learning: dict[str, asyncio.Task[None]] = {}
        """Name -> the task that fetches the abilities of its version."""
        self._status: tuple[float, dict[str, Any]] = (0.0, {})

    def models(self) -> list[ModelStatus]:
        return list(self._served.values())

    def _note(self, name: str, why: str | None = None, **changes: Any) -> None:
        """Change the status of a model. ``why`` goes to the log only, not to clients."""
        before, after = self._served[name], replace(self._served[name], **changes)
        if after != before:
            self._served[name] = after
            log(event="model", model=name, version=after.version, error=why)

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, hear: Hear | None = None
    ) -> list[PairResult]:
        key = self._versions[model], options
        if hear is None or pairs[0].dialogue is None:
            return await self._joiner.submit(key, pairs)
        return await self._call(key, pairs, hear)  # not joined: the pieces of an answer are those of one request

    async def _call(
        self, key: tuple[str, Options], pairs: list[EncodedPair], hear: Hear | None = None
    ) -> list[PairResult]:
        """One call of a replica, with at most ``batching.max_pairs`` pairs; with ``hear``, of one."""
        from ray.exceptions import RayActorError, RayTaskError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        version, options = key
        again = True
        heard = False
        while True:
            handle = self._handle_for(version)
            results: list[PairResult] | str = []
            response: Any
            if hear is None:
                response = handle.caption.remote(version, pairs, options)
            else:
                response = handle.options(stream=True).speak.remote(version, pairs[0], options)
            try:
                if hear is None:
                    results = await response
                else:
                    async for item in response:
                        if isinstance(item, str):
                            heard = True
                            hear(item)
                        else:
                            results = item.value
            except RayActorError as error:  # it died or cannot be reached: try another one, once
                if heard:
                    raise Busy("the replica died during its answer; try again") from error
                if not again:
                    raise Busy("two replicas died during this request; try again") from error
                again = False
                continue
            except BackPressureError as error:
                raise Busy from error
            except DeploymentUnavailableError as error:
                raise Busy("no replica of the captioner can be started; see Serve's status and log") from error
            except RayTaskError as error:
                if isinstance(error.cause, Busy):
                    raise error.cause from None
                raise
            except asyncio.CancelledError:
                response.cancel()
                raise
            if isinstance(results, str):
                raise ValueError(results)
            return results

    def _handle_for(self, version: str) -> DeploymentHandle:
        """A handle that prefers replicas in which the version is loaded."""
        if version not in self._handles:
            # Serve's default, cloudpickle, is slower, and only needed for objects that cannot be imported.
            self._handles[version] = self._handle.options(
                multiplexed_model_id=version, request_serialization="pickle", response_serialization="pickle"
            )
        return self._handles[version]

    async def refresh(self) -> None:
        """Look up the current version of every name. The replicas load a new version before it serves."""
        for name, source in self._config.models.items():
            serving = self._versions.get(name)
            try:
                version = await asyncio.to_thread(self._resolver.resolve, source)
            except ValueError as error:
                # The version that has served so far continues to.
                field = "error" if serving is None else "newer_error"
                self._note(name, str(error), **{field: f"the version of {name} cannot be looked up; {SEE_LOG}"})
                continue
            shown = public_name(version)
            if serving is None:  # the first time: replicas load the models of the config by themselves
                self._versions[name] = version
                self._note(name, version=shown, error=None)
            elif version == serving:
                self._note(name, newer_error=None)
            elif self._not_before.get(version, 0.0) <= time.monotonic():
                try:
                    abilities = await self._warm(version)
                    self._versions[name] = version
                    self._note(name, version=shown, newer_error=None, abilities=abilities)
                except ValueError as error:
                    self._not_before[version] = time.monotonic() + _RETRY_POLLS * self._config.registry.poll_s
                    self._note(name, str(error), newer_error=f"{shown} cannot be served; {SEE_LOG}")
                except Busy as error:  # the next refresh tries again
                    self._note(name, str(error), newer_error=f"{shown} is not served yet; {SEE_LOG}")
        for name, version in self._versions.items():
            if self._served[name].abilities is None and name not in self._learning:
                self._learning[name] = asyncio.create_task(self._learn(name, version))
        current = set(self._versions.values())
        self._handles = {version: handle for version, handle in self._handles.items() if version in current}

    async def _learn(self, name: str, version: str) -> None:
        """Fetch the abilities of a version from a replica. Not awaited by :meth:`refresh`: replicas may still start."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            abilities = await self._handle_for(version).warm.remote(version)
            if isinstance(abilities, Abilities) and self._versions[name] == version:
                self._served[name] = replace(self._served[name], abilities=abilities)
        except (RayError, RayServeException):
            pass  # the next refresh tries again
        finally:
            del self._learning[name]

    async def _warm(self, version: str) -> Abilities:
        """Load a version in every replica; one is started if there is none. Returns the abilities of the version.

        Raises:
            ValueError: it cannot be loaded.
            Busy: a replica ended while it loaded.
        """
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            try:
                answers = await self._handle.broadcast("warm", version).results_async()
            except RayServeException:  # no replica runs
                answers = [await self._handle_for(version).warm.remote(version)]
        except (RayError, RayServeException) as error:
            raise Busy(f"{type(error).__name__} while the version was loaded") from error
        if reason := next((answer for answer in answers if isinstance(answer, str)), None):
            raise ValueError(reason)
        return answers[0]  # type: ignore[no-any-return]

    async def ready(self) -> str | None:
        served = self.models()
        if all(model.error is not None for model in served):
            return "; ".join(f"{model.name}: {model.error}" for model in served)
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
