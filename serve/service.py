"""Admit and caption: the model, options, queue slots and images of a job, then its captions from the backend."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from idc.util.model_faults import did_you_mean
from serve.backend import Backend, EncodedPair, Overloaded, PairResult, TextCallback
from serve.config import ServeConfig
from serve.errors import ApiError, busy, internal_error
from serve.intake import ParsedRequest, RequestPairReader
from serve.log import RequestContext
from serve.prometheus import ServingMetrics


class Service:
    """Admission, queues and time-outs of one front, for both interfaces."""

    def __init__(self, config: ServeConfig, backend: Backend, metrics: ServingMetrics):
        self.config, self.backend, self.metrics = config, backend, metrics
        self._reader = RequestPairReader(config.limits)
        self._waiting: Counter[str] = Counter()

    def check_model(self, name: str) -> None:
        """Raise an :class:`ApiError` (404) if there is no model of this name."""
        names = list(self.config.models)
        if name not in names:
            hint = did_you_mean(name, names) or f"; available: {', '.join(names)}"
            raise ApiError(404, "unknown_model", f"no model is named {name[:100]!r}{hint}", "model")

    async def admit(self, context: RequestContext, job: ParsedRequest) -> AdmittedJob:
        """Check a job, take its places in the queue until the request ends, and read its images.

        Raises:
            ApiError: 404 unknown model, 413 too many pairs, 429 the caller has too many pairs waiting, 503 all callers
                together have; or the only pair is refused (:meth:`RequestPairReader.read`).
        """
        context.parsed, context.pairs = time.perf_counter(), len(job.pairs)
        self.check_model(model := job.model or self.config.default_model)
        context.model = model
        context.cleanup.enter_context(self._queued(context.caller, len(job.pairs)))
        images = await self._reader.read(job)
        # Without the texts of the body, which would otherwise stay in memory until a stream ends.
        pairs = tuple(replace(pair, before="", after="", dialogue=None) for pair in job.pairs)
        return AdmittedJob(self, context, replace(job, pairs=pairs, ignore=(), only=()), images)

    @contextmanager
    def _queued(self, caller: str, pairs: int) -> Iterator[None]:
        """Count pairs as waiting inside the ``with``."""
        limits, waiting = self.config.limits, self._waiting[caller]
        if pairs > limits.pairs:
            message = f"a request may contain at most {limits.pairs} pairs; split it into several requests"
            raise ApiError(413, "too_many_pairs", message, "pairs")
        if waiting + pairs > (most := limits.waiting_pairs_of_client):
            message = f"{waiting} of your pairs are waiting and this request has {pairs}; at most {most} may wait"
            raise ApiError(429, "too_many_waiting", message, retry_after_s=1)
        if self._waiting.total() + pairs > limits.waiting_pairs:
            raise busy("too many pairs are waiting; try again")
        self._waiting[caller] += pairs
        self.metrics.wait(self._waiting.total())
        try:
            yield
        finally:
            self._waiting -= Counter({caller: pairs})  # without callers that have none
            self.metrics.wait(self._waiting.total())


@dataclass
class AdmittedJob:
    """A job with its ``images``: of each pair the files, or the reason why it was refused."""

    _service: Service
    context: RequestContext
    job: ParsedRequest
    images: list[EncodedPair | str]

    async def results(self, on_text: TextCallback | None = None) -> list[PairResult]:
        """One result per pair, in order, by one call of the backend (with ``on_text``, as in
        :meth:`serve.backend.Backend.caption`).

        Raises:
            ApiError: 422 the model does not support the options, 503 the replicas are full, 504 it took too long; of a
                single pair its failure here or at an endpoint.
        """
        return await self._caption(self.images, on_text)

    async def iter_completed(self) -> AsyncGenerator[tuple[int, PairResult], None]:
        """Index and result of each pair as soon as it is captioned, by one call of the backend per pair.

        When one fails, or the generator is closed, the others are cancelled.
        """

        async def indexed(index: int, image: EncodedPair | str) -> tuple[int, PairResult]:
            return index, (await self._caption([image]))[0]

        tasks = [asyncio.ensure_future(indexed(*each)) for each in enumerate(self.images)]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for unfinished in tasks:
                unfinished.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _caption(self, images: list[EncodedPair | str], on_text: TextCallback | None = None) -> list[PairResult]:
        if not (pairs := [image for image in images if isinstance(image, EncodedPair)]):
            return [PairResult(error=str(image)) for image in images]
        service, job = self._service, self.job
        timeout_s = service.config.limits.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                results = await service.backend.caption(pairs, self.context.model, job.options, on_text)
        except Overloaded as error:
            raise busy(str(error) or "the queues of all replicas are full; try again") from None
        except TimeoutError:
            raise ApiError(504, "timeout", f"no caption was available within {timeout_s:g} s") from None
        except ValueError as error:
            raise ApiError(422, "not_possible", str(error)) from None
        service.metrics.pairs(results)
        self.context.version = versions(results)
        status, message = results[0].status, results[0].error
        if job.single and message is not None and status >= 500:  # here, or at an endpoint of a language model
            if status in (500, 503):
                raise internal_error() if status == 500 else busy(message)
            raise ApiError(status, {502: "upstream_failed", 504: "timeout"}[status], message)
        rest = iter(results)
        return [PairResult(error=image) if isinstance(image, str) else next(rest) for image in images]


def versions(results: list[PairResult]) -> str:
    """The version of the model that captioned; both if another one took its place during a request of several calls."""
    return ", ".join(sorted({result.version for result in results if result.version}))
