"""A real S3 server on this machine (moto's), which can be made to refuse, and the environment that leads to it."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from moto.server import ThreadedMotoServer

BUCKET = "idc"
VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_EC2_METADATA_DISABLED",
)


class Gate:
    """A port that passes connections on to another one, refuses them, or answers every request with an error."""

    def __init__(self, target: int) -> None:
        self.target = target
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def open(self, answer: bytes | None = None) -> None:
        """Accept connections, and give each this answer instead of passing it on."""
        assert self._listener is None
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def passes_on(self) -> bool:
        return self._listener is not None and self._answer is None

    def close(self) -> None:
        """Refuse new connections, and cut those there are."""
        if self._listener is None:
            return
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._listener = None
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = listener.accept()
                if self._answer is not None:
                    threading.Thread(target=_refuse, args=(near, self._answer), daemon=True).start()
                    continue
                far = socket.create_connection(("127.0.0.1", self.target))
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _refuse(caller: socket.socket, answer: bytes) -> None:
    with suppress(OSError), caller, caller.makefile("rb") as stream:
        head = [line.lower() for line in iter(stream.readline, b"\r\n")]
        stream.read(sum(int(line[15:]) for line in head if line.startswith(b"content-length:")))
        caller.sendall(answer if not head[0].startswith(b"head") else answer.partition(b"<")[0])


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    source.close()


class Store:
    """A server with one bucket.

    Attributes:
        environment: variables of those who use it.
    """

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self._lock = threading.Lock()
        self._gate = Gate(self._server.get_host_and_port()[1])
        self.port = self._gate.port
        values = (f"http://127.0.0.1:{self.port}", "testing", "testing", "us-east-1", "true")
        self.environment = dict(zip(VARIABLES, values, strict=True))
        self._gate.open()
        self.request("PUT", f"/{BUCKET}")

    def refuse(self, status: int | None = None, code: str = "") -> None:
        """Refuse connections, or answer with an error of S3, and cut those there are; what is stored stays."""
        self._gate.close()
        if status is not None:
            body = f"<Error><Code>{code}</Code><Message>refused</Message></Error>"
            head = f"HTTP/1.1 {status} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self._gate.open((head + body).encode())

    def answer(self) -> None:
        """Answer again; harmless if it does."""
        with self._lock:
            if not self._gate.passes_on:
                self._gate.close()
                self._gate.open()

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body)
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status < 300, (answer.status, data)
        connection.close()
        return data

    def close(self) -> None:
        self._server.stop()


@contextmanager
def store() -> Iterator[Store]:
    """A server, with its variables in this process's environment, until the block ends."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    made = Store()
    os.environ.update(made.environment)
    try:
        yield made
    finally:
        made.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
