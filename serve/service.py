"""From checked requests to captions: names of models, options, queues, time-outs. All interfaces ask through here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from idc.config import did_you_mean
from serve.config import ServeConfig
from serve.gate import Visit
from serve.intake import Intake
from serve.metrics import Metrics
from serve.schema import ApiError, Backend, Busy, Captioned, EncodedPair, Options, Served


class Service:
    """What the routes of ``/v1`` share; one for each front."""

    def __init__(self, config: ServeConfig, backend: Backend, metrics: Metrics):
        self.config, self.backend, self.metrics = config, backend, metrics
        self.intake = Intake(config.limits)
        self._waiting: Counter[str] = Counter()

    def model(self, name: str | None) -> Served:
        """The model asked for, or the default.

        Raises:
            ApiError: 404 there is none of this name, 503 it cannot be served now.
        """
        wanted = name or self.config.default_model
        for model in self.backend.models():
            if model.name == wanted:
                if model.error is not None:
                    raise ApiError(503, "model_unavailable", f"{wanted}: {model.error}", "model", retry_after_s=10)
                return model
        raise self.unknown_model(wanted)

    def unknown_model(self, name: str) -> ApiError:
        """The refusal of a name that no model has."""
        names = [model.name for model in self.backend.models()]
        hint = did_you_mean(name, names) or f"; there are: {', '.join(names)}"
        return ApiError(404, "unknown_model", f"no model is called {name[:100]!r}{hint}", "model")

    def options(self, asked: Options) -> Options:
        """The options within the limits; without beams the model takes those it was validated with, or more if need be.

        Raises:
            ApiError: 422 beyond a limit, or fewer beams than candidates.
        """
        limits = self.config.limits
        for name, value, most in (
            ("candidates", asked.candidates, limits.candidates),
            ("beams", asked.beams or 1, limits.beams),
        ):
            if value > most:
                raise ApiError(422, f"too_many_{name}", f"{name}: at most {most}, not {value}", name)
        if asked.beams is not None and asked.beams < asked.candidates:
            message = f"beams: {asked.candidates} candidates need as many beams, not {asked.beams}"
            raise ApiError(422, "too_few_beams", message, "beams")
        return asked

    @contextmanager
    def queued(self, visit: Visit, pairs: int) -> Iterator[None]:
        """Pairs count as waiting inside the ``with``.

        Raises:
            ApiError: 413 too many pairs for one request, 429 the caller, 503 all callers together have too many.
        """
        limits = self.config.limits
        if pairs > limits.pairs:
            raise self.intake.too_many_pairs()
        waiting, most = self._waiting[visit.caller], limits.waiting_pairs_each
        if waiting + pairs > most:
            message = (
                f"{waiting} of your pairs are waiting and this request has {pairs}; at most {most} may wait at once"
            )
            raise ApiError(429, "too_many_waiting", message, retry_after_s=1)
        if self._waiting.total() + pairs > limits.waiting_pairs:
            raise ApiError(503, "busy", "too many pairs are waiting; ask again", retry_after_s=1)
        self._waiting[visit.caller] += pairs
        self.metrics.waiting.inc(pairs)
        try:
            yield
        finally:
            self._waiting[visit.caller] -= pairs
            if not self._waiting[visit.caller]:
                del self._waiting[visit.caller]
            self.metrics.waiting.dec(pairs)

    async def caption(
        self, visit: Visit, pairs: Sequence[EncodedPair], model: Served, options: Options
    ) -> list[Captioned]:
        """The pairs' captions, in their order, inside :meth:`queued`; several may be asked for at once.

        Raises:
            ApiError: 422 the model cannot do it, 503 the replicas are full, 504 it took too long.
        """
        visit.model, visit.version = model.name, model.version
        timeout_s = self.config.limits.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                results = await self.backend.caption(list(pairs), model.name, options)
        except Busy as error:
            message = str(error) or "all replicas have as much as they take; ask again"
            raise ApiError(503, "busy", message, retry_after_s=1) from None
        except TimeoutError:
            raise ApiError(504, "timeout", f"there was no caption within {timeout_s:g} s") from None
        except ValueError as error:
            raise ApiError(422, "not_possible", str(error)) from None
        refused = sum(result.error is not None for result in results)
        self.metrics.pairs(len(results) - refused, refused)
        return results
