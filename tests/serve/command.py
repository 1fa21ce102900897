"""``python -m serve.app`` as a separate process, for tests of its start, its end and its output."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.serve.waiting import PATIENCE_S, until

_RAY_TOO_SLOW = "The current node timed out during startup"
"""Ray's error on a machine so busy that its processes do not start within fixed times."""


@dataclass
class Command:
    """A running command.

    Attributes:
        log: file with its standard output and standard error.
    """

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def client(self) -> httpx2.Client:
        """A client of the server."""
        return httpx2.Client(base_url=self.url, timeout=PATIENCE_S)

    def started(self) -> bool:
        """Whether its start is over: it serves, or it has ended."""
        with self.client() as client:
            return is_ready(client) or self.process.poll() is not None


def is_ready(client: httpx2.Client) -> bool:
    """Whether the server that the client asks serves."""
    try:
        return client.get("/readyz").status_code == 200
    except httpx2.HTTPError:
        return False


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def start(folder: Path, port: int, *settings: str) -> Command:
    """Start the command in ``folder`` with Ray's own token authentication, as a user would."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"} | {"IDC_LOG": "json"}
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
    for _ in range(4):
        command = start(folder, free_port(), *settings)
        try:
            until(command.started, "the command serves")
            if command.process.poll() is not None and _RAY_TOO_SLOW in command.log.read_text():
                continue
            assert command.process.poll() is None, f"the command ended at its start:\n{command.log.read_text()}"
            yield command
            return
        finally:
            end(command)
    pytest.fail("Ray does not start: the machine is too busy")


def end(command: Command) -> None:
    """End the command, if it still runs."""
    if command.process.poll() is None:
        command.process.terminate()
    try:
        command.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        command.process.kill()
        raise
