"""Batches form from what waits while the function is busy."""

from __future__ import annotations

import asyncio
import threading

import pytest

from serve.batching import Batcher
from tests.serve.waiting import happens


class Squares:
    """A function over batches that a test holds back, and that records the batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.go_on = threading.Semaphore(0)

    def __call__(self, key: str, items: list[int]) -> list[int]:
        self.batches.append((key, items))
        assert self.go_on.acquire(timeout=60)
        if 13 in items:
            raise ValueError("13 has no square here")
        return [item * item for item in items]


def test_items_that_arrive_while_the_function_is_busy_form_the_next_batches() -> None:
    async def scene() -> None:
        squares = Squares()
        batcher = Batcher(squares, max_items=4)
        first = asyncio.create_task(batcher.submit("a", [1]))
        await happens(lambda: len(squares.batches) == 1)
        others = [asyncio.create_task(batcher.submit(key, items)) for key, items in
                  (("a", [2, 3, 4]), ("b", [5]), ("a", [6, 7]))]  # fmt: skip
        await asyncio.sleep(0)  # all of them are submitted
        for _ in range(4):
            squares.go_on.release()
        assert await first == [1]
        assert await asyncio.gather(*others) == [[4, 9, 16], [25], [36, 49]]
        assert squares.batches == [("a", [1]), ("a", [2, 3, 4, 6]), ("b", [5]), ("a", [7])]

    asyncio.run(scene())


def test_a_fault_affects_its_batch_only_and_cancelled_items_are_dropped() -> None:
    async def scene() -> None:
        squares = Squares()
        batcher = Batcher(squares, max_items=2)
        asked = [asyncio.create_task(batcher.submit("a", [item])) for item in (13, 1, 2, 3, 4)]
        await happens(lambda: len(squares.batches) == 1)
        asked[2].cancel()
        for _ in range(3):
            squares.go_on.release()
        with pytest.raises(ValueError, match="13 has no square"):
            await asked[0]
        with pytest.raises(ValueError, match="13 has no square"):
            await asked[1]
        assert [await asked[3], await asked[4]] == [[9], [16]]
        assert squares.batches == [("a", [13, 1]), ("a", [3, 4])]
        assert batcher.running_since is None

    asyncio.run(scene())
