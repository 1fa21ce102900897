"""Answers as server-sent events: keep-alive comments while there is nothing to say, work that ends with its client.

The wire format: https://html.spec.whatwg.org/multipage/server-sent-events.html. Imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from serve.schema import ApiError, PairAnswer

STATUS_S = 1.0
"""A request that fails within this time is answered with a status of its own; later, by an event."""
KEEP_ALIVE_S = 5.0
"""How long a stream is silent at most."""


def event(data: BaseModel, name: str | None = None) -> bytes:
    """One event, its data as JSON."""
    return format_sse_event(data_str=data.model_dump_json(), event=name)


async def respond(
    events: AsyncGenerator[bytes, None], failed: Callable[[Exception], bytes], headers: Mapping[str, str] | None = None
) -> EventSourceResponse:
    """A stream of ``events``. An error in them becomes a last event, made by ``failed``.

    The generator is closed when the client goes away, which ends the work behind it.

    Raises:
        Exception: whatever ``events`` raises before its first event, if it does so within ``STATUS_S``.
    """
    first = asyncio.ensure_future(_next(events))
    try:
        await asyncio.wait({first}, timeout=STATUS_S)
        if first.done():
            first.result()
    except BaseException:  # a cancelled request too
        await _end(first, events)
        raise
    return _Stream(first, events, failed, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})


async def as_done(
    pieces: list[Awaitable[PairAnswer]], done: Callable[[list[PairAnswer]], BaseModel]
) -> AsyncGenerator[bytes, None]:
    """An event ``result`` a piece, in the order in which they are done, then one event ``done``.

    Args:
        pieces: the answers to come.
        done: makes the last event's data of all answers, or raises what is wrong with them together.
    """
    tasks = [asyncio.ensure_future(piece) for piece in pieces]
    answers: list[PairAnswer] = []
    try:
        for task in asyncio.as_completed(tasks):
            answers.append(await task)
            if len(answers) == len(tasks):
                last = done(answers)  # before the only answer of a request for one pair: its error is a status
            yield event(answers[-1], "result")
        yield event(last, "done")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(events, None)


async def _end(pending: asyncio.Future[bytes | None], events: AsyncGenerator[bytes, None]) -> None:
    if pending.done():
        await events.aclose()
    else:
        pending.cancel()  # ends the generator where it waits
        with suppress(asyncio.CancelledError):
            await pending


class _Stream(EventSourceResponse):
    def __init__(
        self,
        first: asyncio.Future[bytes | None],
        events: AsyncGenerator[bytes, None],
        failed: Callable[[Exception], bytes],
        headers: Mapping[str, str],
    ):
        super().__init__(self._body(), headers=headers)
        self._pending, self._events, self._failed = first, events, failed

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            finished, _ = await asyncio.wait({self._pending}, timeout=KEEP_ALIVE_S)
            if not finished:
                yield KEEPALIVE_COMMENT
                continue
            try:
                data = self._pending.result()
            except Exception as error:
                yield self._failed(error)
                return
            if data is None:
                return
            yield data
            self._pending = asyncio.ensure_future(_next(self._events))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client was gone before the first byte, when nothing of the body ran
            await _end(self._pending, self._events)
