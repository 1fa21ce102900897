"""SHA-256 of files and folders: what artifacts, evaluations and sweeps are identified by, wherever they are stored."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

_BIG = 1 << 20
_SETTLED_NS = 2 * 10**9
_remembered: dict[tuple[int, int], tuple[tuple[int, int, int], str]] = {}
"""(device, inode) -> state of the file when it was hashed, and its hash."""


def file_hash(path: Path | str) -> str:
    """SHA-256 of a file, in hex.

    Files of a MiB and more are read once per process, and again when they have changed: another inode, size,
    modification time or (what no program can set back) change time. The hash of a file that changed within the last two
    seconds is not remembered, because a second change could have the same time. Not on disk: inodes and clocks mean
    nothing on another machine, and a stored evaluation must not rest on another process's word.
    """
    with Path(path).open("rb") as file:
        now, stat = time.time_ns(), os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino)
        known = _remembered.get(key)
        if known is not None and known[0] == _state(stat):
            return known[1]
        found = hashlib.file_digest(file, "sha256").hexdigest()
        settled = now - stat.st_ctime_ns > _SETTLED_NS and _state(os.fstat(file.fileno())) == _state(stat)
    if stat.st_size >= _BIG and settled:
        _remembered[key] = (_state(stat), found)
    return found


def _state(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def contents(path: Path | str) -> dict[str, str]:
    """Name -> SHA-256 of the files in a folder, or of a single file (whose name is then ``.``)."""
    given = Path(path)
    found = sorted(file for file in given.rglob("*") if file.is_file()) if given.is_dir() else [given]
    return {str(file.relative_to(given)): file_hash(file) for file in found}


def combined(hashes: Mapping[str, str]) -> str:
    """One hash of named hashes."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def content_or_id(source: str) -> str:
    """Identifies a model that is given by a local path or a hub id: a hash of the content at the path, or the id."""
    return combined(contents(source)) if Path(source).exists() else source
