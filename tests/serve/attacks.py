"""Attacks on a running server at the socket level, and their cost: memory of its processes, honest requests.

They use at most 200 connections and 64 bodies of 32 MiB, on the loopback interface only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from serve.config import LimitsConfig
from tests.serve.bad_images import jpeg_of_scans
from tests.serve.bodies import FORM, conversation, file, form, formed, picture, saved, url
from tests.serve.command import free_port
from tests.serve.wire import CHAT, Hostile, send

ROOT = Path(__file__).parents[2]
LIMITS = LimitsConfig()
HONEST = Hostile("an honest request", 200, None, formed(), headers=FORM)
_TITLES = {
    "ServeReplica:captions:Front": "front",
    "ServeReplica:captions:Model": "model",
}
_GIVEN_BACK_S = 5.0
_SAMPLE_S = 0.1
_PATIENCE_S = 15.0
"""How long an attack waits for the server to close connections that the attack left open."""


@dataclass
class Server:
    """A server that was started here."""

    port: int
    process: psutil.Process
    _found: dict[str, psutil.Process] = field(default_factory=dict)

    def memory_mib(self) -> dict[str, float]:
        """Memory now (PSS: shared pages are divided among the processes that share them) of the front, which listens,
        and the replica with the model, each with the decoders that it has started."""
        parts = self._parts()
        return {part: sum(map(_pss_mib, (process, *process.children()))) for part, process in parts.items()}

    def _parts(self) -> dict[str, psutil.Process]:
        """The processes, found once by their titles, to which Ray adds the running method."""
        titles = {f"ray::{name}": part for name, part in _TITLES.items()}
        while len(self._found) < len(titles):
            for process in self.process.children(recursive=True):
                with suppress(psutil.NoSuchProcess, IndexError):
                    for title, part in titles.items():
                        if process.cmdline()[0].startswith(title):
                            self._found[part] = process
        return self._found

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self) -> int:
        """Response status of an honest request."""
        return send("127.0.0.1", self.port, HONEST).status


def _pss_mib(process: psutil.Process) -> float:
    with suppress(OSError):  # it has ended
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return 0.0


Attack = Callable[[Server], str]
"""Runs an attack and returns its finding for the table."""


@contextmanager
def running(artifact: str, *settings: str) -> Iterator[Server]:
    """``python -m serve.app`` on a free port of this machine."""
    port = free_port()
    command = [sys.executable, "-u", "-m", "serve.app", f"models.demo={Path(artifact).resolve()}", f"port={port}"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    with subprocess.Popen(
        [*command, "scaling.min_replicas=1", *settings], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            started = any(f"http://127.0.0.1:{port}" in line for line in process.stdout)
            assert started, "the server did not start"
            drain = threading.Thread(target=process.stdout.read, daemon=True)
            drain.start()
            yield Server(port, psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait(120)


# -- attacks; each returns its finding for the table


def slow_bodies(server: Server) -> str:
    """200 connections that send a body by a byte a second, for a little longer than the server waits."""
    with ExitStack() as stack:
        alive = [stack.enter_context(server.connect()) for _ in range(200)]
        for connection in alive:
            connection.sendall(_head(10**6))
        pause, last = threading.Event(), time.monotonic() + LIMITS.timeout_s + 2
        while time.monotonic() < last:
            for connection in alive:
                with suppress(OSError):
                    connection.sendall(b" ")
            pause.wait(1)
        last += _PATIENCE_S
        while (alive := [each for each in alive if not _closed(each)]) and time.monotonic() < last:
            pause.wait(0.2)
        return f"{len(alive)} stayed open"


def large_bodies(server: Server) -> str:
    """64 bodies of 32 MiB without their last byte."""
    head = _head(32 * 2**20)
    with ExitStack() as stack, ThreadPoolExecutor(64) as pool:
        connections = [stack.enter_context(server.connect()) for _ in range(64)]
        taken = list(pool.map(lambda connection: _send(connection, head, b" " * 2**20, 31), connections))
    return f"{sum(size > 31 * 2**20 for size in taken)} of 64 were taken"


def complete_requests(server: Server) -> str:
    """32 complete, valid requests of 30 MiB at once."""
    noise = np.random.default_rng(0).integers(0, 256, (1950, 1950, 3), np.uint8)
    image = url(saved(noise, "PNG"))
    body = json.dumps(conversation(image, image)).encode()
    return _at_once(server, 32, Hostile("a large request", 200, None, lambda: body, path=CHAT))


def many_pixels(server: Server) -> str:
    """A request with 64 pairs of 4 megapixels, 25 kB a file."""
    data = saved(np.full((2000, 2000, 3), 90, np.uint8), "JPEG")
    body = form(*[file(name, data) for _ in range(64) for name in ("before", "after")])
    return _at_once(server, 1, Hostile("pixels", 200, None, lambda: body, headers=FORM))


def many_scans(server: Server) -> str:
    """Two requests with 32 JPEGs of 20,000 scans each."""
    bomb, plain = file("before", jpeg_of_scans(20_000, 4992)), file("after", picture())
    body = form(*[part for _ in range(32) for part in (bomb, plain)])
    return _at_once(server, 2, Hostile("scans", 400, None, lambda: body, headers=FORM))


def _at_once(server: Server, count: int, request: Hostile) -> str:
    """Send a request ``count`` times at once. Returns how many had which status, 0 for none in 120 s."""

    def status(_: int) -> int:
        try:
            return send("127.0.0.1", server.port, request, timeout_s=120).status
        except TimeoutError:
            return 0

    with ThreadPoolExecutor(count) as pool:
        statuses = Counter(pool.map(status, range(count)))
    return ", ".join(f"{count} answered by {status}" for status, count in sorted(statuses.items()))


def _head(length: int) -> bytes:
    """The head of a request for a caption whose body has this length."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


def _send(connection: socket.socket, head: bytes, part: bytes, times: int) -> int:
    """Number of bytes that could be sent before the server closed the connection."""
    sent = 0
    connection.settimeout(_PATIENCE_S)
    with suppress(OSError):
        for piece in [head, *[part] * times]:
            connection.sendall(piece)
            sent += len(piece)
            if _closed(connection):
                break
    return sent


def _closed(connection: socket.socket) -> bool:
    """Whether the server has responded or closed the connection, which it does only after it has stopped reading."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(_PATIENCE_S)
    return True


# -- the cost of an attack


@dataclass
class Cost:
    """What an attack did: memory of the server's processes in MiB before it, during it and after it; statuses of honest
    requests meanwhile."""

    before: dict[str, float]
    finding: str = ""
    during: list[dict[str, float]] = field(default_factory=list)
    after: dict[str, float] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)

    def growth(self, part: str) -> float:
        """The most by which a process had grown at one moment, in MiB."""
        return max(moment[part] - self.before[part] for moment in self.during)


def cost(server: Server, attack: Attack) -> Cost:
    """Run an attack while an honest client sends requests repeatedly."""
    before = server.memory_mib()
    measured = Cost(before, during=[before])
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_S):
            measured.during.append(server.memory_mib())

    def honest() -> None:
        while not ended.is_set():
            try:
                measured.statuses.append(server.ask())
            except OSError:
                measured.statuses.append(0)
            ended.wait(0.2)

    threads = [threading.Thread(target=honest), threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    try:
        measured.finding = attack(server)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert server.ask() == 200
    ended.clear()
    ended.wait(_GIVEN_BACK_S)
    measured.after = server.memory_mib()
    return measured
