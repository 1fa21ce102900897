"""Batches across requests: when the model is free, the waiting pairs form the next batch. No Ray, no torch.

Why not ``ray.serve.batch``: it closes a batch a few milliseconds after its first request, even while the model is still
busy with the previous batch, so that under load most batches have one or two pairs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    done: asyncio.Future[Result]
    since: float


class Batcher(Generic[Key, Item, Result]):
    """Runs a function over batches, one at a time, in a thread of its own; for callers in one event loop.

    Args:
        run: ``run(key, items)`` returns one result per item; items of different keys never share a batch.
        max_items: maximal batch size.
    """

    def __init__(self, run: Callable[[Key, list[Item]], Sequence[Result]], max_items: int):
        self._run, self._max_items = run, max_items
        self._queues: dict[Key, deque[_Waiting[Item, Result]]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch")
        self.running_since: float | None = None
        """Start of the running batch by the event loop's clock; None if none runs."""

    async def submit(self, key: Key, items: Sequence[Item]) -> list[Result]:
        """The results of the items, in order. If the caller is cancelled, its items that have not begun are dropped.

        Raises:
            Exception: raised by the function for a batch with one of the items.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiting: list[_Waiting[Item, Result]] = [_Waiting(item, loop.create_future(), now) for item in items]
        self._queues.setdefault(key, deque()).extend(waiting)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return list(await asyncio.gather(*(entry.done for entry in waiting)))

    async def _work(self) -> None:
        while self._queues:
            key = min(self._queues, key=lambda key: self._queues[key][0].since)
            batch = self._take(key)
            if batch:
                await self._one_batch(key, batch)

    def _take(self, key: Key) -> list[_Waiting[Item, Result]]:
        queue = self._queues[key]
        batch: list[_Waiting[Item, Result]] = []
        while queue and len(batch) < self._max_items:
            entry = queue.popleft()
            if not entry.done.done():  # otherwise its caller has left
                batch.append(entry)
        if not queue:
            del self._queues[key]
        return batch

    async def _one_batch(self, key: Key, batch: list[_Waiting[Item, Result]]) -> None:
        loop = asyncio.get_running_loop()
        self.running_since = loop.time()
        try:
            results = await loop.run_in_executor(self._thread, self._run, key, [entry.item for entry in batch])
        except Exception as error:
            for entry in batch:
                if not entry.done.done():
                    entry.done.set_exception(error)
        else:
            for entry, result in zip(batch, results, strict=True):
                if not entry.done.done():
                    entry.done.set_result(result)
        finally:
            self.running_since = None
