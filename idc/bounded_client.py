"""A client for HTTP whose answers are bounded: in bytes, and in time from the connection to the last byte."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from openai import DefaultAsyncHttpxClient

MOST_MIB = 8
"""Of an answer: some 20 captions of 2,000 tokens with their log-probabilities."""


class BoundedClient(DefaultAsyncHttpxClient):
    """The time-out of a request holds for its whole answer, not for each read. Compressed answers are neither asked for
    nor unpacked. A redirection is not followed, because the key would be sent to another host.

    Raises, besides httpx2's own errors:
        ValueError: an answer is compressed or too large.
    """

    def __init__(self) -> None:
        super().__init__(follow_redirects=False, headers={"Accept-Encoding": "identity"})

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The response, with its body read."""
        seconds = request.extensions["timeout"]["read"]
        try:
            async with asyncio.timeout(seconds):
                response = await super().send(request, **{**options, "stream": True})
                try:
                    body = await _read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no whole answer within {seconds:g} s", request=request) from None
        return httpx2.Response(response.status_code, headers=response.headers, content=body, request=request)


async def _read(response: httpx2.Response) -> bytes:
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise ValueError(f"it is compressed with {encoding[:40]!r}, which was not asked for")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MOST_MIB * 2**20:
            raise ValueError(f"it has more than {MOST_MIB} MiB")
    return bytes(body)
