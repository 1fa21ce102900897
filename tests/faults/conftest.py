"""An image and a host outside of a data set, and the names by which a data set tries to reach them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.readers.test_own import put

CANARY = 77
"""The grey value of the image that must not be read."""


class Listener:
    """A host that counts who connects to it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()


def evil_names(secret: Path, host: Listener) -> dict[str, str]:
    return {
        "relative": "../elsewhere/secret.png",
        "relative, deeper": "x/../../elsewhere/secret.png",
        "relative, from a folder of images": "../../../elsewhere/secret.png",
        "absolute": str(secret),
        "file URI": secret.as_uri(),
        "S3 with a host of its own": f"s3://bucket/x.png?endpoint_override={host.address}&scheme=http&region=x",
        "HTTP": f"http://{host.address}/x.png",
        "a link": "out.png",
        "a linked folder": "out/secret.png",
    }


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return put(tmp_path / "elsewhere", {"secret.png": CANARY}) / "secret.png"
