"""Join the pairs of concurrent requests into one call of the replicas. No Ray, no torch.

A call costs a front and a replica about as much for one pair as for many. A request alone is sent at once; while
earlier calls are under way, the model is busy, and requests that arrive within a few milliseconds share a call.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Call(Generic[Key, Item, Result]):
    """One call: the items of each caller, and the future of its results."""

    key: Key
    parts: list[tuple[list[Item], asyncio.Future[list[Result]]]] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | asyncio.Handle | None = None
    task: asyncio.Task[None] | None = None
    """Runs the call; None while it gathers items."""


class Joiner(Generic[Key, Item, Result]):
    """Calls a coroutine function with the items of one or several callers; for callers in one event loop.

    Args:
        call: ``await call(key, items)`` returns one result per item. Its failure is that of all callers that share it.
        max_items: maximal number of items per call; only a caller with more has its items divided.
        wait_s: how long the first items of a call wait for others while calls with the same key are under way.
    """

    def __init__(self, call: Callable[[Key, list[Item]], Awaitable[Sequence[Result]]], max_items: int, wait_s: float):
        self._call, self._max_items, self._wait_s = call, max_items, wait_s
        self._gathering: dict[Key, _Call[Key, Item, Result]] = {}
        self._under_way: Counter[Key] = Counter()
        # Serve cancels the calls that were made in the context of a request whose client leaves: calls that several
        # requests share must be made outside of it.
        self._context = contextvars.copy_context()

    async def submit(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """The results of the items, in order. A call that all of its callers have left is cancelled.

        Raises:
            Exception: raised by a call with some of the items.
        """
        size = self._max_items
        entered = [self._enter(key, list(items[start : start + size])) for start in range(0, len(items), size)]
        try:
            return [result for part in await asyncio.gather(*(future for _, future in entered)) for result in part]
        finally:
            for call, future in entered:
                future.cancel()  # the remaining ones, if one has failed or the caller has left
                if call.task is not None and all(other.done() for _, other in call.parts):
                    call.task.cancel()

    def _enter(self, key: Key, items: list[Item]) -> tuple[_Call[Key, Item, Result], asyncio.Future[list[Result]]]:
        loop = asyncio.get_running_loop()
        call = self._gathering.get(key)
        if call is not None and call.size + len(items) > self._max_items:
            self._send(call)
            call = None
        if call is None:
            call = self._gathering[key] = _Call(key)
            wait_s = self._wait_s if self._under_way[key] else 0.0
            call.timer = loop.call_later(wait_s, self._send, call)
        future: asyncio.Future[list[Result]] = loop.create_future()
        call.parts.append((items, future))
        call.size += len(items)
        if call.size >= self._max_items:
            self._send(call)
        return call, future

    def _send(self, call: _Call[Key, Item, Result]) -> None:
        del self._gathering[call.key]
        assert call.timer is not None
        call.timer.cancel()
        call.parts = [(items, future) for items, future in call.parts if not future.done()]  # others have left
        if call.parts:
            self._under_way[call.key] += 1
            coroutine = self._run(call)
            call.task = asyncio.get_running_loop().create_task(coroutine, context=self._context.copy())

    async def _run(self, call: _Call[Key, Item, Result]) -> None:
        try:
            results = await self._call(call.key, [item for items, _ in call.parts for item in items])
        except Exception as error:
            for _, future in call.parts:
                if not future.done():
                    future.set_exception(error)
        else:
            start = 0
            for items, future in call.parts:
                if not future.done():
                    future.set_result(list(results[start : start + len(items)]))
                start += len(items)
        finally:
            self._under_way[call.key] -= 1
            if not self._under_way[call.key]:
                del self._under_way[call.key]
                if call.key in self._gathering:
                    self._send(self._gathering[call.key])  # the model is free: nothing to wait for
            for _, future in call.parts:
                future.cancel()  # if this task was cancelled
