"""Puts the questions of a round to an endpoint with OpenAI's chat completions, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from idc.endpoint.chat_endpoint import ChatEndpoint, EndpointError, Reply, RequestRefused
from idc.mining.descriptions.asking import Outcomes, Question, Questions


def ask_endpoint(questions: Questions, record: Callable[[Question, Reply], None]) -> Outcomes:
    """See :data:`idc.mining.descriptions.asking.Ask`. At most ``endpoint.concurrency`` requests are in flight; closed
    early, those are still waited for and recorded."""
    job = questions.job
    config = job.endpoint
    endpoint = ChatEndpoint(
        config.url, config.model, config.api_key_variable, job.temperature, job.max_tokens, config.attempts,
        config.timeout_s,
    )  # fmt: skip
    ended = threading.Event()

    def ask(question: Question) -> None:
        if not ended.is_set():
            record(question, endpoint.ask(question.content()))

    under_way: dict[Future[None], str] = {}

    def finished(most: int) -> Outcomes:
        """Wait until at most so many requests are under way."""
        while len(under_way) > most:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                pair_id, error = under_way.pop(future), future.exception()
                if isinstance(error, RequestRefused):
                    error = RequestRefused(f"refused by the endpoint: {error}")
                elif error is not None and not isinstance(error, EndpointError):
                    raise error
                yield pair_id, error

    with ThreadPoolExecutor(config.concurrency) as pool:
        try:
            for chunk in questions.wanted:
                batch, bad = questions.read(chunk)
                yield from ((pair_id, RequestRefused(reason)) for pair_id, reason in bad.items())
                for question in batch:
                    yield from finished(config.concurrency - 1)
                    under_way[pool.submit(ask, question)] = question.pair_id
            yield from finished(0)
        finally:
            ended.set()
