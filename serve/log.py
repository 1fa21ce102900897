"""The server's log: one JSON object per line on standard output, which Ray and Kubernetes collect.

Its keys are those of :mod:`idc.util.logs`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from idc.util import logs

_FAILURES = ("_failed", "_lost")
"""Suffixes of event names that denote failures."""


def log(*, event: str, message: str = "", **entry: Any) -> None:
    """Write an event; ``level`` is error for failures. Entries must not contain tokens or image data."""
    level: logs.Level = "error" if _failed(event, entry) else "info"
    print(logs.line(event, message, level, **entry), flush=True)


def forward(batch: Mapping[str, Any], verbose: bool = True) -> None:
    """Print the output of a worker of a local Ray: lines of :func:`log` unchanged, others as entries ``output``.

    Ray's own printing adds a coloured prefix to each line, and drops lines of two workers that differ only in numbers.
    The lines of its autoscaler, which is idle on one machine, are left out.

    Args:
        batch: ``lines``, and ``pid`` and ``actor_name`` of the process that wrote them, as Ray collects them.
        verbose: if false, print only the entries of failures, to standard error.
    """
    if batch["pid"] == "autoscaler":
        return
    for line in batch["lines"]:
        if not verbose:
            if line.startswith(logs.START) and is_failure(line):
                print(line, file=sys.stderr, flush=True)
        elif line.startswith(logs.START):
            print(line, flush=True)
        elif text := logs.without_colour(line).strip():
            log(event="output", message=text, process=batch.get("actor_name") or str(batch["pid"]))


def is_failure(line: str) -> bool:
    """Whether a log line reports a failure of the server, as opposed to a refused request."""
    try:
        entry = json.loads(line)
    except ValueError:  # a line cut off when its process ended
        return True
    return _failed(entry["event"], entry)


def _failed(event: str, entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("failure")) or entry.get("status", 0) >= 500 or event.endswith(_FAILURES)
