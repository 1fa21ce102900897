"""The second backend: the language model runs behind OpenAI's chat completions (vLLM, Ray Serve LLM), which the front
asks itself. Requests, queues, tokens, versions of the registry, the page and the calibration stay ours. Neither Ray nor
weights are loaded.

There are no batches here: the server behind forms its own from the requests in flight, of which there are at most
``loading.endpoint.concurrency`` for each front replica. A request whose client leaves is withdrawn.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from idc.captioning.apply import CaptionedPair, Pixels
from idc.captioning.contract import equal_outside
from idc.captioning.objects_config import ObjectsConfig
from idc.chat_endpoint import EndpointError, NotAnswered, RequestRefused
from idc.cores import usable_cores
from serve.backend import Busy, EncodedPair, Options, PairResult, Upstream
from serve.config import ServeConfig
from serve.decoding import DecodedPair, Decoders
from serve.log import log
from serve.pieces import Hear
from serve.versioned_models import SEE_LOG, VersionedModels
from serve.versions import public_name

if TYPE_CHECKING:
    from idc.chat_endpoint import Reply
    from idc.vlm.remote import PreparedRequest, RemoteCaptioner
    from serve.captioner import ServedCaptioner

_REFUSED = (
    "messages: the language model refuses this request: the conversation with its images may be too long for it, or "
    "has something in it that it does not take"
)


class EndpointBackend(VersionedModels):
    """The endpoint ``loading.endpoint`` as a :class:`~serve.backend.Backend`; for one event loop."""

    def __init__(self, config: ServeConfig):
        assert config.loading.endpoint is not None
        super().__init__(config)
        # The whole answer has this time (Service.caption); an attempt that takes all of it is the last.
        timeout_s = min(config.loading.endpoint.timeout_s, config.limits.timeout_s)
        endpoint = config.loading.endpoint.model_copy(update={"timeout_s": timeout_s})
        self._loading = config.loading.model_copy(update={"endpoint": endpoint})
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._threads = ThreadPoolExecutor(usable_cores(), thread_name_prefix="images")
        self._decoders = Decoders(usable_cores(), config.limits.decode_s, config.limits.image_pixels)
        self._captioners: dict[str, tuple[str, ServedCaptioner]] = {}
        """Model name -> the version that serves, and its captioner."""
        self.reasons: dict[str, str] = {}
        """Model name -> why it, or its newest version, cannot be served; not for clients."""
        self._logged = 0.0

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, hear: Hear | None = None
    ) -> list[PairResult]:
        if model not in self._captioners:
            raise Busy(f"{model} cannot be loaded; {SEE_LOG}")
        _, served = self._captioners[model]
        if reason := served.unsupported(options):
            raise ValueError(reason)
        self._captioner(served).check(options.beams, options.change_map)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(served, pair, options, hear)) for pair in pairs]
        except* Exception as errors:  # the first one, for the whole request
            raise _first(errors) from None
        return [task.result() for task in tasks]

    async def _one(self, served: ServedCaptioner, pair: EncodedPair, options: Options, hear: Hear | None) -> PairResult:
        loop = asyncio.get_running_loop()
        captioner = self._captioner(served)
        decoded = await self._decoders.pair(pair)
        if reason := served.refusal(decoded, options):
            return PairResult(error=reason)
        try:
            prepared = await loop.run_in_executor(self._threads, _prepare, captioner, decoded, options)
        except ValueError as error:  # control tokens in the text
            return PairResult(error=f"messages: {error}")
        started = time.perf_counter()
        if pair.dialogue is None:
            hear = None
        try:
            replies = await asyncio.gather(*(self._ask(captioner, *request, hear) for request in prepared.requests))
        except RequestRefused as error:
            log(event="endpoint_refused", error=str(error))
            return PairResult(error=_REFUSED)
        except EndpointError as error:
            raise self._fault(error) from None
        ms = 1000 * (time.perf_counter() - started)
        return await loop.run_in_executor(
            self._threads, _result, captioner, decoded, prepared, replies, options, ms, served.objects
        )

    async def _ask(
        self, captioner: RemoteCaptioner, messages: list[dict[str, Any]], options: dict[str, Any], hear: Hear | None
    ) -> list[Reply]:
        async with self._slots:
            return await captioner.endpoint.chat_async(messages, log_probabilities=True, hear=hear, **options)

    def _captioner(self, served: ServedCaptioner) -> RemoteCaptioner:
        return served.captioner  # type: ignore[return-value]  # loaded with an endpoint

    def _fault(self, error: EndpointError) -> Exception:
        """An error of the endpoint for clients, without its address; the log has the whole of it, once a second."""
        if time.monotonic() - self._logged > 1:
            self._logged = time.monotonic()
            log(event="endpoint_failed", error=str(error))
        if isinstance(error, NotAnswered) and error.timed_out:
            return TimeoutError()
        if isinstance(error, NotAnswered) and error.status in (429, 503):
            return Busy("the language model is busy; try again")
        return Upstream(f"the server that runs the language model fails; {SEE_LOG}")

    async def refresh(self) -> None:
        """Look up the current version of every name, and load new ones: prompt, processor and calibration."""
        for name, source in self._config.models.items():
            serving = self._captioners.get(name)
            try:
                version = await asyncio.to_thread(self._resolver.resolve, source)
                if serving is None or serving[0] != version:
                    self._captioners[name] = version, await asyncio.to_thread(self._load, version)
            except ValueError as error:
                self.reasons[name] = str(error)
                field = "error" if serving is None else "newer_error"
                self._note(name, str(error), **{field: f"the version of {name} cannot be served; {SEE_LOG}"})
                continue
            self.reasons.pop(name, None)
            abilities = self._captioners[name][1].abilities
            shown = public_name(version)
            self._note(name, version=shown, error=None, newer_error=None, abilities=abilities)

    def _load(self, version: str) -> ServedCaptioner:
        from serve.captioner import ServedCaptioner

        folder = self._resolver.fetch(version, self._config.registry.cache)
        return ServedCaptioner(str(folder), self._loading)

    async def ready(self) -> str | None:
        if not self._captioners:
            return "; ".join(f"{model.name}: {model.error}" for model in self.models())
        since, most = self._decoders.running_since, 2 * self._config.limits.timeout_s
        if since is not None and asyncio.get_running_loop().time() - since > most:
            return f"decoding has been running for more than {most:g} s"
        _, served = next(iter(self._captioners.values()))
        try:
            await self._captioner(served).endpoint.reachable()
        except EndpointError as error:
            log(event="endpoint_failed", error=str(error))
            return f"the server that runs the language model does not answer; {SEE_LOG}"
        return None

    async def replicas(self) -> dict[str, int]:
        return {}


def _prepare(captioner: RemoteCaptioner, pair: DecodedPair, options: Options) -> PreparedRequest:
    pixels, dialogue = pair.pixels, pair.dialogue
    assert isinstance(pixels, Pixels)
    images = equal_outside(pixels.before, pixels.after, pixels.counted), pixels.after
    if dialogue is None:
        return captioner.prepare(*images, candidates=options.candidates)
    return captioner.prepare(*images, dialogue.turns, max_tokens=dialogue.max_tokens)


def _result(
    captioner: RemoteCaptioner,
    pair: DecodedPair,
    prepared: PreparedRequest,
    replies: list[list[Reply]],
    options: Options,
    ms: float,
    objects: ObjectsConfig,
) -> PairResult:
    from serve.captioner import captioned

    pixels, dialogue = pair.pixels, pair.dialogue
    assert isinstance(pixels, Pixels)
    if dialogue is not None:
        return PairResult(answer=prepared.answer(replies[0][0]), model_ms=ms, batch=1)
    description = captioner.description(prepared, replies, options.candidates)
    return captioned(CaptionedPair(pixels, description, ms / 1000, 1), options, None, objects)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
