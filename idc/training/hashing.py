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
        remembered = _remembered.get(key)
        if remembered is not None and remembered[0] == _state(stat):
            return remembered[1]
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        settled = now - stat.st_ctime_ns > _SETTLED_NS and _state(os.fstat(file.fileno())) == _state(stat)
    if stat.st_size >= _BIG and settled:
        _remembered[key] = (_state(stat), digest)
    return digest


def _state(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def contents(path: Path | str) -> dict[str, str]:
    """Name -> SHA-256 of the files in a folder, or of a single file (whose name is then ``.``)."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    return {str(file.relative_to(root)): file_hash(file) for file in files}


def combined_hash(hashes: Mapping[str, str]) -> str:
    """One hash of named hashes."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def content_or_id(source: str) -> str:
    """Identifies a model that is given by a local path or a hub id: a hash of the content at the path, or the id."""
    return combined_hash(contents(source)) if Path(source).exists() else source
