"""Items of several callers together in one call: pairs in one call of a replica, in one batch of the model. No Ray, no
torch.

Why not ``ray.serve.batch``: it closes a batch a few milliseconds after its first request, even while the model is still
busy with the previous batch, so that under load most batches have one or two pairs.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

_CLOCK_S = 0.001
"""Resolution of uvloop's clock and timers, with which replicas run."""
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Waiting(NamedTuple, Generic[Item, Result]):
    item: Item
    done: asyncio.Future[Result]
    since: float


class Batcher(Generic[Key, Item, Result]):
    """Calls a function with the items of one or several callers of one event loop.

    Items are sent when no call with their key is under way, when they fill a call, or when they have waited ``wait_s``;
    the oldest first.

    Args:
        call: ``call(key, items)`` returns one result per item, or yields each with its index as soon as it has it. Its
            failure is that of all callers that still wait for it.
        max_items: maximal number of items per call.
        wait_s: how long items wait for others while calls with their key are under way.
        threads: call ``call``, which returns, in so many threads, and at most as often at once; 0: it is an
            asynchronous generator.
    """

    def __init__(
        self, call: Callable[[Key, list[Item]], Any], max_items: int, *, wait_s: float = 0.0, threads: int = 0
    ):
        self._call, self._max_items, self._wait_s = call, max_items, wait_s
        self._max_calls = threads or sys.maxsize
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="batch") if threads else None
        self._queues: dict[Key, list[_Waiting[Item, Result]]] = {}
        self._calls: dict[asyncio.Task[None], tuple[Key, float]] = {}
        self._under_way: Counter[Key] = Counter()  # calls by key; without those that have none
        self._timer: tuple[float, asyncio.Handle] | None = None
        """Its time; a timer of uvloop may not know it."""
        # Serve cancels the calls that were made in the context of a request whose client leaves: calls that several
        # requests share must be made outside of it.
        self._context = contextvars.copy_context()

    @property
    def running_since(self) -> float | None:
        """Start of the call that has run longest, by the event loop's clock; None if none runs."""
        return min((since for _, since in self._calls.values()), default=None)

    async def submit(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """The results of the items, in order, or the exception of one of their calls. If the caller is cancelled, its
        items that wait are dropped; a call that all of its callers have left is cancelled, unless it is in a thread."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiting: list[_Waiting[Item, Result]] = [_Waiting(item, loop.create_future(), now) for item in items]
        if waiting:
            queue = self._queues.setdefault(key, [])
            queue.extend(waiting)
            waits = key in self._under_way and len(queue) < self._max_items
            self._send_at(now + self._wait_s if waits else now)
        try:
            return list(await asyncio.gather(*(entry.done for entry in waiting)))
        finally:
            for entry in waiting:
                entry.done.cancel()  # the remaining ones, if one has failed or the caller has left

    def _send_at(self, time: float) -> None:
        """Send at a time of the event loop's clock: one timer for all, so that callers that come together share it."""
        if len(self._calls) == self._max_calls or (self._timer is not None and self._timer[0] <= time):
            return
        if self._timer is not None:
            self._timer[1].cancel()
        self._timer = time, asyncio.get_running_loop().call_at(time, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._send()

    def _send(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self._wait_s + _CLOCK_S
        for key, queue in sorted(self._queues.items(), key=lambda each: each[1][0].since):
            queue[:] = [entry for entry in queue if not entry.done.done()]
            while queue and len(self._calls) < self._max_calls and (
                len(queue) >= self._max_items or key not in self._under_way or queue[0].since <= late
            ):  # fmt: skip
                batch = queue[: self._max_items]
                del queue[: self._max_items]
                self._begin(key, batch, now)
                self._queues[key] = self._queues.pop(key)  # behind others of the same time
            if not queue:
                del self._queues[key]
        if self._queues:
            self._send_at(min(queue[0].since for queue in self._queues.values()) + self._wait_s)

    def _begin(self, key: Key, batch: list[_Waiting[Item, Result]], now: float) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(key, batch), context=self._context.copy())
        self._calls[task] = key, now
        self._under_way[key] += 1
        task.add_done_callback(self._end)
        if self._threads is None:
            for entry in batch:
                entry.done.add_done_callback(
                    lambda done: done.cancelled() and all(each.done.done() for each in batch) and task.cancel()
                )

    def _end(self, task: asyncio.Task[None]) -> None:
        key, _ = self._calls.pop(task)
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        if self._queues and (key not in self._under_way or self._threads is not None):
            self._send()  # there is nothing to wait for

    async def _answer(self, key: Key, batch: list[_Waiting[Item, Result]]) -> None:
        items = [entry.item for entry in batch]

        def answer(index: int, result: Result) -> None:
            if not batch[index].done.done():
                batch[index].done.set_result(result)

        try:
            if self._threads is None:
                async for index, result in self._call(key, items):
                    answer(index, result)
            else:
                loop = asyncio.get_running_loop()
                for index, result in enumerate(await loop.run_in_executor(self._threads, self._call, key, items)):
                    answer(index, result)
            assert all(entry.done.done() for entry in batch), "a call without a result for each of its items"
        except Exception as error:
            for entry in batch:
                if not entry.done.done():
                    entry.done.set_exception(error)
