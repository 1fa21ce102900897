"""Responses as server-sent events: keep-alive comments during waits, and work that ends when its client leaves.

FastAPI's own streams are of routes that do nothing else, and have sent their status before the first event.
The wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html. Imports no torch.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from serve.errors import ApiError, internal_error
from serve.service import AdmittedJob

STATUS_S = 1.0
"""A request that fails within this time is answered by an error status; later, by an error event."""
KEEP_ALIVE_S = 5.0
"""Maximal silence of a stream."""

Events = AsyncGenerator[bytes, None]


def server_sent_event(data: Any, name: str | None = None) -> bytes:
    """One event; its data (models, mappings, ...) as JSON."""
    return format_sse_event(data_str=to_json(data).decode(), event=name)


async def respond(admitted: AdmittedJob, events: Events, error_name: str | None = None) -> EventSourceResponse:
    """A stream of ``events``; an error in them becomes a last event of the name ``error_name``.

    When the client leaves, the generator is closed, which ends the work behind it. The slots of the job are always
    freed at the end.

    Raises:
        Exception: what ``events`` raises before its first event, if it does so within ``STATUS_S``.
    """
    stream = _Stream(admitted, events, error_name)
    try:
        await asyncio.wait({stream.pending}, timeout=STATUS_S)
        if stream.pending.done():
            stream.pending.result()
    except BaseException:  # a cancelled request too
        await stream.end()
        raise
    return stream


class _Stream(EventSourceResponse):
    def __init__(self, admitted: AdmittedJob, events: Events, error_name: str | None):
        super().__init__(self._body(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._admitted, self._events, self._error_name = admitted, events, error_name
        self.pending = asyncio.ensure_future(anext(events, None))

    async def _body(self) -> Events:
        while True:
            await asyncio.wait({self.pending}, timeout=KEEP_ALIVE_S)
            if not self.pending.done():
                yield KEEPALIVE_COMMENT
                continue
            try:
                data = self.pending.result()
            except Exception as error:
                yield self._failed(error)
                return
            if data is None:
                return
            yield data
            self.pending = asyncio.ensure_future(anext(self._events, None))

    def _failed(self, error: Exception) -> bytes:
        """The last event, whose error is recorded for the log; an internal one with its traceback."""
        context = self._admitted.context
        if not isinstance(error, ApiError):
            context.failure = "".join(traceback.format_exception(error))
            error = internal_error()
        context.error = error.code
        return server_sent_event(error.body(context.request_id), self._error_name)

    async def end(self) -> None:
        """End the work and free the slots."""
        try:
            if self.pending.done():
                await self._events.aclose()
            else:
                self.pending.cancel()  # ends the generator where it waits
                with suppress(asyncio.CancelledError):
                    await self.pending
        finally:
            self._admitted.slots.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client left before the first byte, when nothing of the body ran
            await self.end()
