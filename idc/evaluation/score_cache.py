"""Values that an evaluation calculates from the references alone, on disk for the next one of the same references.

A value is stored under a hash of all that it depends on, so it is never out of date, and any number of evaluations may
share a folder. The folder may be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from idc.util.atomic import write_text

log = logging.getLogger(__name__)


class ScoreCache:
    """Values by name and by what they depend on, in a folder (None to store nothing), for a version of the program."""

    def __init__(self, folder: Path | str | None = None, version: int = 0) -> None:
        self._folder = None if folder is None else Path(folder)
        self._version = version

    def get(self, name: str, depends_on: Any, make: Callable[[], Any]) -> Any:
        """The stored value, or that of ``make``, which is then stored (JSON). A damaged file is made anew.

        Args:
            depends_on: JSON-able; everything that the value depends on.
        """
        if self._folder is None:
            return make()
        key = _hash([name, self._version, depends_on])
        path = self._folder / f"{name}-{key[:32]}.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["key"] == key and stored["sha256"] == _hash(stored["value"]):
                return stored["value"]
            log.warning("%s is damaged and is made anew", path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("%s cannot be read and is made anew: %s", path, error)
        value = make()
        text = json.dumps({"key": key, "sha256": _hash(value), "value": value})
        try:
            write_text(path, text)
        except OSError as error:
            log.warning("not cached for the next evaluation: %s", error)
        return json.loads(text)["value"]  # as a later call returns it


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
