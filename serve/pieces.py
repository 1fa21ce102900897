"""Pieces of an answer while it is generated: from any thread into a generator of an event loop. No Ray, no torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

TextCallback = Callable[[str], None]
"""Called with each further piece of an answer's text."""


@dataclass(frozen=True)
class Done(Generic[Value]):
    """The last item of :func:`pieces`."""

    value: Value


async def pieces(run: Callable[[TextCallback], Coroutine[Any, Any, Value]]) -> AsyncGenerator[str | Done[Value], None]:
    """The texts with which ``run(on_text)`` calls ``on_text``, from any thread, each at once; then its result, or what
    it raises. When the generator is closed, the coroutine is cancelled."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def on_text(text: str) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, text)

    task = loop.create_task(run(on_text))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (text := await queue.get()) is not None:
            yield text
        yield Done(await task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
