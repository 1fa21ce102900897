"""Output of Ray on a command's terminal: the events of workers in the command's form, and no line that nobody can act
on."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.ray_internals import LineFilter, printing_with
from idc import logs

_NOISE = re.compile(
    "|".join(
        (
            # Ray Data's actors always have such arguments; the driver holds them as long as the job runs.
            r"core_worker\.cc:\d+: Actor with class name: .* has constructor arguments in the object store",
        )
    )
)
"""Lines of Ray that are left out; its own log files have them."""


@contextmanager
def showing() -> Iterator[None]:
    """Context in which Ray runs: call it before ``ray.init``, and end it after ``ray.shutdown``."""

    def change(batch: dict[str, Any], autoscaler_events: LineFilter) -> dict[str, Any] | None:
        if batch["pid"] == "autoscaler" and logs.as_json():
            batch = {**batch, "lines": autoscaler_events(batch["lines"])}
        others = [line for line in logs.show_worker_output(batch) if not _NOISE.search(line)]
        return {**batch, "lines": others} if others else None

    with printing_with(change), _native_lines():
        yield


@contextmanager
def _native_lines() -> Iterator[None]:
    """Filter what native code of this process (Ray's core) writes to standard error by its descriptor.

    Python's own writes go on past the filter, to where they went. Nothing is done where standard error is not the
    process's own, as in a test that captures it.
    """
    before = sys.stderr
    stream = before.wrapped if isinstance(before, logs.Lines) else before
    if sys.__stderr__ is None or stream is not sys.__stderr__ or stream.fileno() != 2:
        yield
        return
    stream.flush()
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    past = open(kept, "w", encoding=stream.encoding, errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    if isinstance(before, logs.Lines):
        before.wrapped = past
    else:
        sys.stderr = past

    def forward() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if _NOISE.search(line):
                    continue
                if logs.as_json():
                    line = logs.line("output", logs.without_colour(line).rstrip(), "warning", process="native") + "\n"
                past.write(line)
                past.flush()

    thread = threading.Thread(target=forward, name="native-lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        past.flush()
        os.dup2(kept, 2)  # closes the last writing end, unless a child process holds one
        thread.join(timeout=1.0)
        if isinstance(before, logs.Lines):
            before.wrapped = stream
        else:
            sys.stderr = before
