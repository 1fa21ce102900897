"""A client for HTTP whose answers are bounded: in bytes, and in time from the connection to the last byte."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
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

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """The response, with its body read; with ``stream`` and without an error, to be read and closed by the
        caller."""
        seconds = request.extensions["timeout"]["read"]
        deadline = asyncio.get_running_loop().time() + seconds
        async with _until(deadline, seconds, request):
            response = await super().send(request, stream=True, **options)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, deadline, seconds, request, self._most_mib)
        try:
            if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise ValueError(f"it is compressed with {encoding[:40]!r}, which was not asked for")
            if not (stream and response.is_success):
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends with an error at the deadline, and when it is too large."""

    def __init__(
        self, body: httpx2.AsyncByteStream, deadline: float, seconds: float, request: httpx2.Request, most_mib: int
    ) -> None:
        self._body, self._bounds, self._most_mib = body, (deadline, seconds, request), most_mib

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        pieces = aiter(self._body)
        while True:
            async with _until(*self._bounds):
                piece = await anext(pieces, None)
            if piece is None:
                return
            size += len(piece)
            if size > self._most_mib * 2**20:
                raise ValueError(f"it has more than {self._most_mib} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


@asynccontextmanager
async def _until(deadline: float, seconds: float, request: httpx2.Request) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise httpx2.ReadTimeout(f"no whole answer within {seconds:g} s", request=request) from None


def wait_for(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine, for callers without an event loop, or whose own has to wait."""
    return asyncio.run_coroutine_threadsafe(coroutine, _background_loop()).result()


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: only asyncio can end a read in the middle."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="bounded-client", daemon=True).start()
    return loop
