"""A tracking server that can be taken away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.serve.command import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
"""A wait longer than this is an error."""
_POLL_S = 0.01


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds."""
    last = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > last:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)


class TrackingServer:
    """``mlflow server`` on loopback, with a database that outlives it."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.database = f"sqlite:///{folder / 'mlflow.db'}"
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--backend-store-uri", self.database]
        with (self.folder / "server.log").open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options, "--workers", "1"],
                cwd=self.folder, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        until(self.answers, "the tracking server answers")

    def answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"mlflow server ended: {(self.folder / 'server.log').read_text()[-2000:]}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), opener.open(f"{self.uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> TrackingServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
