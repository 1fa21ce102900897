"""Waits of tests for a condition: they poll, and one that takes too long fails the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import uvloop

PATIENCE_S = 150.0
"""A wait longer than this fails the test."""
_POLL_S = 0.01


def until(condition: Callable[[], object], what: str) -> None:
    """Poll until ``condition`` holds.

    Raises:
        AssertionError: it did not hold within ``PATIENCE_S``; names ``what``.
    """
    last = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < last, f"did not happen: {what}"
        time.sleep(_POLL_S)


async def happens(condition: Callable[[], object]) -> None:
    """:func:`until`, in an event loop."""
    while not condition():
        await asyncio.sleep(_POLL_S)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop as replicas have it, for ``PATIENCE_S`` at most."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(**fixtures), PATIENCE_S))

    return run
