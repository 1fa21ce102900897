"""``python -m serve.app`` as a process of its own, for tests of its start, its end and what it writes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

PATIENCE_S = 150.0
"""A wait that takes longer than this fails the test."""


@dataclass
class Command:
    """A running command.

    Attributes:
        log: file with everything that it writes to standard output and standard error.
    """

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def client(self) -> httpx2.Client:
        """A client of the served interface."""
        return httpx2.Client(base_url=self.url, timeout=PATIENCE_S)


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds.

    Raises:
        AssertionError: it did not within ``PATIENCE_S``; names ``what``.
    """
    last = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < last, f"did not happen: {what}"
        time.sleep(0.05)


def start(folder: Path, port: int, *settings: str) -> Command:
    """Start the command in ``folder`` with Ray's own token authentication, as a user would."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    log = folder / f"log-{port}-{len(list(folder.glob('log-*')))}"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve.app", f"port={port}", *settings],
            cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Command(process, f"http://127.0.0.1:{port}", log)


@contextmanager
def serving(folder: Path, *settings: str) -> Iterator[Command]:
    """The command while it serves; it is ended with the ``with``, unless the test ended it already."""
    command = start(folder, free_port(), *settings)
    try:
        with command.client() as client:
            until(lambda: _ready(command, client), f"ready; the log:\n{command.log.read_text()}")
        yield command
    finally:
        if command.process.poll() is None:
            command.process.terminate()
        try:
            command.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            command.process.kill()
            raise


def _ready(command: Command, client: httpx2.Client) -> bool:
    assert command.process.poll() is None, f"the command ended at its start:\n{command.log.read_text()}"
    try:
        return client.get("/readyz").status_code == 200
    except httpx2.HTTPError:
        return False
