"""Local files that appear whole: written under a temporary name next to the target, then renamed.

A reader sees the old file or the new one, never a part of it, also after a kill. For other file systems see
:meth:`idc.data.files.Location.write`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | os.PathLike[str], temporary: str | None = None) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without an error, rename it to ``path``.

    Missing parent folders are created. The temporary name is the same each time, so that a killed writer of a large
    file leaves one remnant at most; ``temporary`` gives another where several processes write the same file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(temporary or f".{path.name}.partial")
    yield partial
    partial.replace(path)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a whole file; several processes may do so at the same time. Returns its path."""
    path = Path(path)
    with replacing(path, f".{path.name}.{os.getpid()}.partial") as partial:
        partial.write_bytes(data)
    return path


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a whole UTF-8 file, as :func:`write_bytes`."""
    return write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Write a value as indented JSON (ASCII), as :func:`write_bytes`."""
    return write_text(path, json.dumps(value, indent=1) + "\n")


def take_umask(path: Path) -> None:
    """Give a file, or all files and folders in a folder, the permissions that a new one gets. Safetensors makes its
    files, and ``tempfile`` all, for their owner alone, whatever the umask."""
    probe = (path if path.is_dir() else path.parent) / f".umask.{os.getpid()}"
    probe.touch()
    mode = probe.stat().st_mode & 0o666
    probe.unlink()
    for entry in path.rglob("*") if path.is_dir() else [path]:
        entry.chmod(mode | (mode & 0o444) >> 2 if entry.is_dir() else mode)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file, or something else in it."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
