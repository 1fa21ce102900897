"""Answers of a language model on disk: what has been paid for is never asked again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from idc.data.files import locate
from idc.data.object_store import explain_write_errors
from idc.util.atomic import write_text


class AnswerLog:
    """The answers on disk, one JSON object per line with a ``key``; a line that a kill has truncated is dropped.

    Attributes:
        known: key -> record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.known: dict[str, dict[str, Any]] = {}
        with explain_write_errors(locate(path.parent)):
            path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        whole = []
        for line in lines:
            try:
                record = json.loads(line)
                self.known[record["key"]] = record
                whole.append(line)
            except (ValueError, KeyError, TypeError):
                continue
        if lines and lines != [*whole, ""]:
            write_text(path, "".join(line + "\n" for line in whole))

    def add(self, record: dict[str, Any]) -> None:
        """Write an answer immediately.

        Raises:
            ValueError: the folder cannot be written.
        """
        with self._lock:
            with explain_write_errors(locate(self._path.parent)), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            self.known[record["key"]] = record
