"""A real S3 server on this machine (moto's), which can be made to refuse, and the environment that leads to it."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moto.server import ThreadedMotoServer

BUCKET = "idc"
VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_EC2_METADATA_DISABLED",
)


class Store:
    """A server with one bucket; its objects live in this process, also while it is stopped.

    Attributes:
        port: stays the same over :meth:`stop` and :meth:`start`.
        environment: variables of those who use it.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        values = (f"http://127.0.0.1:{self.port}", "testing", "testing", "us-east-1", "true")
        self.environment = dict(zip(VARIABLES, values, strict=True))
        self._server: Any = None
        self.start()
        self.request("PUT", f"/{BUCKET}")

    def start(self) -> None:
        """Answer again."""
        assert self._server is None
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Refuse connections; what is stored stays."""
        self._server.stop()
        self._server = None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body)
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status < 300, (answer.status, data)
        connection.close()
        return data

    def close(self) -> None:
        if self._server is not None:
            self.stop()


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
