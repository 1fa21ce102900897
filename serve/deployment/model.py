"""The replicas that hold captioners; Serve scales them with the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from idc.config import enter_root
from serve.backend import EncodedPair, ModelStatus, Options, Overloaded, PairResult
from serve.batching import Batcher
from serve.config import ServeConfig
from serve.decoding import DecodedPair, Decoders, PixelRoom
from serve.deployment.ray_internals import bind_to_node_address
from serve.deployment.scaling import PAIRS
from serve.log import log
from serve.pieces import Done, Hear, pieces
from serve.versions import Resolver, public_name

if TYPE_CHECKING:
    from serve.captioner import ServedCaptioner


_IMAGES = 8
"""The decoded images that are held at once have as many pixels as so many of the largest: 600 MB by default."""
_RETRY_POLLS = 10
"""A version that could not be loaded is tried again after this many polls."""
_SEE_LOG = "see the server log for the reason"


class Model:
    """A replica that holds the models of the config, follows their versions and captions one batch at a time."""

    async def __init__(self, config: ServeConfig):  # type: ignore[misc]  # Ray awaits it
        enter_root()
        bind_to_node_address()
        self._config, self._loading = config, config.loading
        self._asking: ThreadPoolExecutor | None = None
        """Threads that ask an endpoint; it forms batches itself."""
        if (endpoint := config.loading.endpoint) is not None:
            # The whole answer has this time (Service.caption); an attempt that takes all of it is the last.
            timeout_s = min(endpoint.timeout_s, config.limits.timeout_s)
            endpoint = endpoint.model_copy(update={"timeout_s": timeout_s})
            self._loading = config.loading.model_copy(update={"endpoint": endpoint})
            self._asking = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="endpoint")
        self._resolver = Resolver(config.registry.tracking_uri, config.loading.objects)
        self._decoders = Decoders(
            max(2, round(config.scaling.cpus)), config.limits.decode_s, config.limits.image_pixels
        )
        self._room = PixelRoom(_IMAGES * config.limits.image_pixels)
        self._batcher: Batcher[tuple[ServedCaptioner, Options], DecodedPair, PairResult] = Batcher(
            _run, config.batching.max_pairs
        )
        self._pairs = 0  # accepted and without a result
        self._captioners: dict[str, tuple[str, ServedCaptioner]] = {}
        """Model name -> the version that serves, as :meth:`Resolver.resolve` returns it, and its captioner."""
        self._statuses = {status.name: status for status in config.unknown_models()}
        self._not_before: dict[str, float] = {}
        """Version -> time of the next attempt to load it."""
        faults = await self._refresh()
        if len(faults) == len(config.models):
            raise ValueError("\n".join(faults))
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.registry.poll_s)
            await self._refresh()

    async def _refresh(self) -> list[str]:
        """Look up the version of every model and load new ones, which then take the place of those before. Requests in
        progress keep theirs. Returns why models, or their newest versions, cannot be served."""
        faults = []
        for name, source in self._config.models.items():
            serving, version = self._captioners.get(name), None
            try:
                version = await asyncio.to_thread(self._resolver.resolve, source)
                if serving is None or serving[0] != version:
                    if self._not_before.get(version, 0.0) > time.monotonic():
                        continue
                    self._captioners[name] = version, await asyncio.to_thread(self._load, version)
            except Exception as error:  # whatever is wrong with a new version, the one before continues to serve
                why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                faults.append(f"models.{name}: {why}")
                if version is not None:
                    self._not_before[version] = time.monotonic() + _RETRY_POLLS * self._config.registry.poll_s
                shown = f"the version of {name}" if version is None else public_name(version)
                what = f"{shown} cannot be {'looked up' if version is None else 'served'}; {_SEE_LOG}"
                self._note(name, why, **{"error" if serving is None else "newer_error": what})
            else:
                captioner = self._captioners[name][1]
                self._note(
                    name,
                    version=public_name(version),
                    error=None,
                    newer_error=None,
                    capabilities=captioner.capabilities,
                )
        return faults

    def _note(self, name: str, why: str | None = None, **changes: Any) -> None:
        """Change the status of a model. ``why`` goes to the log only, not to clients."""
        before, after = self._statuses[name], replace(self._statuses[name], **changes)
        if after != before:
            self._statuses[name] = after
            log(event="model" if why is None else "model_failed", model=name, version=after.version, error=why)

    def _load(self, version: str) -> ServedCaptioner:
        from serve.captioner import ServedCaptioner

        scaling = self._config.scaling
        folder = self._resolver.fetch(version, self._config.registry.cache)
        threads = max(1, int(scaling.cpus))
        captioner = ServedCaptioner(str(folder), self._loading, scaling.gpus, threads)
        captioner.warm_up()
        return captioner

    async def models(self) -> list[ModelStatus]:
        """The models as this replica serves them, the default first."""
        return list(self._statuses.values())

    async def stream_answer(
        self, model: str, pair: EncodedPair, options: Options
    ) -> AsyncGenerator[str | Done[list[PairResult] | str], None]:
        """The pieces of the answer in a dialogue, each as soon as it is generated, then the result of
        :meth:`caption`."""
        async with aclosing(pieces(lambda on_text: self.caption(model, [pair], options, on_text))) as items:
            async for item in items:
                yield item

    async def caption(
        self, model: str, pairs: list[EncodedPair], options: Options, on_text: Hear | None = None
    ) -> list[PairResult] | str:
        """One result per pair, for at most ``batching.max_pairs`` pairs; a text if the model does not support the
        options.

        Raises:
            Overloaded: the model cannot be loaded.
        """
        if model not in self._captioners:
            raise Overloaded(str(self._statuses[model].error))
        version, captioner = self._captioners[model]
        if reason := captioner.unsupported(options):
            return reason
        self._pairs += len(pairs)
        try:
            groups = self._room.groups(pairs)
            done = await asyncio.gather(*(self._captioned(captioner, group, options, on_text) for group in groups))
            return [replace(result, version=public_name(version)) for results in done for result in results]
        finally:
            self._pairs -= len(pairs)

    async def _captioned(
        self, captioner: ServedCaptioner, pairs: list[EncodedPair], options: Options, on_text: Hear | None
    ) -> list[PairResult]:
        async with self._room.taken(pairs):
            decoded = await asyncio.gather(*(self._decoders.pair(pair) for pair in pairs))
            listening = [pair._replace(on_text=on_text) for pair in decoded]
            if self._asking is None:
                return await self._batcher.submit((captioner, options), listening)
            run = asyncio.get_running_loop().run_in_executor
            asked = [run(self._asking, _run, (captioner, options), [pair]) for pair in listening]
            return [result for (result,) in await asyncio.gather(*asked)]

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The statistics of :func:`serve.deployment.scaling.by_pairs`; Serve calls it."""
        return {PAIRS: self._pairs}

    async def check_health(self) -> None:
        """Make Serve replace this replica if a batch or the decoding of an image does not end."""
        most = 2 * self._config.limits.timeout_s
        for name, since in (("a batch", self._batcher.running_since), ("decoding", self._decoders.running_since)):
            if since is not None and asyncio.get_running_loop().time() - since > most:
                raise RuntimeError(f"{name} has been running for more than {most:g} s")


def _run(key: tuple[ServedCaptioner, Options], pairs: list[DecodedPair]) -> list[PairResult]:
    captioner, options = key
    return captioner.caption(pairs, options)
