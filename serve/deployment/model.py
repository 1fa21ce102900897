"""The replicas that hold captioners; Serve scales them with the load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING

from idc.config import enter_root
from serve.backend import Abilities, Busy, EncodedPair, Options, PairResult
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


class Model:
    """A replica that captions one batch at a time and keeps the models it used most recently."""

    async def __init__(self, config: ServeConfig):  # type: ignore[misc]  # Ray awaits it
        from ray import serve

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

        # Multiplexing keeps the models used most recently, and informs the fronts which replica has which.
        @serve.multiplexed(max_num_models_per_replica=config.scaling.models_each)
        async def load_captioner(version: str) -> ServedCaptioner:
            return await asyncio.to_thread(self._load, version)

        self._captioner = load_captioner
        await self._preload()

    async def _preload(self) -> None:
        """Load the models of the config, so that the fronts route their requests to this replica.

        Raises:
            ValueError: none of them can be loaded.
        """
        faults = []
        sources = list(self._config.models.items())[: self._config.scaling.models_each]
        for name, source in sources:
            try:
                await self._captioner(await asyncio.to_thread(self._resolver.resolve, source))
            except ValueError as error:
                faults.append(f"models.{name}: {error}")
                log(event="model_failed", model=name, error=str(error))
        if len(faults) == len(sources):
            raise ValueError("\n".join(faults))

    def _load(self, version: str) -> ServedCaptioner:
        from serve.captioner import ServedCaptioner

        scaling = self._config.scaling
        folder = self._resolver.fetch(version, self._config.registry.cache)
        threads = max(1, int(scaling.cpus))
        captioner = ServedCaptioner(str(folder), self._loading, scaling.gpus, threads)
        captioner.warm_up()
        return captioner

    async def warm(self, version: str) -> Abilities | str:
        """Load a version. Returns its abilities, or the reason why it cannot be loaded."""
        loaded = await self._loaded(version)
        return loaded if isinstance(loaded, str) else loaded.abilities

    async def _loaded(self, version: str) -> ServedCaptioner | str:
        try:
            return await self._captioner(version)  # type: ignore[no-any-return]  # Ray's decorator
        except Exception as error:  # whatever is wrong with a new version, the previous one must continue to serve
            return f"{type(error).__name__}: {error}"

    async def speak(
        self, version: str, pair: EncodedPair, options: Options
    ) -> AsyncGenerator[str | Done[list[PairResult] | str], None]:
        """The pieces of the answer in a dialogue, each as soon as it is generated, then the result of
        :meth:`caption`."""
        async with aclosing(pieces(lambda hear: self.caption(version, [pair], options, hear))) as items:
            async for item in items:
                yield item

    async def caption(
        self, version: str, pairs: list[EncodedPair], options: Options, hear: Hear | None = None
    ) -> list[PairResult] | str:
        """One result per pair, for at most ``batching.max_pairs`` pairs; a text if the model does not support the
        options.

        Raises:
            Busy: the version cannot be loaded.
        """
        captioner = await self._loaded(version)
        if isinstance(captioner, str):
            log(event="model_failed", version=version, error=captioner)
            raise Busy(f"{public_name(version)} cannot be loaded; see the server log for the reason")
        if reason := captioner.unsupported(options):
            return str(reason)
        self._pairs += len(pairs)
        try:
            groups = self._room.groups(pairs)
            done = await asyncio.gather(*(self._captioned(captioner, group, options, hear) for group in groups))
            return [result for results in done for result in results]
        finally:
            self._pairs -= len(pairs)

    async def _captioned(
        self, captioner: ServedCaptioner, pairs: list[EncodedPair], options: Options, hear: Hear | None
    ) -> list[PairResult]:
        async with self._room.taken(pairs):
            decoded = await asyncio.gather(*(self._decoders.pair(pair) for pair in pairs))
            heard = [pair._replace(hear=hear) for pair in decoded]
            if self._asking is None:
                return await self._batcher.submit((captioner, options), heard)
            run = asyncio.get_running_loop().run_in_executor
            asked = [run(self._asking, _run, (captioner, options), [pair]) for pair in heard]
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
    return captioner.caption(pairs, [options] * len(pairs))
