"""The server's log: one JSON object per line on standard output, which Ray and Kubernetes collect, with the keys of
:mod:`idc.util.logs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from idc.util import logs

_NO_FAILURE = re.compile(re.escape(logs.START) + '[^"]*", "level": "info"')


def log(*, event: str, message: str = "", **entry: Any) -> None:
    """Write an event; its ``level`` is error for failures of the server, as opposed to refused requests. Entries must
    not contain tokens or image data."""
    failed = bool(entry.get("failure")) or entry.get("status", 0) >= 500 or event.endswith(("_failed", "_lost"))
    print(logs.line(event, message, "error" if failed else "info", **entry), flush=True)


def forward(batch: Mapping[str, Any], verbose: bool = True) -> None:
    """Print the output of a worker of a local Ray: lines of :func:`log` unchanged, others as entries ``output``.

    Ray's own printing adds a coloured prefix to each line, and drops lines of two workers that differ only in numbers.
    The lines of its autoscaler, which is idle on one machine, are left out.

    Args:
        batch: ``lines``, and ``pid`` and ``actor_name`` of the process that wrote them, as Ray collects them.
        verbose: if false, print only the entries of failures, to standard error.
    """
    for line in batch["lines"] if batch["pid"] != "autoscaler" else ():
        ours = line.startswith(logs.START)
        if ours and (verbose or not _NO_FAILURE.match(line)):  # also one cut off when its process ended
            print(line, file=sys.stdout if verbose else sys.stderr, flush=True)
        elif verbose and not ours and (text := logs.without_colour(line).strip()):
            log(event="output", message=text, process=batch.get("actor_name") or str(batch["pid"]))
