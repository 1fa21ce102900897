"""Servers in this process for all files, over the same captioners."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx2
import pytest

from idc.captioning.objects_config import REGIONS
from idc.captioning.sources import AUTO, SHIPPED, SHIPPED_SATELLITE
from tests.serve.local import TOKEN, LocalBackend, client_of, tokens_of

TOOLS = "https://tools.example.org"
"""The origin whose pages may ask the server with tokens."""
TOKENS = {"tester": TOKEN, "first": "a-token", "second": "another-token", "third": "one-more"}
AUTH = {"tokens": tokens_of(**TOKENS), "origins": [TOOLS]}
MODELS = {
    "demo": "an artifact", "shipped": SHIPPED, "auto": AUTO, "satellite": SHIPPED_SATELLITE, "regions": REGIONS,
}  # fmt: skip


@pytest.fixture(scope="session")
def backend(artifact: str) -> LocalBackend:
    return LocalBackend({**MODELS, "demo": artifact})


@pytest.fixture(scope="session")
def client(backend: LocalBackend) -> Iterator[httpx2.Client]:
    """Of a server for this machine alone."""
    with client_of(backend) as client:
        yield client


@pytest.fixture(scope="session")
def closed(backend: LocalBackend) -> Iterator[httpx2.Client]:
    """Of a server with tokens; this client sends one."""
    with client_of(backend, token=TOKEN, auth=AUTH) as client:
        yield client


@pytest.fixture
def held(backend: LocalBackend) -> Iterator[LocalBackend]:
    """The captioners of both, which hold pairs back for this test."""
    backend.go_on.clear()
    backend.cancelled.clear()
    backend.asked = threading.Semaphore(0)
    yield backend
    backend.go_on.set()  # a request of a test that failed ends too
