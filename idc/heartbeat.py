"""A sign of life in a job's folder, for ``jobs/status.py``: who works on it, where, since when, and how it ended.

It is a small file, rewritten every few seconds by a thread of the job's process, so that a reader on any machine sees
that the process is gone. Folders on object storage have none. Imports neither torch nor Ray.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from idc.atomic import read_object, write_json

FILE = ".running.json"
EVERY_S = 5.0
"""Seconds between two signs."""
LOST_AFTER_S = 60.0
"""Seconds without a sign after which a process on another machine counts as gone."""


class Heartbeat:
    """A context manager around the work in a folder.

    The file's fields: ``kind``, ``node``, ``pid``, ``ray_job`` (submission id), ``cores`` and ``gpus`` in use,
    ``started`` and ``beat`` (seconds since the epoch), ``earlier_s`` (of earlier starts), ``ended`` and ``failure``.

    Args:
        folder: exists; or None, which gives no sign.
        kind: training, data or sweep.
    """

    def __init__(self, folder: Path | str | None, kind: str, *, cores: float = 1.0, gpus: float = 0.0):
        self._path = Path(folder) / FILE if folder is not None and "://" not in str(folder) else None
        self._values: dict[str, Any] = {"kind": kind, "cores": cores, "gpus": gpus}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        if self._path is not None:
            before = read_heartbeat(self._path.parent) or {}
            earlier = before.get("earlier_s", 0.0) + max(0.0, before.get("beat", 0.0) - before.get("started", 0.0))
            self._values |= {
                "node": platform.node(),
                "pid": os.getpid(),
                "ray_job": _ray_job(),
                "started": time.time(),
                "earlier_s": earlier,
            }
            self._write()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._path is not None:
            self._ended.set()
            self._thread.join()
            failure = f"{kind.__name__}: {error}" if kind is not None else None
            self._write(ended=time.time(), failure=failure)

    def remove(self) -> None:
        """Remove the file of work that is complete and says so itself. Call it after the context."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._write()

    def _write(self, **more: Any) -> None:
        assert self._path is not None
        try:
            write_json(self._path, {**self._values, "beat": time.time(), **more})
        except OSError as error:  # a full disk ends the work where it matters, not here
            print(f"{self._path}: {error}", file=sys.stderr)


def read_heartbeat(folder: Path) -> dict[str, Any] | None:
    """The last sign in a folder; None without one."""
    return read_object(folder / FILE)


def gone(sign: dict[str, Any], now: float) -> str | None:
    """Why the process of a sign without an end is no longer there; None if it is."""
    if sign["node"] == platform.node():
        return None if _lives(sign["pid"]) else f"process {sign['pid']} is gone"
    silent = now - sign["beat"]
    return f"no sign of life for {silent:.0f} s" if silent > LOST_AFTER_S else None


def spent_s(sign: dict[str, Any], now: float) -> float:
    """Seconds of all starts together."""
    end = sign.get("ended") or (sign["beat"] if gone(sign, now) else now)
    return float(sign["earlier_s"] + max(0.0, end - sign["started"]))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:  # a process that has ended and that its parent has not waited for
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def _ray_job() -> str | None:
    """The submission id of the Ray job that this process is the driver of."""
    try:  # not documented: the job manager sets it for the entry point of a submitted job
        metadata = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]
    except (KeyError, ValueError, TypeError):
        return None
    submission = metadata.get("job_submission_id")
    return str(submission) if submission else None
