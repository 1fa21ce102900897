"""Responses as JSON and as server-sent events: with comments during waits, and work that ends when its client leaves.

FastAPI's own streams are of routes that do nothing else, and have sent their status before the first event.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic_core import to_json
from starlette.responses import Response

from serve.backend import Done, pieces
from serve.errors import ApiError, internal_error
from serve.log import RequestContext

STATUS_S = 1.0
"""A request that fails within this time is answered by an error status; later, by an error event."""
KEEP_ALIVE_S = 5.0
"""Maximal silence of a stream."""

Events = AsyncGenerator[bytes, None]


def server_sent_event(data: Any, name: str | None = None) -> bytes:
    """One event with its data as JSON."""
    return format_sse_event(data_str=to_json(data).decode(), event=name)


async def respond(context: RequestContext, answer: dict[str, Any]) -> Response:
    """An answer as JSON; its places in the queue are free before a slow client takes it."""
    await context.cleanup.aclose()
    return Response(to_json(answer), media_type="application/json")


async def respond_events(context: RequestContext, events: Events, error_name: str | None = None) -> EventSourceResponse:
    """A stream of ``events``; an error in them becomes a last event of the name ``error_name``, and is recorded.

    The work behind them does not wait for a client that reads slowly; at its end the places in the queue are free, as
    in :func:`respond`. With the end of the request, also when its client leaves, the generator is closed, which ends
    the work.

    Raises:
        Exception: what ``events`` raises before its first event, if it does so within ``STATUS_S``.
    """
    slots = context.cleanup.pop_all()

    async def work(put: Callable[[bytes], None]) -> None:
        async with slots, aclosing(events):
            async for event in events:
                put(event)

    ready = pieces(work)
    pending = asyncio.ensure_future(anext(ready))

    async def end() -> None:
        pending.cancel()  # ends the generator where it waits
        await asyncio.gather(pending, return_exceptions=True)
        await ready.aclose()
        await slots.aclose()  # the work may not have begun

    async def body() -> Events:
        nonlocal pending
        try:
            while True:
                while not (await asyncio.wait({pending}, timeout=KEEP_ALIVE_S))[0]:
                    yield KEEPALIVE_COMMENT
                if isinstance(event := pending.result(), Done):
                    return
                yield event
                pending = asyncio.ensure_future(anext(ready))
        except Exception as error:
            if not isinstance(error, ApiError):
                context.failure = traceback.format_exc()
                error = internal_error()
            context.error = error.code
            yield server_sent_event(error.body(context.request_id), error_name)

    context.cleanup.push_async_callback(end)
    if (await asyncio.wait({pending}, timeout=STATUS_S))[0]:
        pending.result()
    return EventSourceResponse(body(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
