"""Clients that send requests for captions all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.serve.waiting import until

CLIENTS = 6


@dataclass
class Load:
    """Results of the clients.

    Attributes:
        versions: of each answer the version that it names, else its text.
        faults: of each request without an answer.
    """

    statuses: list[int] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def wait_for(self, more: int) -> None:
        """Wait until ``more`` further requests are over."""
        aim = len(self.statuses) + len(self.faults) + more
        until(lambda: len(self.statuses) + len(self.faults) >= aim, f"{more} more answers")


@contextmanager
def load(
    connect: Callable[[], httpx2.Client], forms: Sequence[Mapping[str, Any]], *, anew: bool = False
) -> Iterator[Load]:
    """Send requests inside the ``with``, each client one after the other: twice as many as there are clients are over
    before what the ``with`` holds, and as many again after it.

    Args:
        connect: a new client.
        forms: of the clients' requests, by turns, as of ``upload``.
        anew: each request has a connection of its own.
    """
    results, ended = Load(), threading.Event()

    def ask(place: int) -> None:
        client = connect()
        while not ended.is_set():
            try:
                answer = client.post("/v1/captions", **forms[place % len(forms)])
            except httpx2.HTTPError as error:
                results.faults.append(repr(error))
            else:
                results.versions.append(answer.json().get("version") or answer.text)
                results.statuses.append(answer.status_code)
            if anew:
                client.close()
                client = connect()
        client.close()

    clients = [threading.Thread(target=ask, args=(place,)) for place in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        results.wait_for(2 * CLIENTS)
        yield results
        results.wait_for(2 * CLIENTS)
    finally:
        ended.set()
        for client in clients:
            client.join()
