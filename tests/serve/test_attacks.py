"""``python -m serve.app`` under attack by bodies: its memory stays within the limits, and honest requests are answered.

The attacks use at most 200 connections and 64 bodies of 32 MiB, on the loopback interface only.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx2
import psutil
import pytest

from serve.config import LimitsConfig
from tests.serve.bodies import upload
from tests.serve.command import Command, serving
from tests.sockets import answering_to_others, open_to_others

pytestmark = [pytest.mark.ray, pytest.mark.slow]
LIMITS = LimitsConfig()
SLACK_MIB = 128.0
"""Growth of a process for other reasons: its first requests, buffers of gRPC."""
PATIENCE_S = 15.0
"""How long an attack waits for the server to close connections that the attack left open."""


@pytest.fixture(scope="module")
def server(artifact: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with serving(tmp_path_factory.mktemp("attacks"), f"models.demo={artifact}", "scaling.min_replicas=1") as command:
        for _ in range(3):
            assert ask(command) == 200
        yield command


def ask(server: Command) -> int:
    """Status of an honest request; 0: it had no answer."""
    try:
        with server.client() as client:
            return client.post("/v1/captions", **upload()).status_code
    except httpx2.HTTPError:
        return 0


@contextmanager
def honest_requests(server: Command) -> Iterator[set[int]]:
    """Statuses of an honest client that sends requests inside the ``with``."""
    statuses: set[int] = set()
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(0.2):
            statuses.add(ask(server))

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        thread.join()
    assert ask(server) == 200


def begin(server: Command, stack: ExitStack, length: int) -> socket.socket:
    """A connection with the head of a request whose body has this length."""
    connection = stack.enter_context(socket.create_connection(server.address, timeout=PATIENCE_S))
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has answered or closed the connection, which it does only after it has stopped reading."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(PATIENCE_S)
    return True


def test_nothing_listens_for_other_machines(server: Command) -> None:
    process = psutil.Process(server.process.pid)
    assert open_to_others(process) == []
    assert answering_to_others(process) == []


def test_bodies_by_a_byte_a_second_end_and_block_nobody(server: Command) -> None:
    with honest_requests(server) as statuses, ExitStack() as stack:
        alive = [begin(server, stack, 10**6) for _ in range(200)]
        pause, last = threading.Event(), time.monotonic() + LIMITS.timeout_s + PATIENCE_S
        while (alive := [each for each in alive if not is_closed(each)]) and time.monotonic() < last:
            for connection in alive:
                with suppress(OSError):
                    connection.sendall(b" ")
            pause.wait(1)
        assert alive == []
    assert statuses == {200}


def front_mib(server: Command) -> float:
    """Memory (PSS: shared pages are divided among the processes that share them) of the front."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    [front] = [each for each in children if "ServeReplica:captions:Front" in " ".join(each.cmdline())]
    lines = Path(f"/proc/{front.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def test_bodies_take_at_most_the_configured_memory_also_when_they_come_again(server: Command) -> None:
    """64 bodies of 32 MiB without their last byte."""

    def send(connection: socket.socket) -> None:
        with suppress(OSError):  # refused meanwhile
            for _ in range(31):
                connection.sendall(b" " * 2**20)
                if is_closed(connection):
                    break

    before = front_mib(server)
    for _ in range(4):
        with honest_requests(server) as statuses, ExitStack() as stack, ThreadPoolExecutor(64) as pool:
            list(pool.map(send, [begin(server, stack, 32 * 2**20) for _ in range(64)]))
            assert front_mib(server) - before < LIMITS.waiting_mib + SLACK_MIB
        assert statuses <= {200, 503}  # 503: other requests use all the memory
