"""Admit and caption: the model, options, queue places and images of a job, then its captions from the backend."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from idc.config import did_you_mean
from serve.backend import Backend, Busy, EncodedPair, ModelStatus, Options, PairResult
from serve.config import ServeConfig
from serve.context import RequestContext
from serve.errors import ApiError, busy, internal_error
from serve.intake import ParsedRequest
from serve.pair_reader import RequestPairReader
from serve.pieces import Hear
from serve.prometheus import ServingMetrics

Piece = TypeVar("Piece")


class Service:
    """Admission, queues and time-outs of one front, for both interfaces."""

    def __init__(self, config: ServeConfig, backend: Backend, metrics: ServingMetrics):
        self._config, self._backend, self._metrics = config, backend, metrics
        self._reader = RequestPairReader(config.limits)
        self._waiting: Counter[str] = Counter()

    async def models(self) -> list[ModelStatus]:
        """The models, the default first."""
        return await self._backend.models()

    def check_model(self, name: str) -> None:
        """Check that there is a model of this name.

        Raises:
            ApiError: 404, there is none.
        """
        names = list(self._config.models)
        if name not in names:
            hint = did_you_mean(name, names) or f"; available: {', '.join(names)}"
            raise ApiError(404, "unknown_model", f"no model is named {name[:100]!r}{hint}", "model")

    async def admit(self, context: RequestContext, job: ParsedRequest) -> AdmittedJob:
        """Check a job, take its places in the queue and read its images. The caller must close the result.

        Raises:
            ApiError: 404 unknown model, 422 options beyond the limits, 413 too many pairs, 429 the caller has too many
                pairs waiting, 503 all callers together have; or the only pair is refused
                (:meth:`RequestPairReader.read`).
        """
        context.parsed = time.perf_counter()
        model = job.model or self._config.default_model
        self.check_model(model)
        self._check_options(job)
        context.pairs = len(job.pairs)
        with ExitStack() as slots:
            slots.enter_context(self._queued(context.caller, len(job.pairs)))
            images = await self._reader.read(job)
            # Without the texts of the body, which would otherwise stay in memory until a stream ends.
            pairs = tuple(replace(pair, before="", after="", dialogue=None) for pair in job.pairs)
            job = replace(job, pairs=pairs, ignore=(), only=())
            return AdmittedJob(self, context, job, model, images, slots.pop_all())

    def _check_options(self, job: ParsedRequest) -> None:
        limits, options = self._config.limits, job.options
        for option, field, value, most in (
            ("candidates", job.candidates_field, options.candidates, limits.candidates),
            ("beams", "beams", options.beams or 1, limits.beams),
        ):
            if value > most:
                raise ApiError(422, f"too_many_{option}", f"{field}: {value} exceeds the limit of {most}", field)
        if options.beams is not None and options.beams < options.candidates:
            wanted = options.candidates
            message = f"beams: {options.beams} is less than candidates={wanted}; set beams={wanted} or leave it out"
            raise ApiError(422, "too_few_beams", message, "beams")

    @contextmanager
    def _queued(self, caller: str, pairs: int) -> Iterator[None]:
        """Count pairs as waiting inside the ``with``."""
        limits = self._config.limits
        if pairs > limits.pairs:
            message = f"a request may contain at most {limits.pairs} pairs; split it into several requests"
            raise ApiError(413, "too_many_pairs", message, "pairs")
        waiting, most = self._waiting[caller], limits.waiting_pairs_each
        if waiting + pairs > most:
            message = (
                f"{waiting} of your pairs are waiting and this request has {pairs}; at most {most} may wait at once"
            )
            raise ApiError(429, "too_many_waiting", message, retry_after_s=1)
        if self._waiting.total() + pairs > limits.waiting_pairs:
            raise busy("too many pairs are waiting; try again")
        self._waiting[caller] += pairs
        self._metrics.wait(pairs)
        try:
            yield
        finally:
            self._waiting[caller] -= pairs
            if not self._waiting[caller]:
                del self._waiting[caller]
            self._metrics.wait(-pairs)

    async def caption(
        self,
        context: RequestContext,
        pairs: Sequence[EncodedPair],
        model: str,
        options: Options,
        hear: Hear | None = None,
    ) -> list[PairResult]:
        """One result per pair, in order. ``hear`` is as in :meth:`serve.backend.Backend.caption`.

        Raises:
            ApiError: 422 the model does not support the options, 503 the replicas are full, 504 it took too long.
        """
        context.model = model
        timeout_s = self._config.limits.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                results = await self._backend.caption(list(pairs), model, options, hear)
        except Busy as error:
            raise busy(str(error) or "the queues of all replicas are full; try again") from None
        except TimeoutError:
            raise ApiError(504, "timeout", f"no caption was available within {timeout_s:g} s") from None
        except ValueError as error:
            raise ApiError(422, "not_possible", str(error)) from None
        self._metrics.pairs(results)
        context.version = versions(results)
        return results


@dataclass
class AdmittedJob:
    """A job with its model, its image files and its places in the queue.

    Attributes:
        images: per pair its image files, or the reason why it was refused.
        places: close it to free the places in the queue.
    """

    _service: Service
    context: RequestContext
    job: ParsedRequest
    model: str
    images: list[EncodedPair | str]
    places: ExitStack

    async def results(self, hear: Hear | None = None) -> list[PairResult]:
        """One result per pair, in order, by one call of the backend (with ``hear``).

        Raises:
            ApiError: as :meth:`Service.caption`; of a single pair its failure here or at an endpoint.
        """
        readable = [image for image in self.images if isinstance(image, EncodedPair)]
        results = iter(await self._caption(readable, hear) if readable else ())
        return [PairResult(error=image) if isinstance(image, str) else next(results) for image in self.images]

    def as_done(self) -> AsyncGenerator[tuple[int, PairResult], None]:
        """Index and result of each pair as soon as it is captioned, by one call of the backend per pair."""

        async def single(image: EncodedPair | str) -> PairResult:
            return PairResult(error=image) if isinstance(image, str) else (await self._caption([image]))[0]

        return as_done([single(image) for image in self.images])

    async def _caption(self, pairs: Sequence[EncodedPair], hear: Hear | None = None) -> list[PairResult]:
        results = await self._service.caption(self.context, pairs, self.model, self.job.options, hear)
        if self.job.single and results[0].error is not None and results[0].status >= 500:
            raise _failure(results[0].status, results[0].error)
        return results


def _failure(status: int, message: str) -> ApiError:
    """The response to a pair that failed here, or at the endpoint that runs the language model."""
    if status in (500, 503):
        return internal_error() if status == 500 else busy(message)
    return ApiError(status, {502: "upstream_failed", 504: "timeout"}[status], message)


def versions(results: Sequence[PairResult]) -> str:
    """The version of the model that captioned; both if another one took its place during a request of several calls."""
    return ", ".join(sorted({result.version for result in results if result.version}))


async def as_done(pieces: Sequence[Coroutine[Any, Any, Piece]]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Index and result of coroutines that run concurrently, each as soon as it is done.

    When one fails, or the generator is closed, the others are cancelled.
    """

    async def indexed(index: int, piece: Coroutine[Any, Any, Piece]) -> tuple[int, Piece]:
        return index, await piece

    tasks = [asyncio.ensure_future(indexed(index, piece)) for index, piece in enumerate(pieces)]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for unfinished in tasks:
            unfinished.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
