"""The replicas that hold captioners; Serve scales them with the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from idc.captioning.sources import REGISTRY, ModelSources
from idc.config import enter_root
from serve.backend import Done, EncodedPair, ModelStatus, Options, Overloaded, PairResult, TextCallback, pieces
from serve.batching import Batcher
from serve.config import ServeConfig
from serve.decoding import Decoders, PixelRoom, is_light
from serve.deployment.ray_internals import bind_to_node_address
from serve.deployment.scaling import PAIRS
from serve.log import log

if TYPE_CHECKING:
    from serve.captioner import ServedCaptioner

_IMAGES = 8
"""The decoded images that are held at once have as many pixels as so many of the largest: 600 MB by default."""
_POLL_S = 5.0
"""Between two look-ups of the versions."""
_RETRY_S = 60.0
"""Until a version that could not be loaded is tried again."""


class Model:
    """A replica that holds the models of the config, follows their versions and captions one batch at a time."""

    async def __init__(self, config: ServeConfig):  # type: ignore[misc]  # Ray awaits it
        enter_root()
        bind_to_node_address()
        self._config, self._loading = config, config.loading
        limits, max_pairs, threads = config.limits, config.scaling.max_pairs, 1
        if (endpoint := config.loading.endpoint) is not None:
            # The whole answer has this time (Service.caption); an attempt that takes all of it is the last.
            endpoint = endpoint.model_copy(update={"timeout_s": min(endpoint.timeout_s, limits.timeout_s)})
            self._loading = config.loading.model_copy(update={"endpoint": endpoint})
            max_pairs, threads = 1, endpoint.concurrency  # it forms batches itself
        self._sources = ModelSources(config.tracking_uri, config.loading.objects)
        self._decoders = Decoders(max(2, round(config.scaling.cpus)), limits.decode_s, limits.image_pixels)
        self._room = PixelRoom(_IMAGES * limits.image_pixels)
        # One by one, in threads of their own: a pair may take seconds, which others of a quick model do not wait for.
        call = lambda key, items: key[0](items, key[1])  # noqa: E731
        self._batcher = Batcher[Any, Any, PairResult](call, max_pairs, threads=threads)
        self._alone = Batcher[Any, Any, PairResult](call, 1, threads=threads)
        self._pairs = 0  # accepted and without a result
        self._captioners: dict[str, ServedCaptioner] = {}
        self._statuses = {status.name: status for status in config.unknown_models()}
        self._not_before: dict[tuple[str, str], float] = {}
        """Name and version -> time of the next attempt to load it."""
        faults = await self._refresh()
        if len(faults) == len(config.models):
            raise ValueError("\n".join(faults))
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            await self._refresh()

    async def _refresh(self) -> list[str]:
        """Look up the version of every model and load new ones, which then take the place of those before. Requests in
        progress keep theirs. Returns why models, or their newest versions, cannot be served."""
        faults = []
        for name, source in self._config.models.items():
            before, version, why = self._statuses[name], "", None
            try:
                version = await asyncio.to_thread(self._sources.version, source)
                status = replace(before, error=None)
                if name not in self._captioners or version != before.version:
                    if self._not_before.get((name, version), 0.0) > time.monotonic():
                        continue
                    self._captioners[name] = await asyncio.to_thread(self._load, source, version)
                    status = self._captioners[name].status(name, version)
            except Exception as error:  # whatever is wrong with a new version, the one before continues to serve
                why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                faults.append(f"models.{name}: {why}")
                what = f"{version} cannot be served" if version else f"the version of {name} cannot be looked up"
                status = replace(before, error=f"{what}; see the server log for the reason")
                self._not_before[name, version] = time.monotonic() + _RETRY_S
            if status != before:
                self._statuses[name] = status
                log(event="model" if why is None else "model_failed", model=name, version=status.version, error=why)
        return faults

    def _load(self, source: str, version: str) -> ServedCaptioner:
        from serve.captioner import ServedCaptioner

        artifact = self._sources.fetch(version if source.startswith(REGISTRY) else source)
        scaling = self._config.scaling
        captioner = ServedCaptioner(artifact, self._loading, scaling.gpus, max(1, int(scaling.cpus)))
        captioner.warm_up()
        if not source.startswith(REGISTRY) and self._sources.version(artifact) != version:
            raise ValueError(f"{source} has changed since it was looked up; the next look-up uses the new contents")
        return captioner

    async def models(self) -> list[ModelStatus]:
        """The models as this replica serves them, the default first."""
        return list(self._statuses.values())

    async def caption(
        self, model: str, pairs: list[EncodedPair], options: Options, speaks: bool = False
    ) -> AsyncGenerator[str | list[tuple[int, PairResult | str]], None]:
        """Index and result (of :meth:`caption_pair`) of each pair as soon as it is done, of at most
        ``scaling.max_pairs``; before, if the replica ``speaks``, the pieces of the answer in a dialogue about the only
        pair, each as soon as it is generated."""
        if speaks:
            async with aclosing(pieces(lambda on_text: self.caption_pair(model, pairs[0], options, on_text))) as items:
                async for item in items:
                    yield [(0, item.value)] if isinstance(item, Done) else item
            return
        together = asyncio.Barrier(max(1, sum(map(is_light, pairs))))
        tasks = [
            asyncio.create_task(self.caption_pair(model, pair, options, None, together if is_light(pair) else None))
            for pair in pairs
        ]
        left = set(tasks)
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                yield [(tasks.index(task), task.result()) for task in done]
        finally:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def caption_pair(
        self,
        model: str,
        pair: EncodedPair,
        options: Options,
        on_text: TextCallback | None = None,
        together: asyncio.Barrier | None = None,
    ) -> PairResult | str:
        """The result of a pair; a text if the model does not support the options. The batch of its model begins when
        the others at the barrier are decoded too.

        Raises:
            Overloaded: the model cannot be loaded.
        """
        version = self._statuses[model].version
        if (captioner := self._captioners.get(model)) is None:
            raise Overloaded(str(self._statuses[model].error))
        if reason := captioner.unsupported(options):
            return reason
        self._pairs += 1
        try:
            async with self._room.taken(pair):
                decoded = (await self._decoders.pair(pair))._replace(on_text=on_text)
                if together is not None:
                    await together.wait()
                batcher = self._alone if captioner.alone(decoded) else self._batcher
                [result] = await batcher.submit((captioner.caption, options), [decoded])
                if captioner.lacks_objects(result, options):
                    [result] = await self._alone.submit((captioner.add_objects, options), [(decoded, result)])
                return replace(result, version=version)
        finally:
            self._pairs -= 1

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The statistics of :func:`serve.deployment.scaling.by_pairs`; Serve calls it."""
        return {PAIRS: self._pairs}

    async def check_health(self) -> None:
        """Make Serve replace this replica if a batch or the decoding of an image does not end."""
        most = 2 * self._config.limits.timeout_s
        running = {
            "a batch": self._batcher.running_since, "a pair": self._alone.running_since,
            "decoding": self._decoders.running_since,
        }  # fmt: skip
        for name, since in running.items():
            if since is not None and asyncio.get_running_loop().time() - since > most:
                raise RuntimeError(f"{name} has been running for more than {most:g} s")
