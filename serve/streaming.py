"""Responses as server-sent events: keep-alive comments during waits, and work that ends when its client leaves.

The wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html. Imports no torch.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from serve.context import RequestContext
from serve.errors import ApiError, internal_error

STATUS_S = 1.0
"""A request that fails within this time is answered by an error status; later, by an error event."""
KEEP_ALIVE_S = 5.0
"""Maximal silence of a stream."""

Events = AsyncGenerator[bytes, None]


def server_sent_event(data: Any, name: str | None = None) -> bytes:
    """One event; its data (models, mappings, ...) as JSON."""
    return format_sse_event(data_str=to_json(data).decode(), event=name)


async def respond(
    context: RequestContext, events: Events, failed: Callable[[ApiError], bytes], after: ExitStack
) -> _Stream:
    """A stream of ``events``; an error in them becomes a last event, made by ``failed``.

    When the client leaves, the generator is closed, which ends the work behind it. ``after`` is always closed at the
    end.

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
    return _Stream(context, first, events, failed, after)


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
        context: RequestContext,
        first: asyncio.Future[bytes | None],
        events: Events,
        failed: Callable[[ApiError], bytes],
        after: ExitStack,
    ):
        super().__init__(self._body(), headers=self._HEADERS)
        self._context, self._pending, self._events, self._failed, self._after = context, first, events, failed, after

    async def _body(self) -> Events:
        while True:
            finished, _ = await asyncio.wait({self._pending}, timeout=KEEP_ALIVE_S)
            if not finished:
                yield KEEPALIVE_COMMENT
                continue
            try:
                data = self._pending.result()
            except Exception as error:
                yield self._failed(self._recorded(error))
                return
            if data is None:
                return
            yield data
            self._pending = asyncio.ensure_future(_next(self._events))

    def _recorded(self, error: Exception) -> ApiError:
        """The error for the client, recorded for the log; an internal one with its traceback."""
        if not isinstance(error, ApiError):
            self._context.failure = "".join(traceback.format_exception(error))
            error = internal_error()
        self._context.error = error.code
        return error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client left before the first byte, when nothing of the body ran
            await _end(self._pending, self._events, self._after)
