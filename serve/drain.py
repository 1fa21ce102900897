"""Graceful shutdown of a front: new requests are refused, those in progress are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from serve.errors import ApiError

RETRY_AFTER_S = 5
"""Retry-After of a refused request: by then another server may have taken over."""
_POLL_S = 0.05


class Drain:
    """Counts the requests in progress in one front.

    Attributes:
        draining: whether new requests are refused.
        replaced: whether another front takes over: responses ask clients to connect again.
        in_progress: number of requests in progress.
    """

    def __init__(self) -> None:
        self.draining = False
        self.replaced = False
        self.in_progress = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as in progress inside the ``with``.

        Raises:
            ApiError: 503, the front is draining.
        """
        if self.draining:
            message = "the server is shutting down and accepts no new requests; try again later"
            raise ApiError(503, "ending", message, retry_after_s=RETRY_AFTER_S)
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    async def finish(self, timeout_s: float) -> int:
        """Refuse new requests and wait until none is in progress. Returns how many are left after ``timeout_s``."""
        self.draining = True
        last = time.monotonic() + timeout_s
        while self.in_progress and time.monotonic() < last:
            await asyncio.sleep(_POLL_S)
        return self.in_progress
