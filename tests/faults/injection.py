"""Faults injected for real: SIGKILL to a job, a disk that is full, a tracking server that is away.

The jobs are the commands that a user starts, in processes of their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.serve.command import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
"""A wait longer than this is an error."""
_POLL_S = 0.01


def until(condition: Callable[[], bool], what: str, job: Job | None = None) -> None:
    """Poll until ``condition`` holds.

    Raises:
        RuntimeError: not within :data:`PATIENCE_S`, or ``job`` ended before.
    """
    last = time.monotonic() + PATIENCE_S
    while not condition():
        if job is not None and job.process.poll() is not None:
            raise RuntimeError(f"{what}: the job ended before, with status {job.process.returncode}:\n{job.output()}")
        if time.monotonic() > last:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)


class Job:
    """A job of ``jobs/`` as a user starts it. The same one can be started again after it ended.

    Args:
        script: file name in ``jobs/``.
        folder: of its config and its output.
        settings: the job's settings.
        arguments: further ones of the command line.
    """

    def __init__(self, script: str, folder: Path, settings: Mapping[str, Any], *arguments: str):
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
        self.command = [sys.executable, str(ROOT / "jobs" / script), "--config", str(config), *arguments]
        self.process: subprocess.Popen[bytes]
        self._output = folder / "output"

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled", "NO_PROXY": "127.0.0.1"}
        environment.pop("RAY_ADDRESS", None)
        with self._output.open("ab") as sink:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def output(self) -> str:
        """Standard output and error of all its starts."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def end(self, fails: bool = False) -> None:
        """Wait until it ends by itself.

        Raises:
            RuntimeError: it failed; with ``fails``, it did not.
        """
        status = self.process.wait(PATIENCE_S)
        if (status != 0) != fails:
            raise RuntimeError(f"{' '.join(self.command[1:])} ended with status {status}:\n{self.output()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL to the command's own process; returns when all that it had started has ended, apart from the agents
        of Ray's node, which end later and write nothing."""
        import psutil

        children = psutil.Process(self.process.pid).children(recursive=True)
        started = [process for process in children if not process.name().endswith("Agent")]
        self.process.kill()
        self.process.wait()
        if alive := psutil.wait_procs(started, timeout=60)[1]:
            raise RuntimeError(f"processes outlive their driver: {alive}")

    def close(self) -> None:
        """End it and all that it started, if it runs."""
        import psutil

        if not hasattr(self, "process") or self.process.poll() is not None:
            return
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            with suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self.process.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Training(Job):
    """A training; ``run_dir`` is the run's folder. It must log every step."""

    def __init__(self, script: str, folder: Path, run_dir: Path, settings: Mapping[str, Any], *arguments: str):
        super().__init__(script, folder, settings, *arguments)
        self.run_dir = run_dir
        self._log = run_dir / "log.jsonl"

    def __enter__(self) -> Training:
        return self

    def step(self) -> int:
        """The last step that is logged."""
        from idc.training.loop import read_log

        with suppress(OSError, ValueError, LookupError):  # not there yet, or a line half written
            return int(read_log(self._log)[-1]["step"])
        return 0

    def until_step(self, step: int) -> None:
        until(lambda: self.step() >= step, f"step {step}", self)

    def goes_on(self) -> int:
        """Watch a disturbed run to its end; returns the steps that were done twice."""
        reached, before = self.step(), self._inode()
        while self.process.poll() is None:
            step = self.step()
            if self._inode() == before:  # a restart writes the log anew, up to its checkpoint
                reached = max(reached, step)
            time.sleep(_POLL_S)
        self.end()
        return reached - int(re.findall(r"resumed at step (\d+) of", self.output())[-1])

    def _inode(self) -> int:
        with suppress(OSError):
            return self._log.stat().st_ino
        return 0


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
