"""The end of a front: new requests are refused, those under way are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from serve.schema import ApiError

RETRY_AFTER_S = 5
"""When a refused client may ask again: by then another server may have taken over."""
_POLL_S = 0.05


class Drain:
    """Counts the requests under way in one front.

    Attributes:
        draining: new requests are refused.
    """

    def __init__(self) -> None:
        self.draining = False
        self._under_way = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is under way inside the ``with``.

        Raises:
            ApiError: 503, the front is draining.
        """
        if self.draining:
            message = "this server is shutting down: accepted requests are finished, new ones are not; try again later"
            raise ApiError(503, "ending", message, retry_after_s=RETRY_AFTER_S)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    async def finish(self, timeout_s: float) -> int:
        """Refuse new requests, and wait until none is under way; returns how many still are after ``timeout_s``."""
        self.draining = True
        last = time.monotonic() + timeout_s
        while self._under_way and time.monotonic() < last:
            await asyncio.sleep(_POLL_S)
        return self._under_way
