"""The log of jobs, workers and the server: one event per line, plain for people or JSON for machines.

``IDC_LOG=plain`` (the default): the message of each event, on standard error; standard output has results.
``IDC_LOG=json``: every line of both streams is one JSON object. All have ``time`` (UTC, ISO 8601), ``level`` (info,
warning, error), ``event``, ``node`` (host name) and ``pid``; where there is one ``message``, ``job``, ``run``, ``rank``
and ``request_id``; then the fields of the event. What is printed otherwise has the event ``output``.

Ray's workers write in the same form, and the driver shows their lines. Serve's events have the same keys and are always
JSON (``serve/log.py``).
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import platform
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO

from idc.util.redaction import for_terminal, redacted

VARIABLE = "IDC_LOG"
FORMS = ("plain", "json")
START = '{"time": "'
"""Prefix of every JSON line."""

Level = Literal["info", "warning", "error"]

_ROOT = Path(__file__).parents[2]
_OURS = ("idc", "cluster", "jobs", "serve", "benchmarks")
_format_warning = warnings.formatwarning
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Process:
    context: ClassVar[dict[str, Any]] = {}
    writing = threading.Lock()


def errors() -> Iterator[str]:
    """The fault of the setting, if it has one."""
    if (form := os.environ.get(VARIABLE, "plain")) not in FORMS:
        yield f"{VARIABLE}: {form!r} is unknown; take {' or '.join(FORMS)}"


def as_json() -> bool:
    """Whether this process writes JSON lines."""
    return os.environ.get(VARIABLE) == "json"


def bind(**context: Any) -> None:
    """Add keys to all further events of this process: ``run``, ``rank``, ``job``; None removes a key."""
    for name, value in context.items():
        _Process.context.pop(name, None)
        if value is not None:
            _Process.context[name] = value


def event(name: str, message: str = "", level: Level = "info", /, **fields: Any) -> None:
    """Write an event. Fields must not contain tokens or image data.

    Args:
        message: what people read; without one the event is written in JSON only.
    """
    if as_json():
        text = line(name, message, level, **fields)
    elif message:
        text = for_terminal(redacted(message))
    else:
        return
    with _Process.writing:  # print writes the text and its line break apart; another thread may come between
        print(text, file=sys.stderr, flush=True)


def line(name: str, message: str = "", level: Level = "info", /, **fields: Any) -> str:
    """The JSON line of an event, without a line break. Secrets in errors of others are replaced."""
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "event": name,
        **({"message": message} if message else {}),
        **_Process.context,
        "node": _node(),
        "pid": os.getpid(),
        **{key: _finite(value) for key, value in fields.items()},
    }
    return redacted(json.dumps(entry, default=str))


def set_up() -> None:
    """Make this process, a command, write JSON lines if the variable says so, with the script's name as that of the
    job; else only our own warnings change, which are shown without the place in the program."""
    warnings.formatwarning = _plain_warning
    if os.environ.get(VARIABLE) != "json" or isinstance(sys.stdout, Lines):
        return
    bind(job=Path(sys.argv[0]).stem)
    sys.stdout, sys.stderr = Lines(sys.stdout, "info"), Lines(sys.stderr, "warning")
    sys.excepthook = _log_exception
    _log_records(None)


def set_up_worker() -> None:
    """Make this process, a worker of Ray, write its log records as events, once."""
    warnings.formatwarning = _plain_warning
    for name in _OURS:  # Ray Train gives the root logger handlers of its own
        _log_records(name)


def without_colour(text: str) -> str:
    return _COLOUR.sub("", text)


class Lines(io.TextIOBase):
    """A text stream that writes each message as an event ``output``, and events as they are.

    A message ends with the first write that ends with a line break: one ``print`` is one message, also of several
    lines. Of a line that is written over and over (a progress bar) the last state counts.
    """

    def __init__(self, stream: TextIO, level: Level):
        self.wrapped, self._level = stream, level
        self._text = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.wrapped.encoding

    def fileno(self) -> int:
        return self.wrapped.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self.wrapped.flush()

    def write(self, text: str) -> int:
        self._text += text
        if text.endswith("\n"):
            whole, self._text = self._text, ""
            self.wrapped.write("".join(f"{entry}\n" for entry in self._entries(whole)))
            self.wrapped.flush()
        return len(text)

    def _entries(self, whole: str) -> Iterator[str]:
        # Of a line that carriage returns overwrote (a progress bar), only the last state.
        lines = [raw.rsplit("\r", 1)[-1] for raw in without_colour(whole).rstrip().split("\n")]
        if all(entry.startswith(START) for entry in lines):
            yield from lines
        elif message := "\n".join(lines).strip("\n"):
            yield line("output", message, self._level)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level: Level = (
            "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"
        )
        trace = {"traceback": "".join(traceback.format_exception(*record.exc_info))} if record.exc_info else {}
        event("log", record.getMessage(), level, logger=record.name, **trace)


def _plain_warning(message: Any, category: Any, filename: str, lineno: int, line: str | None = None) -> str:
    path = Path(filename)
    if path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _OURS:
        return f"warning: {message}\n"
    return _format_warning(message, category, filename, lineno, line)


def _log_records(name: str | None) -> None:
    """Write the records of a logger (None: the root, of all) as events, and nowhere else."""
    logger = logging.getLogger(name)
    logger.propagate = False
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        logger.addHandler(_Handler(logging.WARNING))


def _log_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        event("interrupted", "interrupted", "warning")
        return
    text = "".join(traceback.format_exception(kind, error, trace))
    event("exception", f"{kind.__name__}: {error}", "error", traceback=text)


@cache
def _node() -> str:
    return platform.node()


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_finite(inner) for inner in value]
    return value
