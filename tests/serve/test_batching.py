"""Pairs of concurrent requests share calls and batches: one alone is sent at once, a full call too, and each caller
gets its own results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from serve.batching import Batcher
from tests.serve.waiting import happens

LONG_S = 3600.0
"""Longer than any test: what is sent was not sent by the end of the wait."""
REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


class Squares:
    """The calls, which a test holds back; 13 fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.contexts: list[str] = []
        self.cancelled: list[list[int]] = []
        self.go_on, self.batch_goes_on = asyncio.Semaphore(0), threading.Semaphore(0)

    async def call(self, key: str, items: list[int]) -> list[int]:
        self.calls.append((key, items))
        self.contexts.append(REQUEST.get())
        try:
            await self.go_on.acquire()
        except asyncio.CancelledError:
            self.cancelled.append(items)
            raise
        return self._squares(items)

    def batch(self, key: str, items: list[int]) -> list[int]:
        self.calls.append((key, items))
        assert self.batch_goes_on.acquire(timeout=60)
        return self._squares(items)

    def _squares(self, items: list[int]) -> list[int]:
        if 13 in items:
            raise ValueError("13 has no square here")
        return [item * item for item in items]

    def release(self, calls: int) -> None:
        for _ in range(calls):
            self.go_on.release()
            self.batch_goes_on.release()


def run(scene: Callable[[Squares], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await scene(Squares())

    asyncio.run(whole())


def test_items_that_arrive_while_the_function_is_busy_form_the_next_batches() -> None:
    async def scene(squares: Squares) -> None:
        batcher = Batcher(squares.batch, max_items=4, threads=1)
        first = asyncio.create_task(batcher.submit("a", [1]))
        await happens(lambda: len(squares.calls) == 1)
        others = [
            asyncio.create_task(batcher.submit(key, items))
            for key, items in (("a", [2, 3, 4]), ("b", [5]), ("a", [6, 7]), ("c", []))
        ]
        await asyncio.sleep(0)  # all of them are submitted
        squares.release(4)
        assert await asyncio.gather(first, *others) == [[1], [4, 9, 16], [25], [36, 49], []]
        assert squares.calls == [("a", [1]), ("a", [2, 3, 4, 6]), ("b", [5]), ("a", [7])]

    run(scene)


@pytest.mark.parametrize("kind", ["batches", "calls"])
def test_a_fault_affects_its_batch_only_and_items_of_callers_that_left_are_dropped(kind: str) -> None:
    async def scene(squares: Squares) -> None:
        batches, calls = Batcher(squares.batch, 2, threads=1), Batcher(squares.call, 2, wait_s=LONG_S)
        together = batches if kind == "batches" else calls
        first = asyncio.create_task(together.submit("a", [0]))
        await happens(lambda: len(squares.calls) == 1)
        asked = [asyncio.create_task(together.submit("a", [item])) for item in (2, 13, 1, 3, 4)]
        await asyncio.sleep(0)
        if kind == "batches":
            asked[0].cancel()
        squares.release(4)
        results = await asyncio.gather(first, *asked[1:], return_exceptions=True)
        fault, good = "13 has no square here", ["[1]", "[9]", "[16]"]
        # The joiner had sent 2 and 13 when 2 left, and 4 alone follows.
        expected = [fault, fault, *good[1:]] if kind == "batches" else [fault, *good]
        assert [str(one) for one in results] == ["[0]", *expected]

    run(scene)


def test_a_request_alone_is_sent_at_once_and_later_ones_share_a_call_when_it_is_full() -> None:
    async def scene(squares: Squares) -> None:
        joiner = Batcher(squares.call, max_items=4, wait_s=LONG_S)
        first = asyncio.create_task(joiner.submit("a", [1]))
        await happens(lambda: squares.calls == [("a", [1])])
        others = [asyncio.create_task(joiner.submit("a", items)) for items in ([2], [3, 4], [5], list(range(6)))]
        await happens(lambda: len(squares.calls) == 3)
        squares.release(9)
        assert await asyncio.gather(first, *others) == [[1], [4], [9, 16], [25], [0, 1, 4, 9, 16, 25]]
        assert squares.calls == [("a", [1]), ("a", [2, 3, 4, 5]), ("a", [0, 1, 2, 3]), ("a", [4, 5])]

    run(scene)


def test_other_keys_do_not_wait_and_a_call_that_is_not_full_is_sent_after_the_wait() -> None:
    async def scene(squares: Squares) -> None:
        joiner = Batcher(squares.call, max_items=4, wait_s=0.01)
        asked = []
        for key, item in (("a", 1), ("b", 2), ("a", 3), ("a", 4)):
            asked.append(asyncio.create_task(joiner.submit(key, [item])))
            await asyncio.sleep(0)
            if item < 3:
                await happens(lambda: len(squares.calls) == len(asked))
        await happens(lambda: len(squares.calls) == 3)
        squares.release(3)
        assert await asyncio.gather(*asked) == [[1], [4], [9], [16]]
        assert squares.calls == [("a", [1]), ("b", [2]), ("a", [3, 4])]

    run(scene)


def test_a_caller_that_leaves_takes_its_items_along_and_the_last_one_the_call() -> None:
    async def scene(squares: Squares) -> None:
        joiner = Batcher(squares.call, max_items=3, wait_s=LONG_S)
        first = asyncio.create_task(joiner.submit("a", [1]))
        await happens(lambda: len(squares.calls) == 1)
        asked = [asyncio.create_task(joiner.submit("a", [item])) for item in (2, 3, 4)]
        await happens(lambda: len(squares.calls) == 2)
        asked[0].cancel()  # its call has been sent, for the others too
        squares.release(2)
        assert await asyncio.gather(*asked[1:]) == [[9], [16]]
        assert await first == [1]

        alone = asyncio.create_task(joiner.submit("a", [5]))
        await happens(lambda: len(squares.calls) == 3)
        gathering = asyncio.create_task(joiner.submit("a", [6]))
        await asyncio.sleep(0)
        gathering.cancel()
        alone.cancel()
        await happens(lambda: squares.cancelled == [[5]])
        squares.release(1)
        assert await joiner.submit("a", [7, 8, 9]) == [49, 64, 81]  # [6], which nobody awaits, was never sent
        assert squares.calls[3:] == [("a", [7, 8, 9])]

    run(scene)


def test_a_shared_call_does_not_belong_to_the_request_that_began_it() -> None:
    """Serve cancels the calls made in a request's context when its client leaves."""

    async def scene(squares: Squares) -> None:
        joiner = Batcher(squares.call, max_items=2, wait_s=LONG_S)
        squares.release(2)
        REQUEST.set("mine")
        await joiner.submit("a", [1])
        await joiner.submit("a", [1, 2])
        assert squares.contexts == ["none", "none"]

    run(scene)
