"""Puts many questions to an endpoint, several at a time, with every answer on disk the moment it arrives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from idc.endpoint.answer_log import AnswerLog
from idc.endpoint.chat_endpoint import ChatEndpoint, EndpointError, Reply

Outcomes = Generator[tuple[str, EndpointError | None], None, None]


def ask_many(
    endpoint: ChatEndpoint,
    questions: Iterable[tuple[str, str | list[Any]]],
    log: AnswerLog,
    parse: Callable[[str, Reply], Mapping[str, Any] | None],
    concurrency: int,
) -> Outcomes:
    """Yields the key of every question once it is settled, with the error if it has no answer.

    Closed early, or after an exception, no further question is sent; those in flight are waited for and logged.

    Args:
        questions: key of the answer in the log, and the content of the message; read when there is room for one more.
        parse: key and reply to the record that is logged under the key; ``None``: nothing is logged, and the same
            question would be sent again.
        concurrency: most requests in flight.
    """

    def ask(key: str, content: str | list[Any]) -> None:
        if (record := parse(key, endpoint.ask(content))) is not None:
            log.add({"key": key, **record})

    in_flight: dict[Future[None], str] = {}

    def settled(most: int) -> Outcomes:
        """Wait until at most so many requests are in flight."""
        while len(in_flight) > most:
            for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                key, error = in_flight.pop(future), future.exception()
                if error is not None and not isinstance(error, EndpointError):
                    raise error
                yield key, error

    with ThreadPoolExecutor(concurrency) as pool:
        for key, content in questions:
            yield from settled(concurrency - 1)
            in_flight[pool.submit(ask, key, content)] = key
        yield from settled(0)
