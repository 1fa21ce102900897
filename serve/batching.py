"""Pairs of several requests together: in one call of a replica (:class:`Joiner`, in the front) and in one batch of the
model (:class:`Batcher`, in the replica). No Ray, no torch.

Why not ``ray.serve.batch``: it closes a batch a few milliseconds after its first request, even while the model is still
busy with the previous batch, so that under load most batches have one or two pairs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Waiting(NamedTuple, Generic[Item, Result]):
    item: Item
    done: asyncio.Future[Result]
    since: float


class _Queues(Generic[Key, Item, Result]):
    """Items that wait, by key; those whose callers have left are dropped."""

    def __init__(self, max_items: int):
        self.max_items = max_items
        self.queues: dict[Key, list[_Waiting[Item, Result]]] = {}
        """None of them is empty."""

    def add(self, key: Key, items: Sequence[Item]) -> list[asyncio.Future[Result]]:
        loop = asyncio.get_running_loop()
        waiting: list[_Waiting[Item, Result]] = [_Waiting(item, loop.create_future(), loop.time()) for item in items]
        if waiting:
            self.queues.setdefault(key, []).extend(waiting)
        return [entry.done for entry in waiting]

    def take(self, key: Key) -> list[_Waiting[Item, Result]]:
        """The next items, at most ``max_items``; removes an empty queue."""
        queue = [entry for entry in self.queues.pop(key, []) if not entry.done.done()]
        if len(queue) > self.max_items:
            self.queues[key] = queue[self.max_items :]
        return queue[: self.max_items]


async def _answer(batch: list[_Waiting[Item, Result]], results: Awaitable[Sequence[Result]]) -> None:
    """Give each of a batch its result, or the exception of all."""
    values: Sequence[Result] = ()
    failure: Exception | None = None
    try:
        values = await results
    except Exception as error:
        failure = error
    for number, entry in enumerate(batch):
        if entry.done.done():
            continue
        if failure is None:
            entry.done.set_result(values[number])
        else:
            entry.done.set_exception(failure)


class Batcher(Generic[Key, Item, Result]):
    """Runs a function over batches, one at a time, in a thread of its own; for callers in one event loop.

    When the function is free, the pairs that wait form the next batch.

    Args:
        run: ``run(key, items)`` returns one result per item; items of different keys never share a batch.
        max_items: maximal batch size.
    """

    def __init__(self, run: Callable[[Key, list[Item]], Sequence[Result]], max_items: int):
        self._run = run
        self._waiting: _Queues[Key, Item, Result] = _Queues(max_items)
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch")
        self.running_since: float | None = None
        """Start of the running batch by the event loop's clock; None if none runs."""

    async def submit(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """The results of the items, in order, or the exception of one of their batches. If the caller is cancelled,
        its items that have not begun are dropped."""
        results = self._waiting.add(key, items)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return list(await asyncio.gather(*results))

    async def _work(self) -> None:
        loop, queues = asyncio.get_running_loop(), self._waiting.queues
        while queues:
            key = min(queues, key=lambda key: queues[key][0].since)
            if batch := self._waiting.take(key):
                self.running_since = loop.time()
                items = [entry.item for entry in batch]
                await _answer(batch, loop.run_in_executor(self._thread, self._run, key, items))
                self.running_since = None


class Joiner(Generic[Key, Item, Result]):
    """Calls a coroutine function with the items of one or several callers; for callers in one event loop.

    A call costs a front and a replica about as much for one pair as for many. A request alone is sent at once; while
    earlier calls are under way, the model is busy, and requests that arrive within a few milliseconds share a call.

    Args:
        call: ``await call(key, items)`` returns one result per item. Its failure is that of all callers that share it.
        max_items: maximal number of items per call.
        wait_s: how long items wait for others while calls with the same key are under way.
    """

    def __init__(self, call: Callable[[Key, list[Item]], Awaitable[Sequence[Result]]], max_items: int, wait_s: float):
        self._call, self._wait_s = call, wait_s
        self._waiting: _Queues[Key, Item, Result] = _Queues(max_items)
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._under_way: Counter[Key] = Counter()
        # Serve cancels the calls that were made in the context of a request whose client leaves: calls that several
        # requests share must be made outside of it.
        self._context = contextvars.copy_context()

    async def submit(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """The results of the items, in order, or the exception of one of their calls. A call that all of its callers
        have left is cancelled."""
        results = self._waiting.add(key, items)
        while len(self._waiting.queues.get(key, ())) >= self._waiting.max_items:
            self._send(key)
        if key in self._waiting.queues and key not in self._timers:
            wait_s = self._wait_s if self._under_way[key] else 0.0
            self._timers[key] = asyncio.get_running_loop().call_later(wait_s, self._send, key)
        try:
            return list(await asyncio.gather(*results))
        finally:
            for result in results:
                result.cancel()  # the remaining ones, if one has failed or the caller has left

    def _send(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if not (batch := self._waiting.take(key)):
            return
        self._under_way[key] += 1
        task = asyncio.get_running_loop().create_task(self._answer(key, batch), context=self._context.copy())
        for entry in batch:
            entry.done.add_done_callback(lambda _: all(each.done.done() for each in batch) and task.cancel())

    async def _answer(self, key: Key, batch: list[_Waiting[Item, Result]]) -> None:
        try:
            await _answer(batch, self._call(key, [entry.item for entry in batch]))
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]
                self._send(key)  # the model is free: nothing to wait for
