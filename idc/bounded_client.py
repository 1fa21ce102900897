"""A client for HTTP whose answers are bounded: in bytes, and in time from the connection to the last byte."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx2

Value = TypeVar("Value")


class BoundedClient(httpx2.AsyncClient):
    """The time-out of a request holds for its whole answer, not for each read. Compressed answers are neither asked for
    nor unpacked. A redirection is not followed, because keys would be sent to another host.

    Args:
        most_mib: of an answer.
        settings: of httpx2's client.

    Raises, besides httpx2's own errors:
        ValueError: an answer is compressed or too large.
    """

    def __init__(self, most_mib: int, **settings: Any) -> None:
        no_limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        super().__init__(headers={"Accept-Encoding": "identity"}, limits=no_limits, **settings)
        self._most_mib = most_mib

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The response, with its body read."""
        seconds = request.extensions["timeout"]["read"]
        try:
            async with asyncio.timeout(seconds):
                # As a stream, else httpx2 would read all of it before its size is looked at.
                response = await super().send(request, **{**options, "stream": True})
                try:
                    body = await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no whole answer within {seconds:g} s", request=request) from None
        return httpx2.Response(response.status_code, headers=response.headers, content=body, request=request)

    async def _read(self, response: httpx2.Response) -> bytes:
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise ValueError(f"it is compressed with {encoding[:40]!r}, which was not asked for")
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > self._most_mib * 2**20:
                raise ValueError(f"it has more than {self._most_mib} MiB")
        return bytes(body)


def wait_for(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine, for callers without an event loop, or whose own has to wait."""
    return asyncio.run_coroutine_threadsafe(coroutine, _background_loop()).result()


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: only asyncio can end a read in the middle."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="bounded-client", daemon=True).start()
    return loop
