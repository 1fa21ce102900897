"""Answers as server-sent events: keep-alive comments while there is nothing to say, work that ends with its client.

The wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html. Imports no torch.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from serve.gate import Visit
from serve.schema import ApiError

STATUS_S = 1.0
"""A request that fails within this time is answered with a status of its own; later, by an event."""
KEEP_ALIVE_S = 5.0
"""How long a stream is silent at most."""

Piece = TypeVar("Piece")
Events = AsyncGenerator[bytes, None]


def event(data: Any, name: str | None = None) -> bytes:
    """One event, its data (models, mappings, ...) as JSON."""
    return format_sse_event(data_str=to_json(data).decode(), event=name)


async def as_done(pieces: Sequence[Coroutine[Any, Any, Piece]]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The results of pieces of work that run side by side, as soon as they are done, each with its place.

    When one fails, or the generator is closed, the others are cancelled.
    """

    async def placed(place: int, piece: Coroutine[Any, Any, Piece]) -> tuple[int, Piece]:
        return place, await piece

    tasks = [asyncio.ensure_future(placed(place, piece)) for place, piece in enumerate(pieces)]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for unfinished in tasks:
            unfinished.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def respond(visit: Visit, events: Events, failed: Callable[[ApiError], bytes], after: ExitStack) -> _Stream:
    """A stream of ``events``; an error in them becomes a last event, made by ``failed``.

    The generator is closed, which ends the work behind it, when the client goes away. ``after`` is closed at the end,
    however it comes.

    Raises:
        Exception: what ``events`` raises before its first event, if it does so within ``STATUS_S``.
    """
    first = asyncio.ensure_future(_next(events))
    try:
        await asyncio.wait({first}, timeout=STATUS_S)
        if first.done():
            first.result()
    except BaseException:  # a cancelled request too
        await _end(first, events, after)
        raise
    return _Stream(visit, first, events, failed, after)


async def _next(events: Events) -> bytes | None:
    return await anext(events, None)


async def _end(pending: asyncio.Future[bytes | None], events: Events, after: ExitStack) -> None:
    try:
        if pending.done():
            await events.aclose()
        else:
            pending.cancel()  # ends the generator where it waits
            with suppress(asyncio.CancelledError):
                await pending
    finally:
        after.close()


class _Stream(EventSourceResponse):
    _HEADERS: Mapping[str, str] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

    def __init__(
        self,
        visit: Visit,
        first: asyncio.Future[bytes | None],
        events: Events,
        failed: Callable[[ApiError], bytes],
        after: ExitStack,
    ):
        super().__init__(self._body(), headers=self._HEADERS)
        self._visit, self._pending, self._events, self._failed, self._after = visit, first, events, failed, after

    async def _body(self) -> Events:
        while True:
            finished, _ = await asyncio.wait({self._pending}, timeout=KEEP_ALIVE_S)
            if not finished:
                yield KEEPALIVE_COMMENT
                continue
            try:
                data = self._pending.result()
            except Exception as error:
                yield self._failed(self._noted(error))
                return
            if data is None:
                return
            yield data
            self._pending = asyncio.ensure_future(_next(self._events))

    def _noted(self, error: Exception) -> ApiError:
        """What the client is told of an error, and the log of one of ours."""
        if not isinstance(error, ApiError):
            self._visit.failure = "".join(traceback.format_exception(error))
            error = ApiError(500, "internal_error", "this went wrong here; the log has it under the request's id")
        self._visit.error = error.code
        return error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client was gone before the first byte, when nothing of the body ran
            await _end(self._pending, self._events, self._after)
